"""The readers of `contrib`, with files written here in the form of published ones."""

import json
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from readings import reading

from tracking.importing import load_readers

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONTRIB = Path(__file__).resolve().parents[2] / "contrib"


@pytest.fixture
def read(tmp_path):
    """Return a function that writes a file and reads it by what contrib's distribution names."""
    project = tomllib.loads((CONTRIB / "pyproject.toml").read_text("utf-8"))["project"]
    names = project["entry-points"]["mlproject.readers"].values()
    assert set(names) == {f"contrib.readers.{path.stem}" for path in CONTRIB.glob("readers/[a-z]*")}
    return reading(tmp_path, load_readers([*names]))


def assert_facts(record, **expected):
    assert {name: getattr(record, name) for name in expected} == expected


# DLLogger's lines, in the form of NVIDIA's ConvNets examples

PARAMETERS = {
    "data_backend": "synthetic",
    "arch": "resnet50",
    "image_size": "None",
    "batch_size": "64",
    "resume": "",
    "amp": "True",
    "memory_format": "nhwc",
    "gpu": "0",
    "world_size": "8",
}
START = datetime(2024, 7, 28, 10, 9, 35)
WARM, STEADY = [(0.5 if n == 0 else 0.25) for n in range(10)], [0.25, 0.2, 0.25, 0.3]
IMAGES = 64 * 8


def log(times=(*WARM, *STEADY), parameters=PARAMETERS, **changed):
    """A printed log: an epoch of the given iteration times in seconds, with what is changed."""
    stated = "  ".join(f"{name} : {text}" for name, text in (parameters | changed).items())
    at, lines = START, ["=> creating model resnet50", f"DLL {START} - PARAMETER {stated} "]
    for number, seconds in enumerate(times, 1):
        at += timedelta(seconds=seconds + 0.0001)
        lines.append(
            f"DLL {at} - Epoch: 0 Iteration: {number}  train.loss : 7.0 None train.lr : 0.1 "
            f"train.compute_ips : 9999 images/s train.total_ips : {IMAGES / seconds:.2f} images/s"
        )
    lines.append(f"DLL {at} - Summary: train.loss : 6.5 None train.total_ips : 2000.50 images/s")
    return "\n".join([*lines, "['python', 'main.py', '--arch', 'resnet50', '--amp']"])


def streamed(times=(*WARM, *STEADY), unit="images/s"):
    """The same as a stream of JSON."""
    entries = [{"type": "LOG", "step": "PARAMETER", "data": PARAMETERS}]
    if unit:
        about = {"metric": "train.total_ips", "metadata": {"unit": unit}}
        entries.insert(0, {"type": "METADATA", **about})
    at = START.timestamp()
    for number, seconds in enumerate(times, 1):
        at += seconds
        data = {"train.total_ips": IMAGES / seconds}
        entries.append({"timestamp": f"{at}", "type": "LOG", "step": [0, number], "data": data})
    return "".join(f"DLLL {json.dumps(entry)}\n" for entry in entries)


@pytest.mark.parametrize("text", [log(), streamed()], ids=["printed", "streamed"])
def test_a_log_is_a_run_with_its_iterations_behind_the_warm_up(read, text):
    found = read(text)
    assert found.problems == []
    [record] = found.records
    facts = {"source_format": "dllogger", "arch": "resnet50", "precision": "amp"}
    assert_facts(record, **facts, backend="cuda", batch_size=64)  # of one GPU
    assert record.iteration_times_s == pytest.approx(STEADY, rel=1e-4)
    assert record.throughput_images_per_s == pytest.approx(IMAGES * 4 / sum(STEADY), rel=1e-4)
    assert record.params == {
        "devices": "8",
        "channels_last": "true",
        "data": "synthetic",
        "warmup_iters": "10",
        "iterations": "4",
    }
    [later] = read(text, warmup_iters="12").records
    assert later.iteration_times_s == pytest.approx(STEADY[2:], rel=1e-4)


@pytest.mark.parametrize(
    ("folder", "device"),
    [
        ("LambdaOD_Texas_8xH100_80GB_SXM5_192-222-52-99_v2", "H100 80GB SXM5"),
        ("LambdaOD_1x_Test_1xGH200_96GB_192-222-56-184_v2", "GH200 96GB"),
        ("2x4090_v1", "4090"),
        ("8xQuadroRTX8000NVlink_trt2", "QuadroRTX8000"),
        ("p3.16xlarge", None),
    ],
)
def test_the_machine_is_what_the_folder_is_called(read, folder, device):
    [record] = read(log(), f"{folder}/PyTorch_resnet50_AMP/28-07-2024_10-09-22.txt").records
    assert_facts(record, env=folder, device=device)


