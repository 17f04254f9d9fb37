"""Derived statistics against hand-worked numbers and NumPy."""

import numpy as np
import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st

from bench.config import RunConfig
from bench.records.metrics import (
    attained_flops_per_s,
    claimed_work,
    iteration_statistics_ms,
    percentiles,
    profile_summary,
    step_cost,
    summary,
)

times = st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=60)


def test_a_hand_worked_record():
    # 6 iterations of 0.5 s with 8 images and 1 GFLOP each, 12 s of processor time.
    found = summary(samples.run_record(telemetry=samples.telemetry(energy_j=96.0)))
    exact = {
        "throughput_images_per_s": 16.0,
        "pace_samples_per_s": 16.0,
        "pace_half_width": 0.0,
        "first_steady_iteration": 1,
        "iteration_time_ms_mean": 500.0,
        "iteration_time_ms_std": 0.0,
        "window_s": 3.0,
        "iterations": 6,
        "batch_size": 8,
        "parameters": 100,
        "forward_gmac": 0.5,
        "step_gflop": 1.0,
        "step_gb_eager": 0.1,
        "step_gb_fused": 0.05,
        "step_gb_compulsory": 0.01,
        "weights_mb": 0.0004,
        "attained_gflops": 2.0,
        "intensity_min": 10.0,
        "intensity_max": 20.0,
        "max_rss_mb": 1000.0,
        "data_wait_share": 0.0,
        "energy_j_per_image": 2.0,
    }
    assert {name: found[name] for name in exact} == pytest.approx(exact)
    assert isinstance(found["parameters"], int)
    # What is unknown is left out, and not zero.
    assert not {"peak_memory_mb", "communication_share", "compile_time_s"} & found.keys()
    assert summary(samples.failed_record()) == {}


def test_no_rate_holds_a_transient_and_a_disturbed_run_has_two():
    # 5 slow iterations are cut; of the others every third takes 0.8 s
    times_s = [1.0] * 5 + [0.5, 0.5, 0.8] * 12
    measured = samples.measurement(times_s, window_end_clock_s=1000.0 + sum(times_s) + 0.36)
    found = summary(samples.run_record(measurement=measured))
    assert found["first_steady_iteration"] == 6
    assert found["throughput_images_per_s"] == pytest.approx(8 / (0.6 + 0.36 / 36))
    assert found["pace_samples_per_s"] == pytest.approx(16.0)
    assert measured.is_disturbed
    assert found["attained_gflops"] == pytest.approx(2.0)  # by its pace
    steady = samples.measurement([0.5] * 30, window_end_clock_s=1000.0 + 30 * 0.55)
    assert not steady.is_disturbed  # what lies between the iterations is no disturbance
    assert steady.step_s == pytest.approx(0.55)


@pytest.mark.parametrize(
    ("config", "batches"),
    [(RunConfig(grad_accum_steps=2), 2), (RunConfig(devices=3, nodes=2), 6)],
    ids=["accumulated", "of every device"],
)
def test_all_batches_of_an_iteration_count_as_work(config, batches):
    # Each batch of 8 images is 1 GFLOP, and an iteration takes half a second.
    record = samples.run_record(config, measurement=samples.measurement(images=8 * batches))
    assert attained_flops_per_s(record) == pytest.approx(2e9 * batches)
    assert summary(record)["throughput_images_per_s"] == pytest.approx(16.0 * batches)


def test_phases_and_telemetry_give_means_over_the_window():
    phases = {"forward": (0.25, 0.25, 0.25, 0.25, 0.25, 0.1), "optimizer": (0.0,) * 6}
    power = samples.SampledSeries(
        name="gpu_power_w", source="nvml", times_s=(0.0, 0.5, 1.0), values=(100.0, 200.0, 300.0)
    )
    other_rank = power.model_copy(update={"name": "rank1_gpu_power_w"})
    found = summary(
        samples.run_record(
            measurement=samples.measurement(phase_times_s=phases),
            telemetry=samples.telemetry(series=(power, other_rank)),
        )
    )
    assert found["forward_time_s"] == pytest.approx(0.225)
    assert found["optimizer_time_s"] == 0  # measured, unlike the backward pass
    assert found["gpu_power_w_mean"] == 200
    assert not {"backward_time_s", "rank1_gpu_power_w_mean"} & found.keys()


@given(times, st.integers(1, 99))
def test_statistics_are_numpys(values, percent):
    assert percentiles(values, percent) == pytest.approx([np.percentile(values, percent)])
    found = iteration_statistics_ms(values)
    rounding_ms = 1e-9 * max(values)  # a millionth of a millionth of the largest, in ms
    by_numpy_ms = np.std(values, ddof=1) * 1e3
    assert found["iteration_time_ms_std"] == pytest.approx(by_numpy_ms, abs=rounding_ms)
    assert "iteration_time_ms_std" not in iteration_statistics_ms(values[:1])


