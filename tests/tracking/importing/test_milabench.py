"""milabench's event files, written here in the form of its published runs."""

import json

import pytest

PLUG_INS = ("milabench",)
CONFIG = {
    "tags": ["classification", "convnet", "vision"],
    "run_name": "kolerovu.2025-04-15",
    "name": "resnet50",
    "devices": [0],
    "device": 0,
}
META = {
    "os": {"nodename": "cn-l034"},
    "accelerators": {"arch": "cuda", "gpus": {"0": {"product": "NVIDIA L40S"}}},
    "pytorch": {"torch": "2.6.0"},
}
COMMAND = (
    "voir main.py --precision tf32-fp16 --loader synthetic_fixed --model resnet50 "
    "--batch-size 256 --optim channel_last"
)


def events(rates=(57, 1000, 1000, 1000, 1000, 1100, 1300), config=None, meta=META, units="items/s"):
    yield "config", CONFIG | (config or {})
    if meta:
        yield "meta", meta
    yield "start", {"command": COMMAND.split(), "time": 1744750648.5}
    for number, rate in enumerate(rates):
        yield "data", {"task": "train", "loss": 7.0}
        yield "data", {"task": "train", "rate": rate, "units": units}
        power = 300.0 if number == 5 else 30.0
        sample = {"memory": [45000.0, 46068.0], "load": 0.5, "power": power}
        yield "data", {"task": "main", "gpudata": {"0": sample}}
    yield "end", {"return_code": 0}


def log(change=("", ""), **changed):
    lines = [
        json.dumps({"event": event, "data": data, "pipe": "data"})
        for event, data in events(**changed)
    ]
    return "\n".join(lines).replace(*change) + "\n"


def test_a_file_is_a_run_with_rates_and_telemetry(read):
    found = read(log())
    assert found.problems == []
    [record] = found.records
    assert record.source_format == "milabench"
    assert (record.arch, record.precision, record.batch_size) == ("resnet50", "amp-fp16", 256)
    assert (record.env, record.device, record.backend) == ("cn-l034", "NVIDIA L40S", "cuda")
    assert record.throughput_images_per_s == 1200.0  # of 1100 and 1300
    assert record.extra["throughput_from"] == "mean of the rates; the first 5 are left out"
    assert record.params == {"devices": "1", "channels_last": "true", "data": "synthetic"}
    assert record.metrics["gpu_power_w_mean"] == pytest.approx((30 + 300) / 2)
    assert record.metrics["gpu_utilization_percent_mean"] == 50.0
    assert record.extra["gpu_power_w_max"] == "300"
    assert record.iteration_times_s is None
    assert "of batches or of intervals" in record.missing["iteration_times_s"]
    assert record.measured_at.isoformat() == "2025-04-15T20:57:28.500000+00:00"


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ("--amp", "amp"),
        ("--amp --amp-dtype bfloat16", "amp-bf16"),
        ("--precision tf32", "tf32"),
        ("--precision fp16 --amp", "amp-fp16"),
        ("--loader pytorch", None),
    ],
)
def test_a_precision_is_that_of_the_command(read, options, precision):
    command = COMMAND.replace("--precision tf32-fp16", options)
    text = log((json.dumps(COMMAND.split()), json.dumps(command.split())))
    assert read(text).records[0].precision == precision


def test_several_devices_leave_the_batch_open_and_no_version_guesses_a_device(read):
    [record] = read(log(config={"devices": [0, 1, 2, 3]}, meta=None)).records
    assert record.params["devices"] == "4"
    assert record.batch_size is record.device is None
    assert "not stated" in record.missing["batch_size"]
    assert record.env == "kolerovu.2025-04-15"
    assert "gpu_power_w_mean" not in record.metrics


def test_what_is_no_image_classification_or_has_no_window_is_refused(read):
    for changed, reason in (
        ({"config": {"tags": ["nlp"]}}, "no image classification"),
        ({"units": "Tflops"}, "not items/s"),
        ({"rates": (57, 1000)}, "2 rates: the run ended in its warm-up"),
        ({"change": ('"rate": 1100', '"rate": NaN')}, "line 20: 'nan' is not a number"),
        ({"change": ('"rate": 1100', '"rate": -1')}, "negative"),
        ({"rates": (57, *[1000] * 9, 11000)}, "a rate of 11000 among rates of 1000"),
        ({"change": ('"rate": 1100', '"rate": "1100"')}, "is not a number"),
        ({"change": ('"rate": 1100, ', '"rate": 1100 ')}, "Expecting"),
        ({"change": ('"256"', '"2.56"')}, "not a whole number"),
    ):
        found = read(log(**changed))
        assert found.records == []
        assert reason in str(found.problems[0])
