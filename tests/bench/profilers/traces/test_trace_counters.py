"""Counters inside a trace are added up as ncu's are, and what they do not give is said."""

import pytest
from trace_files import ALEXNET, event, published, read

from bench.errors import UserError
from bench.profilers.ncu.metrics import DRAM, DURATION, sass_metric, sass_ops, tensor_metrics
from bench.profilers.traces import read_counters
from bench.profilers.traces.kineto import counter_totals

A100 = {"id": 0, "name": "A100", "computeMajor": 8, "computeMinor": 0}


def counted(name="k", **fields):
    """One range with these counters."""
    return event("cuda_profiler_range", name=name, tid=0, **fields)


def whole(times=1):
    """Every counter that a total on an A100 is made of: each SASS op twice, each tensor op once."""
    sass = {sass_metric(op): 2 * times for op in sass_ops("ga100")}
    return sass | dict.fromkeys(tensor_metrics("ga100"), times) | {DRAM: 8 * times}


def test_sums_of_a_published_trace_are_exact():
    totals = counter_totals(published(ALEXNET))
    sums = dict.fromkeys(("ffma", "fadd", "fmul", "hfma", "dadd"), 0)
    for (_, metric), (_, total) in totals.metrics.items():
        for op in sums:
            sums[op] += int(total) if metric == sass_metric(op) else 0
    assert sums == {
        "ffma": 39_142_369_720,
        "fadd": 964_651_656,
        "fmul": 430_063_616,
        "hfma": 275_791_872,
        "dadd": 0,
    }
    assert totals.launches.total() == 77


def test_what_a_published_trace_does_not_give_is_none_with_its_reason():
    record = read_counters(published(ALEXNET))
    assert (record.kernels, record.chip, record.files) == (77, "ga100", (ALEXNET,))
    assert (record.dram_bytes, record.flops, record.duration_s) == (None, None, None)
    assert "dram__bytes" in record.missing["dram_bytes"]
    assert "sm__ops_path_tensor" in record.missing["flops"]
    assert "splits one span evenly" in record.missing["duration_s"]
    assert all(row.flops is None for row in record.per_kernel)
    nameless = [row for row in record.per_kernel if row.name == "(no name in the trace)"]
    assert [row.launches for row in nameless] == [1]


def test_whole_counters_make_whole_figures(tmp_path):
    ranges = [counted(args=whole()), counted(args=whole(10)), counted("other", args=whole())]
    record = read_counters(read(tmp_path, *ranges, deviceProperties=[A100]))
    # Three widths of 1 + 1 + 2 FLOP, each counted twice, and five kinds of tensor work.
    assert record.flops == 12 * (3 * 4 * 2 + 5)
    assert record.dram_bytes == 12 * 8
    assert record.intensity_dram == record.flops / record.dram_bytes
    assert {row.name: row.launches for row in record.per_kernel} == {"k": 2, "other": 1}


@pytest.mark.parametrize("value", ["n/a", -1, float("nan"), [], True, 10**30])
def test_a_counter_without_a_value_is_told_and_no_zero(tmp_path, value):
    ranges = [counted(args=whole()), counted(args=whole() | {DRAM: value})]
    record = read_counters(read(tmp_path, *ranges, deviceProperties=[A100]))
    assert record.dram_bytes is None
    assert "no number (n/a, nan) in 1 of 2 launches" in record.missing["dram_bytes"]
    assert record.flops == 2 * (3 * 4 * 2 + 5)


def test_counts_beyond_a_float_stay_exact_and_small_fractions_do_no_harm(tmp_path):
    ranges = [counted(args={DRAM: value}) for value in (2**63 + 1, "4", 5e-324)]
    assert read_counters(read(tmp_path, *ranges)).dram_bytes == 2**63 + 5


def test_devices_of_two_chips_and_a_duration_that_was_counted(tmp_path):
    ranges = [counted(args={DURATION: 1500}, pid=number) for number in range(2)]
    devices = [A100, {"id": 1, "computeMajor": 9, "computeMinor": 0}]
    record = read_counters(read(tmp_path, *ranges, deviceProperties=devices))
    assert record.chip is None
    assert record.missing["chip"] == "not one chip that is known: ga100, gh100"
    assert record.duration_s == 3e-6  # of nanoseconds


def test_a_trace_without_counters_or_with_one_range_over_all_kernels(tmp_path):
    with pytest.raises(UserError, match="holds no counters; count with ncu"):
        read_counters(read(tmp_path, event()))
    with pytest.raises(UserError, match="one range over many kernels"):
        read_counters(read(tmp_path, counted("__profile__", args=whole())))