def test_a_folder_gives_its_runs_and_counts_what_is_something_else(read):
    bert = log().replace("total_ips", "sequences_per_s")
    for name, text in {
        "8xH100_a/PyTorch_resnet50_AMP/log.txt": log(),
        "8xH100_b/PyTorch_resnet50_AMP/log.txt": log(),
        "8xH100_a/PyTorch_resnet50_AMP/benchmark.para": "GPU 8\n",
        "8xH100_a/PyTorch_bert_FP16/log.txt": bert,
        "picture.png": b"\x89PNG\xff",
    }.items():
        read(text, f"all/{name}")
    folder = read(name="all")
    assert {one.env for one in folder.records} == {"8xH100_a", "8xH100_b"}
    assert (folder.problems, folder.other_files) == ([], 3)


# milabench's event files

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


def milabench(change=("", ""), **changed):
    lines = [
        json.dumps({"event": event, "data": data, "pipe": "data"})
        for event, data in events(**changed)
    ]
    return "\n".join(lines).replace(*change) + "\n"


def test_a_file_of_events_is_a_run_with_rates_and_telemetry(read):
    found = read(milabench())
    assert found.problems == []
    [record] = found.records
    facts = {"source_format": "milabench", "arch": "resnet50", "precision": "amp-fp16"}
    machine = {"env": "cn-l034", "device": "NVIDIA L40S", "backend": "cuda"}
    rate = {"throughput_images_per_s": 1200.0, "iteration_times_s": None}  # of 1100 and 1300
    assert_facts(record, **facts, **machine, **rate, batch_size=256)
    assert record.extra["throughput_from"] == "mean of the rates; the first 5 are left out"
    assert record.params == {"devices": "1", "channels_last": "true", "data": "synthetic"}
    assert record.metrics["gpu_power_w_mean"] == pytest.approx((30 + 300) / 2)
    assert record.metrics["gpu_utilization_percent_mean"] == 50.0
    assert record.extra["gpu_power_w_max"] == "300"
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
    text = milabench((json.dumps(COMMAND.split()), json.dumps(command.split())))
    assert read(text).records[0].precision == precision


# MLPerf's result files and systems

START_MS = 1_683_388_854_158
TRAINED_IMAGES = 1_281_167
GPU = "NVIDIA H100-SXM5-80GB"
CPU = "Intel(R) Xeon(R) Platinum 8480C"
SYSTEM = {
    "number_of_nodes": "2",
    "accelerators_per_node": "8",
    "accelerator_model_name": GPU,
    "host_processor_model_name": CPU,
    "framework": "MXNet NVIDIA Release 23.04",
    "other_software_stack": {"cuda_version": "12.1.0.023"},
    "hw_notes": "",
}
SECONDS = (40.0, 25.0, 20.0)


def entries(benchmark="resnet", key="tracked_stats", batch=6400):
    yield "submission_benchmark", benchmark, 0, {}
    yield "submission_division", "closed", 0, {}
    yield "global_batch_size", batch, 0, {}
    yield "gradient_accumulation_steps", 1, 0, {}
    yield "run_start", None, 1000, {}
    yield "train_samples", TRAINED_IMAGES, 1000, {}
    at = 1000
    for epoch, taken in enumerate(SECONDS, 1):
        yield "epoch_start", None, at, {"epoch_num": epoch}
        at += taken * 1000
        yield "epoch_stop", None, at, {"epoch_num": epoch}
        rate = TRAINED_IMAGES / taken
        yield key, {"throughput": rate} if key == "tracked_stats" else rate, at, {"step": epoch}
    yield "run_stop", None, at, {"status": "success"}


