"""Where ops and kernels stand, worked by hand, what kernels are called, and impossible rates."""

import factories as make
import pytest
import samples

from analysis.profiles import (
    check_counters,
    check_ops,
    place_kernels,
    place_ops,
    short_kernel_name,
    shortened,
    time_share,
)
from analysis.roofs import Roof

ROOF = Roof(200e9, 50e9)

#: 0.1 s: 1 GFLOP at 10 FLOP per eager byte, 20 per fused one.
CONV = samples.op_time("convolution 1x1", "forward", 0.1)
NORM = samples.op_time(
    "batch_norm", "backward", 0.05, flops=0, elementwise_flops=10**8, eager_bytes=2 * 10**9
)
COPY = samples.op_time("copy", "forward", 0.03, flops=0, elementwise_flops=0)
RELU = samples.op_time(
    "relu", None, 0.01, flops=0, elementwise_flops=10**8, eager_bytes=10**9, fused_bytes=0
)
VIEW = samples.op_time(
    "view", flops=None, elementwise_flops=None, eager_bytes=None, fused_bytes=None,
    why_missing="a view",
)  # fmt: skip


def places(*ops, roof=ROOF):
    return place_ops(samples.op_profile(*ops).ops, roof)


NOWHERE = {"kind": None, "flops_per_s": None, "intensity_min": None}


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (CONV, {"kind": "algorithmic", "rank": 1, "share": 1, "flops_per_s": 1e10,
                "intensity_min": 10, "intensity_max": 20, "name": "convolution 1x1 forward",
                "why_no_place": None}),
        # without algorithmic FLOP it stands by its elementwise ones, which else do not count
        (NORM, {"kind": "elementwise", "intensity_min": 0.05, "flops_per_s": 2e9}),
        (samples.op_time("linear", elementwise_flops=10**12),  # 1 GFLOP in 10 ms
         {"kind": "algorithmic", "flops_per_s": 1e11}),
        # one that vanishes when fused has no upper end, and a graph does not tell its phases
        (RELU, {"intensity_min": 0.1, "intensity_max": None, "part": "whole step"}),
        (COPY, NOWHERE | {"why_no_place": "no FLOP"}),
        (samples.op_time(time_s=0.0), NOWHERE | {"why_no_place": "no time", "share": 0}),
        (samples.op_time(eager_bytes=0, fused_bytes=0), NOWHERE | {"why_no_place": "no bytes"}),
        (VIEW, NOWHERE | {"why_no_place": "a view", "share": 1}),
    ],
)  # fmt: skip
def test_an_op_by_hand_or_why_it_has_no_place(op, expected):
    (found,) = places(op)
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected)


def test_ops_are_ranked_by_time_and_shares_sum_to_one():
    found = places(VIEW, COPY, NORM, CONV, RELU)
    assert [op.time.label for op in found][:3] == ["convolution 1x1", "batch_norm", "copy"]
    assert [op.rank for op in found] == [1, 2, 3, 4, 5]
    assert sum(op.share for op in found) == pytest.approx(1)
    assert [op.time.label for op in found.placed] == ["convolution 1x1", "batch_norm", "relu"]
    shares = (time_share(found.without_flops), time_share(found.unknown))
    assert shares == pytest.approx((0.15, 0.05))
    assert [op.why_no_place for op in found.unknown] == ["a view"]


@pytest.mark.parametrize(
    ("label", "kind", "skipped"),
    [
        ("depthwise convolution 3x3", "algorithmic", "Winograd"),
        ("attention", "algorithmic", "a causal mask"),
        ("linear", "algorithmic", None),
        ("batch_norm", "elementwise", None),
    ],
)
def test_only_kernels_that_may_execute_fewer_flop_are_said_to(label, kind, skipped):
    counts = {"flops": 0} | {"flops" if kind == "algorithmic" else "elementwise_flops": 10**12}
    (finding,) = check_ops(places(samples.op_time(label, time_s=1.0, **counts)), ROOF)
    assert (finding.code, finding.level) == ("op-above-compute-roof", "suspect")
    expected = {"op": f"{label} forward", "percent": 500, "kind": kind}
    assert finding.facts == expected | ({"skipped": skipped} if skipped else {})


@pytest.mark.parametrize(
    ("share", "of_peak", "skipped", "found"),
    [
        (0.5, 1.035, 0, 1),
        (0.005, 1.035, 0, 0),  # too short to be sure of
        (1, 1.025, 0, 0),
        (1, 1.05, 0.475, 0),  # what a causal mask skips is not held against the roof
    ],
)
def test_an_op_above_the_compute_roof_is_suspect_if_it_is_long_enough(
    share, of_peak, skipped, found
):
    flops = int(share * of_peak * 200e9)
    skip = {"causal_skipped_flops": int(skipped * 200e9)}
    fast = samples.op_time("attention", time_s=share, flops=flops, **skip)
    placed = places(fast, samples.op_time("slow", time_s=1 - share))
    assert placed[placed[0].time.label == "slow"].flops_per_s == pytest.approx(
        of_peak * 200e9
    )  # by definition, the whole
    assert len(check_ops(placed, ROOF)) == found


