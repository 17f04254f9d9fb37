"""Where ops and kernels stand, worked by hand, what kernels are called, and impossible rates."""

import factories as make
import pytest
import samples

from analysis.profiles.kernel_places import place_kernels, short_kernel_name, shortened
from analysis.profiles.op_places import check_ops, place_ops
from analysis.profiles.profiled_step import check_counters
from analysis.roofs.roof import Roof

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
    return place_ops(samples.op_profile(*ops), roof)


def test_ops_by_hand():
    (op,) = places(CONV).ops
    assert (op.kind, op.rank, op.share) == ("algorithmic", 1, 1)
    assert op.flops_per_s == 1e10
    assert (op.intensity_min, op.intensity_max) == (10, 20)
    assert op.name == "convolution 1x1 forward"
    assert op.why_no_place is None
    # without algorithmic FLOP it stands by its elementwise ones, which else do not count
    (norm,) = places(NORM).ops
    assert (norm.kind, norm.intensity_min) == ("elementwise", 0.05)
    assert norm.flops_per_s == pytest.approx(2e9)
    (linear,) = places(samples.op_time("linear", elementwise_flops=10**12)).ops
    assert (linear.kind, linear.flops_per_s) == ("algorithmic", 1e11)  # 1 GFLOP in 10 ms
    # one that vanishes when fused has no upper end, and a graph does not tell its phases
    (relu,) = places(RELU).ops
    assert (relu.intensity_min, relu.intensity_max, relu.part) == (0.1, None, "whole step")


def test_ops_are_ranked_by_time_and_shares_sum_to_one():
    found = places(VIEW, COPY, NORM, CONV, RELU)
    assert [op.time.label for op in found.ops][:3] == ["convolution 1x1", "batch_norm", "copy"]
    assert [op.rank for op in found.ops] == [1, 2, 3, 4, 5]
    assert sum(op.share for op in found.ops) == pytest.approx(1)
    assert [op.time.label for op in found.placed] == ["convolution 1x1", "batch_norm", "relu"]
    assert found.without_flops_share == pytest.approx(0.15)
    assert found.unmatched_share == pytest.approx(0.05)
    assert [op.why_no_place for op in found.unmatched] == ["a view"]


def test_an_op_faster_than_dram_came_from_a_cache_and_is_no_fault():
    # 1 GB in 10 ms is 100 GB/s, twice the roof; 2 GB in 50 ms is 40 GB/s.
    found = places(RELU, NORM)
    assert [op.from_cache for op in found.ops] == [False, True]
    assert check_ops(found, ROOF) == ()
    assert places(RELU, roof=None).ops[0].from_cache is None


def test_an_op_above_the_compute_roof_is_suspect_if_it_is_long_enough():
    def fast(share):
        return samples.op_time("conv", time_s=share, flops=int(share * 207e9))

    def slow(share):
        return samples.op_time("slow", time_s=1 - share)

    (finding,) = check_ops(places(fast(0.5), slow(0.5)), ROOF)
    assert (finding.code, finding.level) == ("op-above-compute-roof", "suspect")
    assert finding.message.startswith("conv forward: 104 % of the compute ceiling")
    assert check_ops(places(fast(0.005), slow(0.005)), ROOF) == ()
    assert check_ops(places(samples.op_time(time_s=1.0, flops=205 * 10**9)), ROOF) == ()


@pytest.mark.parametrize(
    ("label", "counts", "reason"),
    [
        (
            "depthwise convolution 3x3",
            {"flops": 10**12},
            "by its algorithmic FLOP; fewer were executed (Winograd), or its time",
        ),
        (
            "attention",
            {"flops": 10**12},
            "by its algorithmic FLOP; fewer were executed (a causal mask), or its time",
        ),
        ("linear", {"flops": 10**12}, "by its algorithmic FLOP; its time"),
        (
            "batch_norm",
            {"flops": 0, "elementwise_flops": 10**12},
            "by its elementwise FLOP; its time",
        ),
    ],
)
def test_only_kernels_that_may_execute_fewer_flop_are_said_to(label, counts, reason):
    op = samples.op_time(label, time_s=1.0, **counts)
    (finding,) = check_ops(places(op), ROOF)
    assert finding.message == (
        f"{label} forward: 500 % of the compute ceiling {reason} or the ceiling is wrong"
    )


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (COPY, "no FLOP"),
        (samples.op_time(time_s=0.0), "no time"),
        (samples.op_time(eager_bytes=0, fused_bytes=0), "no bytes"),
        (VIEW, "a view"),
    ],
)
def test_an_op_without_a_place_says_why(op, why):
    (found,) = places(op).ops
    assert found.why_no_place == why
    assert found.kind is found.flops_per_s is found.intensity_min is None
    assert found.share in (0, 1)


def test_a_kernel_by_hand():
    (kernel,) = place_kernels(samples.counters()).kernels
    assert kernel.flops_per_s == 1e11
    assert kernel.intensities == {"L1": 5, "L2": 10, "DRAM": 20}
    assert (kernel.rank, kernel.share, kernel.name) == (1, 1, "sgemm")