def result(change=("", ""), **changed):
    lines = ["===== a line of something else"]
    for key, value, after_ms, about in entries(**changed):
        entry = {"time_ms": START_MS + after_ms, "key": key, "value": value, "metadata": about}
        lines.append(f"0: :::MLLOG {json.dumps(entry)}")
    return "\n".join(lines).replace(*change)


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
    facts = {"source_format": "mlperf", "arch": "resnet50", "device": GPU, "backend": "cuda"}
    facts |= {"env": "dgxh100", "repeat": 3, "batch_size": 400}  # of one GPU
    assert_facts(record, **facts, precision=None, iteration_times_s=None)
    assert record.params == {
        "image_size": "224",
        "devices": "8",
        "nodes": "2",
        "grad_accum_steps": "1",
    }
    assert record.throughput_images_per_s == pytest.approx(2 * TRAINED_IMAGES / (25 + 20))
    assert record.metrics["window_s"] == 45.0
    assert record.extra["throughput_points"] == "32029.2, 51246.7, 64058.3"
    assert "first epoch is left out" in record.extra["throughput_from"]
    assert record.measured_at.isoformat() == "2023-05-06T16:00:55.158000+00:00"
    assert record.missing["precision"] == "MLPerf's logs do not say"
    assert record.extra["status"] == "success"
    no_images = (f'"value": {TRAINED_IMAGES}', '"value": 0')  # which says nothing of the rates
    [other] = submission(result(no_images, key=key)).records
    assert other.throughput_images_per_s == record.throughput_images_per_s


@pytest.mark.parametrize(
    ("batch", "system", "machine", "reason"),
    [
        (6400, None, (None, None), "no systems/dgxh100.json is there"),
        (
            *(6400, SYSTEM | {"accelerators_per_node": "0", "accelerator_model_name": "N/A"}),
            *((CPU, "cpu"), "how many devices share a batch is not stated"),
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


# Reports of optimum-benchmark

STEP = {"scenario": {"training_arguments": {"per_device_train_batch_size": 8}}}
BENCHMARK = STEP | {
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


def optimum(config=BENCHMARK, report=REPORT):
    return json.dumps({"config": config, "report": report})


def test_a_report_is_taken_with_its_own_steps_or_beside_its_configuration(read, tmp_path):
    [record] = read(optimum()).records
    facts = {"source_format": "optimum-benchmark", "arch": "google/vit-base-patch16-224"}
    facts |= {"backend": "cuda", "device": "Tesla T4", "precision": "fp32", "batch_size": 8}
    assert_facts(record, **facts, throughput_images_per_s=24.0)
    assert record.iteration_times_s == (0.5, 0.25, 0.25)
    assert record.extra == {"optimum_benchmark_version": "0.5.0", "name": "vit"}
    (tmp_path / "benchmark_config.json").write_text(json.dumps(BENCHMARK))
    [beside] = read(json.dumps(REPORT), "benchmark_report.json").records
    assert beside.record_id == record.record_id


# Columns of models: pytorch-gpu-benchmark's times and Lambda's throughputs

TIMES = "resnet18,vgg16\n10.0,40.0\n20.0,80.0\n"
FOLDER = "GeForce_RTX_3090"
TRAINED = f"{FOLDER}/GeForce_RTX_3090__half_model_train_benchmark.csv"
TIMES_CONFIG = {"WARM_UP": 5, "NUM_TEST": 2, "BATCH_SIZE": 12, "GPU_COUNT": 1}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"GPU_COUNT": 3}, None),
        ({"GPU_COUNT": 1}, "another number of GPUs"),
        ({"NUM_TEST": 50}, "another number of iterations"),
        ({"GPU_COUNT": 3, "BATCH_SIZE": 16}, "not shared evenly by 3 GPUs"),
    ],
)
def test_the_batch_of_several_gpus_is_shared_and_a_strange_configuration_not_believed(
    read, config, reason
):
    read(json.dumps(TIMES_CONFIG | config), f"{FOLDER}/config.json")
    [record, _] = read(TIMES, TRAINED.replace("__half", "__3X__half")).records
    assert (record.device, record.params["devices"]) == ("GeForce RTX 3090", "3")
    assert record.batch_size == (4 if reason is None else None)
    assert (reason or "") in record.missing.get("batch_size", "")


def test_a_bad_time_costs_its_model(read):
    found = read(TIMES.replace("80.0", "nan"), TRAINED)
    assert [record.arch for record in found.records] == ["resnet18"]
    assert [(one.line, one.reason) for one in found.problems] == [
        (3, "vgg16: 'nan' is not a number")
    ]


def test_times_of_inference_are_something_else(read):
    name = TRAINED.replace("train", "inference")
    assert "inference" in read(TIMES, name).problems[0].reason


