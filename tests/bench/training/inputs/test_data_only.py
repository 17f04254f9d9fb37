"""`data_only=true`: the loader alone, and nothing said of a model that did not run."""

import pytest
import samples

from bench.config import RunConfig
from bench.launcher.measurement import launch_measurement
from bench.records.folders import RecordFolder
from bench.records.verdict.record_metrics import summary
from bench.records.verdict.run_verdict import judge

NO_MODEL = "data_only=true: no model ran"
LOADER = RunConfig(data="photos", data_only=True)


def loader_record(**changes):
    window = samples.measurement(first_loss=None, last_loss=None, data_wait_s=(0.5,) * 6)
    missing = window.missing | {"first_loss": NO_MODEL, "last_loss": NO_MODEL}
    known = {
        "config": LOADER,
        "measurement": window.model_copy(update={"missing": missing}),
        "complexity": None,
        "resolved": samples.resolved(native_math=False),
        **changes,
    }
    record = samples.run_record(**{**known, "complexity": samples.complexity()})
    missing = record.missing | {"complexity": NO_MODEL}
    return record.model_copy(update={"complexity": known["complexity"], "missing": missing})


def test_no_finding_is_made_of_a_loss_a_wait_or_an_arithmetic_that_there_was_not():
    assert judge(loader_record()).level == "clean"
    assert judge(loader_record()).findings == ()


def test_the_same_window_of_a_model_is_doubtful():
    codes = {finding.code for finding in judge(loader_record(config=RunConfig())).findings}
    assert codes == {"input-bound", "loss-not-finite", "emulated"}


def test_a_loaders_rate_has_a_name_of_its_own():
    found = summary(loader_record())
    assert found["loader_images_per_s"] == pytest.approx(16.0)
    assert "throughput_images_per_s" not in found
    assert "attained_gflops" not in found
    assert "loader_images_per_s" not in summary(samples.run_record())


@pytest.mark.slow
def test_a_loader_is_measured_without_a_model(tmp_path, generated):
    config = RunConfig(
        arch="vgg16",  # would take seconds to build
        backend="cpu",
        data=str(generated),
        data_only=True,
        batch_size=6,
        image_size=64,
        workers=1,
        warmup_iters=2,
        iters=4,
    )
    record = launch_measurement(config, RecordFolder.create(tmp_path), lambda event: None)
    assert record.outcome == "ok", record.reason
    assert record.measurement.images == 24
    assert record.complexity is None
    assert record.missing["complexity"] == NO_MODEL
    for fact in ("first_loss", "last_loss", "work"):
        assert getattr(record.measurement, fact) is None
        assert record.measurement.missing[fact] == NO_MODEL
    window = record.measurement
    for waited_s, took_s in zip(window.data_wait_s, window.iteration_times_s, strict=True):
        assert 0 < waited_s <= took_s