def test_the_optimizer_runs_once_for_all_batches_and_ops_give_shares():
    known = {"op": "op", "calls": 1, "flops": 0, "elementwise_flops": 0}
    forward = samples.OpCost(**known, phase="forward", eager_bytes=70, fused_bytes=40)
    optimizer = samples.OpCost(**known, phase="optimizer", eager_bytes=30, fused_bytes=10)
    model = samples.complexity(
        step_flops=7, eager_bytes=100, fused_bytes=50, compulsory_bytes=20, ops=(forward, optimizer)
    )
    cost = step_cost(model, 3)
    assert (cost.flops, cost.eager_bytes, cost.fused_bytes) == (21, 240, 130)
    assert cost.compulsory_bytes == 20
    other = samples.op_time("view", time_s=0.01, flops=None)
    ops = samples.op_profile(samples.op_time(time_s=0.03), other, device_busy_share=0.8)
    found = profile_summary(samples.profile_record(counters=None, ops=ops))
    assert found == {"ops_matched_share": 0.75, "device_busy_share": 0.8}


# Profiles: the sample step is 1 GFLOP algorithmic and 0.05 GB fused.


def test_counted_bytes_give_intensity_and_amplification():
    counters = samples.counters(samples.kernel(dram_bytes=2 * 10**8, flops=3 * 10**9))
    found = profile_summary(samples.profile_record(counters=counters))
    assert found["counted_dram_gb"] == pytest.approx(0.2)
    assert found["executed_gflop"] == pytest.approx(3)
    assert found["intensity_counted"] == 5  # algorithmic FLOP, not executed ones
    assert found["traffic_amplification"] == 4
    several = RunConfig(grad_accum_steps=3)
    found = profile_summary(samples.profile_record(counters=counters, config=several))
    assert found["intensity_counted"] == 15
    assert found["traffic_amplification"] == pytest.approx(4 / 3)


def test_processor_counters_give_ratios_and_executed_flop_per_step():
    cpu = samples.cpu_counters(flops=2 * 10**10)
    found = profile_summary(samples.profile_record(counters=None, ops=None, cpu_counters=cpu))
    assert found == {
        "ipc": 1.5,
        "cpi": pytest.approx(2 / 3),
        "cache_miss_share": 0.1,
        "branch_miss_share": 0.01,
        "executed_gflop": 2,
    }  # its DRAM bytes are the whole machine's


def test_what_is_unknown_is_left_out():
    record = samples.profile_record(counters=None, ops=None, complexity=None)
    assert profile_summary(record) == {}
    idle = samples.cpu_counters(cycles=0, cache_references=0, branches=0, iterations=0, flops=5)
    record = samples.profile_record(counters=None, ops=None, cpu_counters=idle)
    assert profile_summary(record) == {"cpi": 0.0}
    nothing = samples.counters(samples.kernel(dram_bytes=0))
    found = profile_summary(samples.profile_record(counters=nothing, ops=None))
    assert found == {"counted_dram_gb": 0.0, "executed_gflop": 1.0}


@pytest.mark.parametrize(
    ("gflop", "counts"),
    [
        (1.0, "all FLOP, masks hide nothing"),
        (0.71, "the required FLOP"),
        (1.25, "what checkpoints compute again, too"),
        (0.5, "multiply-adds as one FLOP"),
        (0.3, "the forward pass alone"),
        (2.0, "a multiply-add as 4 FLOP"),
        (1.1, "none of the usual counts"),
    ],
)
def test_what_a_script_counts_that_claims_this_share_of_a_peak(gflop, counts):
    """A step takes 0.5 s, so at a peak of 10 GFLOP/s a claim of 0.2 is 1 GFLOP."""
    work = {"required_flops": 7 * 10**8, "required_missing": None, "forward_macs": 15 * 10**7}
    complexity = samples.complexity(recomputed_flops=10**9 // 4, **work)
    found = claimed_work(samples.run_record(complexity=complexity), gflop / 5, 10e9)
    assert found["claimed_step_gflop"] == pytest.approx(gflop)
    assert found["claim_of_counted"] == pytest.approx(gflop)
    assert found["claim_of_required"] == pytest.approx(gflop / 0.7)
    assert found["claim_counts"] == counts


def test_the_rule_of_six_needs_tokens():
    tokens = samples.complexity(image_size=None, sample="sequence", tokens_per_sample=100_000)
    record = samples.run_record(complexity=tokens)  # 6 x 100 parameters x 8 x 100,000 tokens
    assert claimed_work(record, 0.096, 10e9)["claim_counts"].startswith("6 FLOP")
    unknown = samples.run_record(complexity=None)
    assert claimed_work(unknown, 0.2, 10e9)["claim_counts"] == "not in this sample"


def test_the_slowest_rank_and_the_spread_are_of_steps_without_the_wait_for_others():
    waits_s = (0.0, 0.1, None)
    ranks = tuple(
        samples.rank_figures(rank, exchange_wait_s=None if wait is None else (wait,) * 6)
        for rank, wait in enumerate(waits_s)
    )
    figures = samples.distributed_figures(ranks=ranks)
    found = summary(samples.run_record(measurement=samples.measurement(ranks=figures)))
    assert found["slowest_rank_time_ms"] == pytest.approx(500)
    assert found["rank_spread_share"] == pytest.approx(0.2)