def test_a_row_of_throughputs_is_a_run_per_image_model(read):
    table = (
        ",ssd,resnet50,vgg16\n"
        "Lambda_8xH100_80GB_SXM5_99_v2,6501.0,21880.0,0.0\n"
        "2x4090_v1,300,2000,900\n"
    )
    name = "pytorch-train-throughput-fp16.csv"
    found = read(table, name)
    assert found.problems == []
    assert [
        (one.source_line, one.env, one.device, one.params["devices"], one.throughput_images_per_s)
        for one in found.records
    ] == [
        (2, "Lambda_8xH100_80GB_SXM5_99_v2", "H100 80GB SXM5", "8", 21880.0),
        (3, "2x4090_v1", "4090", "2", 2000.0),
        (3, "2x4090_v1", "4090", "2", 900.0),
    ]
    assert [one.arch for one in found.records] == ["resnet50", "resnet50", "vgg16"]
    [named] = read("name_gpu,num_gpu,watt,resnet50\nRTX 3090,2,350,905\n", name).records
    assert (named.device, named.params["devices"]) == ("RTX 3090", "2")
    found = read(table.replace("900", "fast"), name)
    assert [one.reason for one in found.problems] == ["vgg16: 'fast' is not a number"]
    read(table, "pytorch-train-bs-fp16.csv")  # batch sizes: no table of results
    folder = read(name=".")
    assert (len(folder.records), folder.other_files) == (2, 1)


# What cannot be true, is damaged, or is of something else

RATE = f"train.total_ips : {IMAGES / 0.3:.2f}"
EPOCH = f"{TRAINED_IMAGES / 25.0}"
REFUSED = [
    (log().replace(RATE, "train.total_ips : nan"), "line 16: 'nan' is not a number"),
    (log().replace(RATE, "train.total_ips :"), "not a number"),
    (log().replace(RATE, "train.total_ips : 91706.67"), "0.3001 s passed since"),
    (log(world_size="1"), "passed since"),
    (log().replace("Iteration: 13", "Iteration: 43"), "43 follows 12 of epoch 0"),
    (log(batch_size="6.4"), "not a whole number"),
    (log(batch_size=""), "--set batch_size=N"),
    (log(WARM), "--set warmup_iters=N"),
    (log(()), "ended before its first"),
    (log().replace("total_ips", "sequences_per_s"), "no train.total_ips in images/s"),
    (streamed(unit=None), "no train.total_ips in images/s"),
    (streamed(unit="tokens/s"), "no train.total_ips in images/s"),
    (milabench(config={"tags": ["nlp"]}), "no image classification"),
    (milabench(units="Tflops"), "not items/s"),
    (milabench(rates=(57, 1000)), "2 rates: the run ended in its warm-up"),
    (milabench(('"rate": 1100', '"rate": NaN')), "line 20: 'nan' is not a number"),
    (milabench(('"rate": 1100', '"rate": -1')), "negative"),
    (milabench(rates=(57, *[1000] * 9, 11000)), "a rate of 11000 among rates of 1000"),
    (milabench(('"rate": 1100', '"rate": "1100"')), "is not a number"),
    (milabench(('"rate": 1100, ', '"rate": 1100 ')), "Expecting"),
    (milabench(('"256"', '"2.56"')), "not a whole number"),
    (result((EPOCH, f"{TRAINED_IMAGES / 5.0}")), "took 25 s"),
    (result((EPOCH, "NaN")), "line 13: 'nan' is not a number"),
    (result((EPOCH, '"fast"')), "not a number"),
    (result((EPOCH, "-1")), "negative"),
    (result((f"{EPOCH}}}", EPOCH)), "Expecting"),
    (result(("throughput", "through")), "no throughput is logged"),
    (result(('"epoch_num": 3', '"epoch_num": 2')), "epoch 2 follows epoch 2"),
    (optimum(report={"load": {}}), "no training"),
    (optimum({"backend": {"task": "text-classification"}}), "no images"),
    (optimum({}), "benchmark_config.json"),
    (optimum(report={"train": {"throughput": {"value": float("nan")}}}), "'nan' is not a number"),
    ('{"report": ' + "1" * 10000 + "}", "digits"),
    ('{"report": ' + "[" * 100000, "recursion"),
    ('{"report"', "Expecting"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_what_cannot_be_true_or_is_of_something_else_is_refused(read, text, reason):
    found = read(text)
    assert found.records == []
    assert reason in str(found.problems[0])
