"""Shares of roofs, by hand: waves of tiles, bytes at the share of their class, and no more."""

import json
from importlib.resources import files

import numpy as np
import pytest

from analysis.prediction.shares import (
    KERNEL,
    KINDS,
    UNPROVEN,
    Chip,
    batched_tile,
    datasheet_reach,
    kernel_times_s,
    kernels_of,
    shares,
)
from analysis.roofs import datasheet_peaks
from bench.records.complexity import CallWork

#: Every share is 1 and nothing costs extra, so that times can be computed by hand.
PLAIN = {
    "fill_length": 0.0, "product_bytes": 1.0, "convolution": 1.0, "winograd": 1.0,
    "winograd_bytes": 0.0, "kernel_s": 0.0, UNPROVEN: 0.5,
}  # fmt: skip
TERA, NO_SIZES, NO_WINOGRAD = 1e12, (0, 0, 0, 0), (0, 0, 0, 0, 0)


def chip(processors=10, **changes):
    """1 TFLOP/s and 1 TB/s."""
    return Chip(**{"flops_per_s": TERA, "bytes_per_s": TERA, "peak_flops_per_s": TERA,
                   "processors": processors, **changes})  # fmt: skip


def time_of(kind, sizes=NO_SIZES, moved=0.0, winograd=NO_WINOGRAD, on=None, known=PLAIN):
    row = (KINDS.index(kind), sizes, 2.0 * np.prod(sizes), moved, winograd, 1, 0)
    kernels = np.array([row], KERNEL)
    (time_s,) = kernel_times_s(kernels, on or chip(), known)
    return time_s


def op(name, shapes=(), flops=0, phase="forward", label=None, moved=1000, calls=1):
    work = {"flops": flops, "elementwise_flops": 0, "eager_bytes": moved, "fused_bytes": moved}
    return CallWork(op=name, phase=phase, shapes=shapes, label=label or name, calls=calls, **work)


def test_products_run_in_waves_of_tiles():
    """Ten tiles of 128 a side on ten processors: each 2 x 128 x 128 x 1000 FLOP at 0.1 TFLOP/s."""
    one_wave = 2 * 128 * 128 * 100 / 0.1e12
    only_128 = {**PLAIN, "side_64": 1e-9, "side_32": 1e-9}
    ten, eleven = ((1, 1280, 128, 100), (1, 1281, 128, 100))
    assert time_of("product", ten, known=only_128) == pytest.approx(one_wave)
    assert time_of("product", eleven, known=only_128) == pytest.approx(2 * one_wave)
    filled = {**only_128, "fill_length": 100.0}
    assert time_of("product", ten, known=filled) == pytest.approx(2 * one_wave)


def test_a_long_sum_is_split_between_processors():
    """One tile keeps one of 80 processors busy; in 64 parts it keeps as many."""
    sizes = (1, 128, 128, 64 * 1280)
    alone, split = 2 * 128 * 128 * 64 * 1280 / (TERA / 80), 2 * 128 * 128 * 1280 / (TERA / 80)
    known = {**PLAIN, "side_64": 1e-9, "side_32": 1e-9}
    found = time_of("product", sizes, on=chip(80), known=known)
    assert split < found < 1.1 * split < alone


def test_bytes_take_the_share_of_their_class():
    assert time_of("softmax", moved=TERA, known={**PLAIN, "softmax": 0.5}) == pytest.approx(2)
    assert time_of("elementwise", moved=TERA) == pytest.approx(1)
    assert time_of(UNPROVEN, moved=TERA) == pytest.approx(2)


def test_nothing_is_faster_than_its_roof():
    eager = {**PLAIN, "batched product": 5.0, "convolution": 3.0, "softmax": 4.0}
    sizes = (10, 1280, 1280, 1000)
    for kind in ("batched product", "convolution"):
        least_s = 2 * np.prod(sizes) / TERA
        assert time_of(kind, sizes, known=eager) == pytest.approx(least_s)
    assert time_of("softmax", moved=TERA, known=eager) == pytest.approx(1)


