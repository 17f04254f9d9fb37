"""Reports of optimum-benchmark, written here in the form of its own."""

import json

import pytest

PLUG_INS = ("optimum",)
TRAINED = {"scenario": {"training_arguments": {"per_device_train_batch_size": 8}}}
CONFIG = TRAINED | {
    "name": "vit",
    "backend": {
        "task": "image-classification",
        "model": "google/vit-base-patch16-224",
        "device": "cuda",
        "torch_dtype": "float32",
    },
    "environment": {"gpu": ["Tesla T4"], "cpu": "Xeon", "optimum_benchmark_version": "0.5.0"},
}
REPORT = {
    "overall": {"latency": {"unit": "s", "values": [9.0, 9.0, 0.5, 0.25, 0.25]}},
    "train": {
        "memory": None,
        "latency": {"unit": "s", "values": [0.5, 0.25, 0.25]},
        "throughput": {"unit": "samples/s", "value": 24.0},
    },
}


def whole(config=CONFIG, report=REPORT):
    return json.dumps({"config": config, "report": report})


def test_accumulated_batches_of_a_report_belong_to_its_step(read):
    def record(**more):
        arguments = {"per_device_train_batch_size": 8, **more}
        config = CONFIG | {"scenario": {"training_arguments": arguments}}
        return read(whole(config)).records[0]

    plain, one, four = record(), *(record(gradient_accumulation_steps=n) for n in (1, 4))
    steps = [record.params.get("grad_accum_steps") for record in (plain, one, four)]
    assert steps == [None, "1", "4"]
    assert plain.record_id == one.record_id != four.record_id


def test_a_report_is_taken_with_its_own_steps_or_beside_its_configuration(read, tmp_path):
    [record] = read(whole()).records
    assert record.source_format == "optimum-benchmark"
    assert record.arch == "google/vit-base-patch16-224"
    assert (record.backend, record.device, record.precision) == ("cuda", "Tesla T4", "fp32")
    assert (record.batch_size, record.throughput_images_per_s) == (8, 24.0)
    assert record.iteration_times_s == (0.5, 0.25, 0.25)
    assert record.extra == {"optimum_benchmark_version": "0.5.0", "name": "vit"}
    (tmp_path / "benchmark_config.json").write_text(json.dumps(CONFIG))
    [beside] = read(json.dumps(REPORT), "benchmark_report.json").records
    assert beside.record_id == record.record_id


@pytest.mark.parametrize(
    ("gpu", "device"),
    [("NVIDIA A100", "NVIDIA A100"), ({"0": "NVIDIA A100"}, None), ([], None), ([7], None)],
)
def test_a_gpu_is_a_name_or_missing(read, gpu, device):
    [record] = read(whole(CONFIG | {"environment": {"gpu": gpu}})).records
    assert record.device == device


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (whole(report={"load": {}}), "no training"),
        (whole({"backend": {"task": "text-classification"}}), "no images"),
        (whole({}), "benchmark_config.json"),
        (whole(report={"train": {"throughput": {"value": float("nan")}}}), "'nan' is not a number"),
        ('{"report": ' + "1" * 10000 + "}", "digits"),
        ('{"report": ' + "[" * 100000, "recursion"),
        ('{"report"', "Expecting"),
    ],
)
def test_a_report_of_something_else_or_a_damaged_one_is_refused(read, text, reason):
    found = read(text)
    assert found.records == []
    assert reason in found.problems[0].reason
