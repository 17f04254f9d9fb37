"""A real NVIDIA GPU trains in every way that is offered: `pytest -m cuda`, some five minutes."""

import math

import pytest

from bench import RunConfig, measure, measure_roofs
from bench.launcher.profile import launch_profile
from bench.launcher.telemetry.devices import GPU_SERIES
from bench.profilers.ncu.tool import NcuTool
from bench.records.folders import RecordFolder
from bench.records.metrics import executed_flops, profiled_step_cost

pytestmark = [pytest.mark.cuda, pytest.mark.long]


def config(**settings):
    known = {"arch": "resnet18", "backend": "cuda", "batch_size": 32, "image_size": 128}
    return RunConfig(**{**known, "warmup_iters": 3, "iters": 20, "max_seconds": 5, **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "fp32"},
        {"precision": "fp32", "channels_last": "true"},
        {"precision": "tf32"},
        {"precision": "amp-bf16"},
        {"precision": "amp-fp16"},
        {"precision": "amp", "channels_last": "false"},
        {"precision": "amp", "cuda_graphs": True},
        {"precision": "amp", "cuda_graphs": True, "data": "fakedata", "workers": 2},
        {"precision": "amp", "compile": "default"},
        {"precision": "amp", "compile": "reduce-overhead"},
        {"precision": "amp", "data": "fakedata", "workers": 2, "pin_memory": "true"},
        {"precision": "amp", "grad_accum_steps": 2},
        {"precision": "amp", "cudnn_benchmark": False},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_a_step_trains_and_its_record_is_whole(tmp_path, settings):
    record = measure(config(**settings), records=tmp_path)
    assert record.outcome == "ok", record.reason
    assert record.verdict.level != "invalid", record.verdict
    found = record.measurement
    assert found.iteration_clock == "cuda_events"
    assert math.isfinite(found.last_loss)
    assert sum(found.warmup_times_s) >= 1.5  # its limit is a third of 5 s
    assert 0 < found.peak_memory_allocated_bytes <= found.peak_memory_reserved_bytes
    assert found.work.unit == "kernels"
    assert found.hidden_syncs == 0


def test_a_run_has_what_nvml_says_of_its_window(tmp_path):
    telemetry = measure(config(iters=2000), records=tmp_path).telemetry
    assert set(GPU_SERIES) <= {one.name for one in telemetry.series}
    assert telemetry.energy_j > 0
    assert telemetry.throttle_share is not None
    assert telemetry.foreign_processes == ()


def test_roofs_are_what_lasts(tmp_path):
    record = measure_roofs("cuda", records=tmp_path)
    assert record.outcome == "ok", record.reason
    for ceiling in record.ceilings:
        if ceiling.math_mode != "fp32":  # whose bursts are Winograd's convolutions
            assert 0.5 * ceiling.burst_flops_per_s < ceiling.peak_flops_per_s
        assert ceiling.peak_bytes_per_s > 0
        assert ceiling.one_way_bytes_per_s > 0


@pytest.mark.parametrize("tool", ["torch", "ncu"])
def test_a_profile_is_of_the_timed_runs_work(tmp_path, tool):
    if tool == "ncu" and (reason := NcuTool().obstacle("cuda")):
        pytest.skip(reason)
    timed = measure(config(), records=tmp_path)
    record = launch_profile(timed.config, RecordFolder.create(tmp_path), (tool,), timed)
    assert record.outcome == "ok", record.reason
    assert record.verdict.level != "invalid", record.verdict
    if tool == "torch":
        assert 0 < record.ops.device_busy_share <= 1
    else:
        assert 1.0 <= executed_flops(record) / profiled_step_cost(record).flops <= 1.3