def test_winograd_serves_small_windows_in_fp32_alone():
    (forward,) = [kernels_of([op("convolution", ((10, 640, 32, 32), (640, 640, 3, 3)),
                                 2 * 10 * 32 * 32 * 640 * 640 * 9)])]  # fmt: skip
    (direct,) = kernel_times_s(forward, chip(mode="tf32"), PLAIN)
    (winograd,) = kernel_times_s(forward, chip(), PLAIN)
    assert direct / winograd == pytest.approx(4)  # 36 products of each tile of 4 x 4, not 144
    strided = op("convolution", ((10, 640, 32, 32), (640, 640, 3, 3)), 10**9,
                 label="convolution 3x3 stride 2")  # fmt: skip
    assert not kernels_of([strided])["winograd"].any()


def test_the_backward_pass_of_a_convolution_is_a_product_for_each_gradient():
    shapes = ((2, 8, 16, 16), (2, 4, 16, 16), (8, 4, 3, 3))
    one = 2 * 2 * 8 * 16 * 16 * 4 * 9
    both = kernels_of([op("convolution_backward", shapes, 2 * one, "backward")])
    assert [KINDS[kind] for kind in both["kind"]] == ["input gradient", "weight gradient"]
    assert 2 * both["sizes"].prod(axis=1) == pytest.approx([one, one])
    assert both["flops"] == pytest.approx([one, one])
    first = kernels_of([op("convolution_backward", shapes, one, "backward")])
    assert [KINDS[kind] for kind in first["kind"]] == ["weight gradient"]
    assert both["bytes"].sum() == first["bytes"].sum()


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (op("addmm", ((7,), (5, 3), (3, 7)), 2 * 5 * 3 * 7), "product"),
        (op("bmm", ((2, 5, 3), (2, 3, 7)), 2 * 2 * 5 * 3 * 7), "batched product"),
        (op("_efficient_attention", ((2, 3, 4), (2, 3, 4)), 99), UNPROVEN),
        (op("mkldnn_rnn_layer", (), 99), UNPROVEN),
        (op("convolution", ((1, 8, 4, 4), (8, 1, 3, 3)), 2 * 8 * 16 * 9), "depthwise"),
        (op("convolution", ((1, 8, 4, 4), (8, 4, 3, 3)), 2 * 8 * 16 * 4 * 9), UNPROVEN),
        (op("_softmax"), "softmax"),
        (op("native_batch_norm"), "batch norm"),
        (op("_fused_sgd_", phase="optimizer"), "optimizer"),
        (op("relu_"), "elementwise"),
    ],
)
def test_the_kind_of_an_op(given, kind):
    assert [KINDS[one] for one in kernels_of([given])["kind"]] == [kind]


def test_the_backward_pass_of_softmax_has_a_product_of_its_own():
    """CUDA's multiplies gradient and result before the softmax: as many bytes again."""
    both = kernels_of([op("_softmax_backward_data", phase="backward", moved=300)])
    assert [KINDS[kind] for kind in both["kind"]] == ["softmax", "elementwise"]
    assert both["bytes"].tolist() == [300, 300]


def test_what_a_datasheet_promises_and_large_ops_reach():
    """An L4 has 72 W for 30.3 TFLOP/s in 4 nm, where 1.2 W for each and nm would be 145 W."""
    rows = {name: row for row in datasheet_peaks() for name in row.names}
    known = {"compute": 0.9, "many_lanes": 0.8, "w_per_tflop_nm": 1.2, "memory": 1,
             "inline_ecc": 0.9, "w_per_tensor_tflop_nm": 0.25}  # fmt: skip
    reach = {name: datasheet_reach(rows[name], known) for name in ("a30", "h200", "l4", "tesla t4")}
    short_l4, short_t4 = 72 / (1.2 * 30.3 * 4), 70 / (1.2 * 8.1 * 12)
    expected = [0.9, 0.72, 0.72 * short_l4, 0.9 * short_t4]
    assert [found[0] for found in reach.values()] == pytest.approx(expected)
    assert [found[1] for found in reach.values()] == [1, 1, 0.9, 0.9]  # HBM, and GDDR with ECC
    # Tensor cores have no lanes, and take less power: twice as much for twice the bits.
    assert datasheet_reach(rows["a30"], known, "bf16")[0] == pytest.approx(0.9 * 165 / 288.75)
    short_l4 = 72 / (0.25 * 121 * 4), 72 / (0.25 * 2 * 60 * 4)
    found = [datasheet_reach(rows["l4"], known, mode)[0] for mode in ("bf16", "tf32")]
    assert found == pytest.approx([0.9 * short for short in short_l4])