def test_a_kernel_by_hand():
    (kernel,) = place_kernels(samples.counters())
    assert kernel.flops_per_s == 1e11
    assert kernel.intensities == {"L1": 5, "L2": 10, "DRAM": 20}
    assert (kernel.rank, kernel.share, kernel.name) == (1, 1, "sgemm")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("sgemm", "sgemm"),
        ("cudnn::bn_fw_tr_1C11_kernel_NCHW<float,int,512,true>", "bn_fw_tr_1C11_kernel_NCHW"),
        (
            "at::native::vectorized_elementwise_kernel<4,at::native::CUDAFunctor_add<float>,"
            "std::array<char*,3ul>>",
            "vectorized_elementwise CUDAFunctor_add",
        ),
        (
            "at::native::vectorized_elementwise_kernel<4,at::native::BinaryFunctor<float,float,"
            "float,at::native::binary_internal::MulFunctor<float>>,std::array<char*,3ul>>",
            "vectorized_elementwise MulFunctor",
        ),
        (
            "at::native::elementwise_kernel<128,2,at::native::gpu_kernel_impl_nocast<at::native::"
            "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>>",
            "elementwise direct_copy",
        ),
        ("cutlass::Kernel2<cutlass_80_s1688gemm_nn_align4>", "cutlass_80_s1688gemm_nn_align4"),
        ("cutlass::Kernel<cutlass::gemm::foo<3>>", "foo"),
        ("a" * 50, "a" * 20 + "…" + "a" * 19),
        ("<odd>", "<odd>"),
        ("", ""),
    ],
)
def test_kernels_have_short_names(name, short):
    assert short_kernel_name(name) == short
    # and none is longer than asked for
    name = f"{'f' * 90}<{'g' * 90}Functor<int>>"
    assert len(short_kernel_name(name)) == 40
    assert len(short_kernel_name(name, 20)) == 20
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abc…fg"


# Counted rates above a ceiling: 100 GB/s of L2 where it was measured


L2 = make.cache_roof("L2", 100e9)


def codes(*kernels, caches=(), step_s=None):
    found = check_counters(samples.counters(*kernels), ROOF, caches, step_s)
    return [finding.code for finding in found]


def kernel(name="k", **changes):
    """10 ms at 50 % of each roof."""
    known = {"flops": 10**9, "dram_bytes": 25 * 10**7, "l2_bytes": 5 * 10**8, "l1_bytes": 10**9}
    return samples.kernel(name, 0.01, **{**known, **changes})


BEYOND = {"flops": int(1.2 * 2 * 10**9), "dram_bytes": int(1.1 * 5 * 10**8)}
FAST = {"l2_bytes": 10**12, "l1_bytes": 10**12}


@pytest.mark.parametrize(
    ("field", "at_roof", "code", "percent"),
    [
        ("flops", 2 * 10**9, "kernel-above-compute-roof", None),
        ("dram_bytes", 5 * 10**8, "kernel-above-memory-roof", None),
        # that of a cache is of reading: up to twice of it can be
        ("l2_bytes", 10**9, "kernel-above-L2-roof", 205),
    ],
)
def test_a_kernel_past_103_percent_of_a_ceiling(field, at_roof, code, percent):
    def found(percent):
        counted = samples.counters(kernel(**{field: int(percent / 100 * at_roof)}))
        return [(one.code, one.level) for one in check_counters(counted, ROOF, [L2], None)]

    assert found(102.9) == []
    assert found(103.1) == [(code, "suspect" if percent else "invalid")]
    if percent is not None:
        assert found(percent) == [(code, "suspect")]
    assert found(207) == [(code, "invalid")]


@pytest.mark.parametrize(
    ("one", "caches", "step_s", "expected"),
    [
        (kernel(), [L2], 0.01, []),
        (kernel(**BEYOND), [], None, ["kernel-above-compute-roof", "kernel-above-memory-roof"]),
        (kernel(**FAST), [], None, []),
        (kernel(**FAST), [make.cache_roof("L2", None)], None, []),
        (kernel(**FAST), [make.cache_roof("L3", 1.0)], None, []),  # no counter of a GPU is of it
        (samples.facts(samples.KernelTotals, name="k", launches=1, flops=10**15), [], None, []),
        (samples.kernel("k", 0.0, flops=10**15), [], None, []),  # no duration
        # the step is held to the timed run's: 0.25 GB in 4 ms are 62.5 GB/s
        (kernel(), [], 0.004, ["step-above-compute-roof", "step-above-memory-roof"]),
    ],
)
def test_what_is_counted_is_held_against_every_ceiling_there_is(one, caches, step_s, expected):
    assert codes(one, caches=caches, step_s=step_s) == expected


def test_the_worst_kernel_is_named_and_the_others_counted():
    # reading alone and a burst are no faults
    counted = samples.counters(kernel(**BEYOND))
    roof = Roof(200e9, 50e9, burst_flops_per_s=240e9, one_way_bytes_per_s=55e9)
    assert check_counters(counted, roof, (), None) == ()
    assert check_counters(counted, roof.of_several(2), (), None) == ()
    kernels = [
        kernel("void at::f<int>(float*)", dram_bytes=6 * 10**8),
        kernel("worst<float>", dram_bytes=10**9),
        kernel("fine"),
    ]
    (finding,) = check_counters(samples.counters(*kernels), ROOF, (), None)
    assert finding.level == "invalid"
    named = {name: finding.facts[name] for name in ("kernel", "number", "percent", "ceiling")}
    assert named == {"kernel": "worst", "number": 2, "percent": 200, "ceiling": "memory"}
