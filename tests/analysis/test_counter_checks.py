"""Rates above a ceiling: 200 GFLOP/s, 50 GB/s, and 100 GB/s of L2 where it was measured."""

import factories as make
import pytest
import samples

from analysis.profiles.profiled_step import check_counters
from analysis.roofs.roof import Roof

ROOF = Roof(200e9, 50e9)
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