def test_kernels_without_flop_or_unknown_have_no_place_but_their_time_counts():
    unknown = samples.kernel("u", 0.02, flops=None)
    timeless = samples.kernel("t", None)
    found = place_kernels(
        samples.counters(
            timeless, unknown, samples.kernel("copy", 0.04, flops=0), samples.kernel("g", 0.14)
        )
    )
    assert [kernel.name for kernel in found.kernels] == ["g", "copy", "u", "t"]
    assert [kernel.name for kernel in found.placed] == ["g"]
    assert found.without_flops_share == pytest.approx(0.2)
    assert [kernel.name for kernel in found.without_flops] == ["copy"]
    assert [kernel.name for kernel in found.unknown] == ["u", "t"]
    assert found.kernels[3].share is None
    # a level that was not counted or moved nothing has no point
    partial = samples.kernel(flops=100, l1_bytes=None, l2_bytes=10, dram_bytes=0)
    (kernel,) = place_kernels(samples.counters(partial)).kernels
    assert kernel.intensities == {"L2": 10}
    nowhere = samples.kernel(l1_bytes=None, l2_bytes=None, dram_bytes=0)
    assert place_kernels(samples.counters(nowhere)).placed == ()


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


@pytest.mark.parametrize(
    ("field", "at_roof", "code"),
    [
        ("flops", 2 * 10**9, "kernel-above-compute-roof"),
        ("dram_bytes", 5 * 10**8, "kernel-above-memory-roof"),
        ("l2_bytes", 10**9, "kernel-above-L2-roof"),
    ],
)
def test_a_kernel_past_103_percent_of_a_ceiling(field, at_roof, code):
    assert codes(kernel(**{field: int(1.029 * at_roof)}), caches=[L2]) == []
    assert codes(kernel(**{field: int(1.031 * at_roof)}), caches=[L2]) == [code]


def test_reading_alone_and_a_burst_are_no_faults_of_a_kernel():
    beyond = kernel(flops=int(1.2 * 2 * 10**9), dram_bytes=int(1.1 * 5 * 10**8))
    assert codes(beyond) == ["kernel-above-compute-roof", "kernel-above-memory-roof"]
    roof = Roof(200e9, 50e9, burst_flops_per_s=240e9, one_way_bytes_per_s=55e9)
    assert check_counters(samples.counters(beyond), roof, (), None) == ()
    assert check_counters(samples.counters(beyond), roof.of_several(2), (), None) == ()


def test_below_every_ceiling_and_without_one_there_is_nothing_to_say():
    assert codes(kernel(), caches=[L2], step_s=0.01) == []
    fast = kernel(l2_bytes=10**12, l1_bytes=10**12)
    assert codes(fast) == []
    assert codes(fast, caches=[make.cache_roof("L2", None)]) == []
    l3 = make.cache_roof("L3", 1.0)  # no counter of a GPU is of it
    assert codes(fast, caches=[l3]) == []
    unknown = samples.facts(
        samples.KernelTotals, name="k", launches=1, flops=10**15, dram_bytes=10**15
    )
    assert codes(unknown) == []  # no duration
    assert codes(samples.kernel("k", 0.0, flops=10**15)) == []


def test_the_step_is_held_to_the_timed_runs_duration():
    # 0.25 GB in 4 ms are 62.5 GB/s; its own kernel took 10 ms.
    assert codes(kernel(), step_s=0.004) == ["step-above-compute-roof", "step-above-memory-roof"]
    assert codes(kernel(), step_s=None) == []


def test_the_worst_kernel_is_named_and_the_others_counted():
    kernels = [
        kernel("void at::f<int>(float*)", dram_bytes=6 * 10**8),
        kernel("worst<float>", dram_bytes=10**9),
        kernel("fine"),
    ]
    (finding,) = check_counters(samples.counters(*kernels), ROOF, (), None)
    assert finding.level == "invalid"
    assert finding.message == (
        "kernel worst, the first of 2 above it, at 200 % of the memory ceiling: impossible; "
        "the counters or the ceiling are wrong"
    )


def test_a_caches_roof_is_of_reading_so_up_to_twice_of_it_is_only_suspect():
    def level(share):
        fast = kernel("k", l2_bytes=int(share * 10**9))
        (finding,) = check_counters(samples.counters(fast), ROOF, [L2], None)
        return finding.level

    assert (level(1.04), level(2.05)) == ("suspect", "suspect")
    assert level(2.07) == "invalid"


@pytest.mark.parametrize(("skipped", "level"), [(0, ["suspect"]), (95 * 10**9, [])])
def test_attention_under_a_causal_mask_is_held_against_what_it_computes(skipped, level):
    op = samples.op_time(
        "attention", time_s=1.0, flops=2 * 10**11 + 10**10, causal_skipped_flops=skipped
    )
    found = places(op)
    assert found.placed[0].flops_per_s == 2.1e11  # by definition, the whole
    assert [finding.level for finding in check_ops(found, ROOF)] == level
