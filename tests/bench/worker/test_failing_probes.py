"""What looks into the step besides its window decides nothing about the run."""

import pytest
from worker_processes import small_run

from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.worker import measurement
from bench.worker.measurement import WorkerMeasurement

pytestmark = pytest.mark.slow


def fails(*asked):
    raise RuntimeError("CUPTI_ERROR")


def fails_after_the_step(step, device):
    step()
    fails()


def measured(tmp_path, **changes):
    folder = RecordFolder.create(tmp_path, "one")
    folder.write(folder.config, small_run(**changes))
    measurement.measure(folder, JournalWriter(folder.journal))
    return folder.read_worker()


@pytest.mark.parametrize("warmup_iters", [1, 3])
@pytest.mark.parametrize("work_set", [fails, fails_after_the_step])
def test_a_run_whose_profiler_fails_went_well(tmp_path, monkeypatch, work_set, warmup_iters):
    monkeypatch.setattr(measurement, "work_set", work_set)
    record = measured(tmp_path, warmup_iters=warmup_iters)
    assert (record.outcome, record.reason) == ("ok", None)
    assert len(record.measurement.iteration_times_s) == 6
    assert len(record.measurement.warmup_times_s) == warmup_iters
    assert "CUPTI_ERROR" in record.measurement.missing["work"]


@pytest.mark.parametrize(
    ("where", "fact"),
    [("bench.training.devices.CpuDevice.hidden_syncs", "hidden_syncs"),
     ("bench.worker.measurement.WorkerMeasurement.compare_ranks", "ranks")],
)  # fmt: skip
def test_a_probe_that_fails_after_the_window_leaves_its_reason(tmp_path, monkeypatch, where, fact):
    monkeypatch.setattr(where, fails)
    record = measured(tmp_path)
    assert record.outcome == "ok"
    assert "CUPTI_ERROR" in record.measurement.missing[fact]
    assert record.measurement.work is not None


def test_a_step_that_fails_under_the_profiler_and_without_it_is_the_runs_failure(tmp_path):
    def out_of_memory():
        raise MemoryError

    probed = WorkerMeasurement(small_run(), JournalWriter(tmp_path / "journal"))
    with pytest.raises(MemoryError):
        probed._profile(None, out_of_memory)
