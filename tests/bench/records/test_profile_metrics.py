"""A profile's metrics by hand: 1 GFLOP algorithmic, 0.05 GB fused."""

import pytest
import samples

from bench.config import RunConfig
from bench.records.verdict.record_metrics import profile_summary, step_cost


def test_counted_bytes_give_intensity_and_amplification():
    counters = samples.counters(samples.kernel(dram_bytes=2 * 10**8, flops=3 * 10**9))
    found = profile_summary(samples.profile_record(counters=counters))
    assert found["counted_dram_gb"] == pytest.approx(0.2)
    assert found["executed_gflop"] == pytest.approx(3)
    assert found["intensity_counted"] == 5  # algorithmic FLOP, not executed ones
    assert found["traffic_amplification"] == 4


def test_a_step_of_several_batches_counts_them_all():
    found = profile_summary(samples.profile_record(config=RunConfig(grad_accum_steps=3)))
    assert found["intensity_counted"] == 60  # 3 GFLOP over 0.05 GB
    assert found["traffic_amplification"] == pytest.approx(1 / 3)


def test_the_optimizer_runs_once_for_all_batches():
    forward, optimizer = (
        samples.OpCost(
            op="op",
            phase=phase,
            calls=1,
            flops=0,
            elementwise_flops=0,
            eager_bytes=eager,
            fused_bytes=fused,
        )
        for phase, eager, fused in (("forward", 70, 40), ("optimizer", 30, 10))
    )
    model = samples.complexity(
        step_flops=7, eager_bytes=100, fused_bytes=50, compulsory_bytes=20, ops=(forward, optimizer)
    )
    cost = step_cost(model, 3)
    assert (cost.flops, cost.eager_bytes, cost.fused_bytes) == (21, 240, 130)
    assert cost.compulsory_bytes == 20


def test_processor_counters_give_ratios_and_executed_flop_per_step():
    cpu = samples.cpu_counters(flops=2 * 10**10, dram_bytes=10**12)
    found = profile_summary(samples.profile_record(counters=None, ops=None, cpu_counters=cpu))
    assert found == {
        "ipc": 1.5,
        "cpi": pytest.approx(2 / 3),
        "cache_miss_share": 0.1,
        "branch_miss_share": 0.01,
        "executed_gflop": 2,
    }  # its DRAM bytes are the whole machine's


def test_ops_give_busy_and_matched_shares():
    ops = samples.op_profile(
        samples.op_time(time_s=0.03),
        samples.op_time("view", time_s=0.01, flops=None),
        device_busy_share=0.8,
    )
    found = profile_summary(samples.profile_record(counters=None, ops=ops))
    assert found == {"ops_matched_share": 0.75, "device_busy_share": 0.8}


def test_what_is_unknown_is_left_out():
    record = samples.profile_record(counters=None, ops=None, complexity=None)
    assert profile_summary(record) == {}
    idle = samples.cpu_counters(cycles=0, cache_references=0, branches=0, iterations=0, flops=5)
    record = samples.profile_record(counters=None, ops=None, cpu_counters=idle)
    assert profile_summary(record) == {"cpi": 0.0}
    nothing = samples.counters(samples.kernel(dram_bytes=0))
    found = profile_summary(samples.profile_record(counters=nothing, ops=None))
    assert found == {"counted_dram_gb": 0.0, "executed_gflop": 1.0}