def test_fast_tensor_cores_wait_for_operands():
    """512 x 2 bytes for 2 x 256 x 256 FLOP at 54 GB/s take as long as at 6.9 TFLOP/s."""
    sizes = (1, 2560, 256, 1000)  # a tile for each of ten processors
    alone_s = 2 * np.prod(sizes) / 69.12e12
    fast = {"flops_per_s": 69.12e12, "peak_flops_per_s": 69.12e12, "mode": "bf16"}
    assert time_of("product", sizes, on=chip(**fast)) == pytest.approx(2 ** (1 / 4) * alone_s)
    slow = {**fast, "flops_per_s": TERA}
    assert time_of("product", sizes, on=chip(**slow)) == pytest.approx(69.12 * alone_s, rel=1e-3)


def test_kernels_of_tensor_cores_take_nhwc():
    """From NCHW all tensors are read and written once more; groups have kernels in NHWC or none."""
    dense = op("convolution", ((1, 8, 4, 4), (8, 8, 3, 3)), 2 * 8 * 16 * 8 * 9, moved=500)
    moved = {nhwc: kernels_of([dense], nhwc)["bytes"].tolist() for nhwc in (None, True, False)}
    assert moved == {None: [500], True: [500], False: [500, 1000]}

    def times_flops(channels, depth, nhwc=True):
        flops = 2 * channels * 16 * depth * 9
        grouped = op("convolution", ((1, channels, 4, 4), (channels, depth, 3, 3)), flops)
        return kernels_of([grouped], nhwc)["flops"][0] / flops

    assert [times_flops(128, 4), times_flops(96, 32), times_flops(128, 16)] == [1, 1, 1]
    assert [times_flops(128, 64), times_flops(48, 16), times_flops(72, 24)] == [2, 2, 2]
    assert times_flops(128, 64, nhwc=None) == times_flops(128, 64, nhwc=False) == 1


def test_batched_products_have_one_tile_by_generation():
    """64 columns fill half of a tile of 128, and all of one of 64."""
    batched = (10, 128, 64, 100)
    tile_s = {tile: time_of("batched product", batched, on=chip(batched_tile=tile))
              for tile in map(batched_tile, (6.1, 7.5, 8.0, 9.0, None))}  # fmt: skip
    area_s = 2 * 100 / 0.1e12
    assert tile_s == pytest.approx(
        {(64, 128): 2 * 64 * 128 * area_s, (64, 64): 2 * 64 * 64 * area_s,
         (128, 128): 128 * 128 * area_s}
    )  # fmt: skip
    # Other products have the fastest one, and a batch is not split.
    single = time_of("product", (1, 1280, 64, 100), on=chip(batched_tile=(128, 128)))
    assert single == pytest.approx(2 * 64 * 64 * area_s)
    long = (1, 128, 128, 6400), (2, 128, 128, 6400)
    one, two = (time_of("product", sizes, on=chip(80)) for sizes in long)
    assert two > 3 * one


def test_the_fitted_numbers_are_whole_and_have_a_source():
    found = shares()
    assert json.loads((files("analysis.roofs") / "data" / "shares.json").read_text()) == found
    assert found["source"]
    numbers = [*found["shares"].values(), *found["errors"].values(), *found["quantiles"].values()]
    assert min(numbers) > 0
    assert found["quantiles"]["50"] < found["quantiles"]["90"]
    assert 0 <= found["carried"] <= 1
    assert found["shares"]["compute"] < 1 > found["shares"]["memory"]
