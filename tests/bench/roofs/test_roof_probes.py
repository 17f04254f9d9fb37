"""What a launch is counted as, and on what data it runs."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.roofs import PLANS, compute_probes
from bench.roofs.roof_probes import (
    ONE_WAY,
    array_sizes,
    convolution_probe,
    linear_probe,
    product_probe,
    stream_probes,
)
from bench.training.devices import open_device

MIB = 2**20
CPU = torch.device("cpu")


class Seen(TorchDispatchMode):
    """Keeps the operands of the operations launched under it."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append((func.overloadpacket.__name__, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def operands(probe):
    launch = probe.prepare()
    with Seen() as seen:
        launch()
    return seen.calls


def test_a_convolutions_flops_worked_by_hand():
    # 2 images of 3 channels, 4x4, to 5 filters of 3x3: 2 x 5 x 16 = 160 outputs, each the sum of
    # 3 x 9 = 27 products: 4320 MAC = 8640 FLOP.
    for channels_last in (True, False):
        probe = convolution_probe((2, 3, 4, 5), "fp32", CPU, channels_last)
        assert probe.work_per_launch == 8640
        assert probe.operand_bytes == 4 * (2 * 16 * (3 + 5) + 5 * 3 * 9)
        assert probe.prepare()().shape == (2, 5, 4, 4)
        assert probe.math_mode == "fp32"
        layout = torch.channels_last if channels_last else torch.contiguous_format
        [(_, args, _)] = operands(probe)
        assert all(operand.is_contiguous(memory_format=layout) for operand in args[:2])
    assert probe.name == "conv fp32 3x3 2x3x4x4 to 5 NCHW"
    if torch.backends.mkldnn.is_available():  # oneDNN's product
        linear = linear_probe((3, 4, 5, "NT"))
        result = linear.prepare()()
        assert (result.is_mkldnn, result.shape, linear.work_per_launch) == (True, (3, 4), 120)


@pytest.mark.parametrize(
    ("layout", "strides"),
    [("NN", [(5, 1), (4, 1)]), ("NT", [(5, 1), (1, 5)]), ("TN", [(1, 3), (4, 1)])],
)
def test_layouts_are_how_the_operands_lie_in_memory(layout, strides):
    probe = product_probe((3, 4, 5, layout), "bf16", CPU)
    [(name, args, kwargs)] = operands(probe)
    assert name == "mm"
    assert [operand.stride() for operand in args] == strides
    assert kwargs["out"].shape == (3, 4)
    assert {operand.dtype for operand in (*args, kwargs["out"])} == {torch.bfloat16}
    assert probe.name == f"matmul bf16 3x4x5 {layout}"
    # 3x4 results, each the sum of 5 products: 12 x 5 multiply-adds = 60 MAC = 120 FLOP.
    assert probe.work_per_launch == 120
    assert probe.operand_bytes == 2 * (15 + 20 + 12)


def test_no_operand_holds_zeros():
    probes = [
        product_probe((64, 64, 64, "TN"), "fp32", CPU),
        convolution_probe((2, 8, 8, 8), "bf16", CPU, True),
        *stream_probes([4 * MIB], CPU),
    ]
    for probe in probes:
        for _, args, _ in operands(probe):
            for operand in (each for each in args if isinstance(each, torch.Tensor)):
                assert (operand == 0).float().mean() < 0.001, probe.name
                assert operand.float().std() > 0.5, probe.name


def test_streams_count_each_array_read_and_each_written_once():
    probes = [*stream_probes([4 * MIB], CPU), *stream_probes([4 * MIB], CPU, ONE_WAY)]
    kinds = ("copy", "triad", "update", "read", "write")
    assert [each.name for each in probes] == [f"{kind} 4 MiB" for kind in kinds]
    assert {each.math_mode for each in probes} == {None}
    for probe, moved in zip(probes, (2, 3, 3, 1, 1), strict=True):
        assert probe.work_per_launch == moved * 4 * MIB
        [(_, args, kwargs)] = operands(probe)
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        assert {tensor.numel() * 4 for tensor in tensors} == {4 * MIB}
        # An array that is updated is read and written: it appears once and counts twice.
        in_place = probe.name.startswith("update")
        assert len({tensor.data_ptr() for tensor in tensors}) + in_place == moved
    small, _, _, large, *_ = stream_probes([4 * MIB, 8 * MIB], CPU)  # which share their arrays
    addresses = [operands(each)[0][1][0].data_ptr() for each in (small, large)]
    assert addresses[0] == addresses[1]


@pytest.mark.parametrize(
    ("cache_bytes", "steps", "free_bytes", "sizes_mib"),
    [
        (60 * MIB, (1, 4), 2**40, (240, 960)),  # four times the last-level cache
        (33 * MIB + 1, (1,), 2**40, (136,)),  # rounded up to whole blocks
        (4 * MIB, (1,), 2**40, (128,)),  # whatever the cache
        (None, (1,), 2**40, (512,)),
        (None, (1,), 4 * 3 * 512 * MIB - 1, ()),  # a quarter of free memory for three arrays
        (32 * MIB, (1, 2, 4), 4 * 3 * 256 * MIB, (128, 256)),
    ],
)
def test_sizes_of_arrays(cache_bytes, steps, free_bytes, sizes_mib):
    sizes = array_sizes(cache_bytes, steps, free_bytes)
    assert sizes == tuple(size * MIB for size in sizes_mib)


@pytest.mark.parametrize("backend", PLANS)
def test_every_plan_holds_products_of_each_layout_and_convolutions(backend):
    plan = PLANS[backend]
    assert {layout for *_, layout in plan.products} == {"NN", "NT", "TN"}
    assert any(m >= 16 * n for m, n, *_ in plan.products)
    assert plan.convolutions


@pytest.mark.parametrize(
    ("mode", "there", "takes_part"),
    [("fp32", True, True), ("fp32", False, False), ("bf16", True, False)],
)
def test_probes_of_a_mode_come_by_their_work_and_onednn_sets_the_fp32_roof_of_a_cpu_too(
    monkeypatch, mode, there, takes_part
):
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: there)
    probes = compute_probes(open_device("cpu"), PLANS["cpu"], mode)
    work = [probe.work_per_launch for probe in probes]
    assert work == sorted(work)
    assert {probe.math_mode for probe in probes} == {mode}
    assert any("oneDNN" in probe.name for probe in probes) is takes_part
