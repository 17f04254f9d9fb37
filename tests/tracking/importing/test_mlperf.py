"""MLPerf's result files and systems, written here in the form of published submissions."""

import json
from datetime import datetime, timezone

import pytest

PLUG_INS = ("mlperf",)
START_MS = 1_683_388_854_158
IMAGES = 1_281_167
GPU = "NVIDIA H100-SXM5-80GB"
SYSTEM = {
    "number_of_nodes": "2",
    "accelerators_per_node": "8",
    "accelerator_model_name": GPU,
    "host_processor_model_name": "Intel(R) Xeon(R) Platinum 8480C",
    "framework": "MXNet NVIDIA Release 23.04",
    "other_software_stack": {"cuda_version": "12.1.0.023"},
    "hw_notes": "",
}
SECONDS = (40.0, 25.0, 20.0)


def entries(benchmark="resnet", seconds=SECONDS, key="tracked_stats", batch=6400):
    yield "submission_benchmark", benchmark, 0, {}
    yield "submission_division", "closed", 0, {}
    yield "global_batch_size", batch, 0, {}
    yield "gradient_accumulation_steps", 1, 0, {}
    yield "run_start", None, 1000, {}
    yield "train_samples", IMAGES, 1000, {}
    at = 1000
    for epoch, taken in enumerate(seconds, 1):
        yield "epoch_start", None, at, {"epoch_num": epoch}
        at += taken * 1000
        yield "epoch_stop", None, at, {"epoch_num": epoch}
        rate = IMAGES / taken
        yield key, {"throughput": rate} if key == "tracked_stats" else rate, at, {"step": epoch}
    yield "run_stop", None, at, {"status": "success"}


def result(**changed):
    lines = ["===== a line of something else"]
    for key, value, after_ms, about in entries(**changed):
        entry = {"time_ms": START_MS + after_ms, "key": key, "value": value, "metadata": about}
        lines.append(f"0: :::MLLOG {json.dumps(entry)}")
    return "\n".join(lines)


RESULT = "ORG/results/dgxh100/resnet/result_3.txt"


@pytest.fixture
def submission(read):
    """Return a function that writes a submission and reads all of it."""

    def submission(text, system=SYSTEM):
        if system is not None:
            read(json.dumps(system), "ORG/systems/dgxh100.json")
        read(text, RESULT)
        return read(name=".")

    return submission


@pytest.mark.parametrize("key", ["tracked_stats", "throughput"])
def test_a_result_file_is_a_run_with_its_system(submission, read, key):
    found = submission(result(key=key))
    assert found.problems == []
    assert found.other_files == 1  # the system
    assert read(name=RESULT).records[0].batch_size == 400  # a file finds its system, too
    [record] = found.records
    assert record.source_format == "mlperf"
    assert (record.arch, record.device, record.backend) == ("resnet50", GPU, "cuda")
    assert (record.env, record.repeat) == ("dgxh100", 3)
    assert record.batch_size == 400  # of one GPU
    assert record.params == {
        "image_size": "224",
        "devices": "8",
        "nodes": "2",
        "grad_accum_steps": "1",
    }
    assert record.throughput_images_per_s == pytest.approx(2 * IMAGES / (25 + 20))
    assert record.metrics["window_s"] == 45.0
    assert record.extra["throughput_points"] == "32029.2, 51246.7, 64058.3"
    assert "first epoch is left out" in record.extra["throughput_from"]
    assert record.measured_at == datetime.fromtimestamp(
        (START_MS + 1000) // 1000, timezone.utc
    ).replace(microsecond=158_000)
    assert record.precision is None
    assert record.missing["precision"] == "MLPerf's logs do not say"
    assert record.iteration_times_s is None
    assert record.extra["status"] == "success"


@pytest.mark.parametrize(
    ("batch", "system", "machine", "reason"),
    [
        (6400, None, (None, None), "no systems/dgxh100.json is there"),
        (
            6400,
            SYSTEM | {"accelerators_per_node": "0", "accelerator_model_name": "N/A"},
            ("Intel(R) Xeon(R) Platinum 8480C", "cpu"),
            "how many devices share a batch is not stated",
        ),
        (6400, SYSTEM | {"number_of_nodes": "0"}, (GPU, "cuda"), "how many devices share a batch"),
        (6401, SYSTEM, (GPU, "cuda"), "6401 images are not shared evenly by 16 parts"),
    ],
)
def test_a_batch_has_whole_shares_of_known_machines(submission, batch, system, machine, reason):
    [record] = submission(result(batch=batch), system).records
    assert (record.device, record.backend) == machine
    assert record.batch_size is None
    assert record.missing["batch_size"].startswith(reason)
    assert record.extra["global_batch_size"] == str(batch)


def test_a_training_set_of_no_images_says_nothing_of_the_rates(submission):
    text = result().replace(f'"value": {IMAGES}', '"value": 0')
    [record] = submission(text).records
    assert record.throughput_images_per_s == pytest.approx(IMAGES * 2 / (25 + 20))


def test_other_benchmarks_are_counted_in_a_folder_and_named_alone(submission, read):
    assert submission(result(benchmark="bert")).other_files == 2
    [problem] = read(name=RESULT).problems
    assert problem.reason == "MLPerf's 'bert' is no image classification"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ((f"{IMAGES / 25.0}", f"{IMAGES / 5.0}"), "took 25 s"),
        ((f"{IMAGES / 25.0}", "NaN"), "line 13: 'nan' is not a number"),
        ((f"{IMAGES / 25.0}", '"fast"'), "not a number"),
        ((f"{IMAGES / 25.0}", "-1"), "negative"),
        ((f"{IMAGES / 25.0}}}", f"{IMAGES / 25.0}"), "Expecting"),
        (("throughput", "through"), "no throughput is logged"),
        (('"epoch_num": 3', '"epoch_num": 2'), "epoch 2 follows epoch 2"),
    ],
)
def test_what_cannot_be_true_is_refused(submission, change, reason):
    found = submission(result().replace(*change))
    assert found.records == []
    assert reason in str(found.problems[0])
