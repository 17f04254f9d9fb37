"""`data_only=true`: the loader alone, and nothing said of a model that did not run."""

import pytest
import samples

from bench.config import RunConfig
from bench.errors import Unknown
from bench.launcher.measurement import finish_run
from bench.records import Job
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.records.metrics import summary
from bench.records.run_verdict import judge
from bench.worker.measurement import MeasurementAttempt

NO_MODEL = "data_only=true: no model ran"


@pytest.mark.slow
def test_a_loader_is_measured_without_a_model_and_its_rate_has_a_name_of_its_own(
    tmp_path, generated
):
    config = RunConfig(
        arch="vgg16",  # would take seconds to build
        backend="cpu",
        data=str(generated),
        data_only=True,
        cudnn_benchmark=False,  # of this process: other tests' stays
        batch_size=6,
        image_size=64,
        workers=1,
        warmup_iters=2,
        iters=4,
    )
    folder = RecordFolder.create(tmp_path)
    folder.write(folder.config, Job(config=config))
    journal = JournalWriter(folder.journal)
    MeasurementAttempt(folder, journal, before_warm_up=int).attempt()
    unwatched = Unknown("nobody watched")
    record = finish_run(folder, config, samples.NOW, folder.read_worker(), unwatched)
    assert record.outcome == "ok", record.reason
    assert record.measurement.samples == 24
    assert record.complexity is None
    assert record.missing["complexity"] == NO_MODEL
    for fact in ("first_loss", "last_loss", "work"):
        assert getattr(record.measurement, fact) is None
        assert record.measurement.missing[fact] == NO_MODEL
    window = record.measurement
    for waited_s, took_s in zip(window.data_wait_s, window.iteration_times_s, strict=True):
        assert 0 < waited_s <= took_s
    found = summary(record)
    assert found["loader_images_per_s"] == window.throughput_samples_per_s
    assert not {"throughput_images_per_s", "attained_gflops"} & found.keys()
    assert "loader_images_per_s" not in summary(samples.run_record())


def test_no_finding_is_made_of_a_loss_a_wait_or_an_arithmetic_that_there_was_not():
    whole = samples.run_record().model_copy(
        update={
            "measurement": samples.measurement(
                first_loss=None, last_loss=None, data_wait_s=(0.5,) * 6
            ),
            "resolved": samples.resolved(native_math=False),
        }
    )
    codes = {finding.code for finding in judge(whole).findings}
    assert codes == {"unproven", "input-bound", "loss-not-finite", "emulated"}
    loader = whole.model_copy(update={"config": RunConfig(data="photos", data_only=True)})
    assert [finding.code for finding in judge(loader).findings] == ["unproven"]
