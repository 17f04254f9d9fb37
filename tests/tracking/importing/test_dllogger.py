"""DLLogger's lines, written here in the form of NVIDIA's ConvNets examples."""

import json
import zipfile
from datetime import datetime, timedelta

import pytest

PLUG_INS = ("dllogger",)
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
    assert record.source_format == "dllogger"
    assert record.iteration_times_s == pytest.approx(STEADY, rel=1e-4)
    assert record.throughput_images_per_s == pytest.approx(IMAGES * 4 / sum(STEADY), rel=1e-4)
    assert (record.arch, record.precision, record.backend) == ("resnet50", "amp", "cuda")
    assert record.batch_size == 64  # of one GPU
    assert record.params == {
        "devices": "8",
        "channels_last": "true",
        "data": "synthetic",
        "warmup_iters": "10",
        "iterations": "4",
    }


@pytest.mark.parametrize(
    ("changed", "precision"),
    [({"amp": "False"}, "fp32"), ({"amp": "False", "fp16": "True"}, "fp16")],
)
def test_without_amp_it_is_fp32_or_fp16(read, changed, precision):
    assert read(log(**changed)).records[0].precision == precision


def test_an_argument_list_serves_where_no_parameter_is_logged(read):
    few = {name: PARAMETERS[name] for name in ("world_size",)}
    text = log(parameters=few).replace("'--amp'", "'--amp', '--batch-size', '64'")
    [record] = read(text).records
    assert (record.arch, record.precision, record.batch_size) == ("resnet50", "amp", 64)
    assert "--amp" in record.extra["command"]
    [alone] = read(log(world_size="", batch_size=f"{IMAGES}")).records
    assert (alone.params["devices"], alone.batch_size) == ("1", IMAGES)


def test_how_long_the_warm_up_was_can_be_stated(read):
    [record] = read(log(), warmup_iters="12").records
    assert record.iteration_times_s == pytest.approx(STEADY[2:], rel=1e-4)
    assert "--set warmup_iters=N" in read(log(WARM)).problems[0].reason


def test_the_machine_is_what_the_folder_is_called(read):
    for folder, device in {
        "LambdaOD_Texas_8xH100_80GB_SXM5_192-222-52-99_v2": "H100 80GB SXM5",
        "LambdaOD_1x_Test_1xGH200_96GB_192-222-56-184_v2": "GH200 96GB",
        "2x4090_v1": "4090",
        "8xQuadroRTX8000NVlink_trt2": "QuadroRTX8000",
        "p3.16xlarge": None,
    }.items():
        [record] = read(log(), f"{folder}/PyTorch_resnet50_AMP/28-07-2024_10-09-22.txt").records
        assert (record.env, record.device) == (folder, device)


def test_a_folder_and_a_zip_give_the_same_runs_and_count_what_is_something_else(tmp_path, read):
    bert = log().replace("total_ips", "sequences_per_s")
    for name, text in {
        "8xH100_a/PyTorch_resnet50_AMP/log.txt": log(),
        "8xH100_b/PyTorch_resnet50_AMP/log.txt": log(),
        "8xH100_a/PyTorch_resnet50_AMP/benchmark.para": "GPU 8\n",
        "8xH100_a/PyTorch_bert_FP16/log.txt": bert,
        "picture.png": b"\x89PNG\xff",
    }.items():
        read(text, f"all/{name}")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in (tmp_path / "all").rglob("*.*"):
            archive.write(path, path.relative_to(tmp_path / "all"))
    folder, packed = read(name="all"), read(name="all.zip")
    assert {one.env for one in folder.records} == {"8xH100_a", "8xH100_b"}
    assert {one.record_id for one in packed.records} == {one.record_id for one in folder.records}
    assert folder.problems == packed.problems == []
    assert folder.other_files == packed.other_files == 3
    assert "no train.total_ips in images/s" in read(bert).problems[0].reason


def test_a_line_for_many_iterations_gives_a_throughput_and_no_times(read):
    lines = log([2.5, 2.0, 2.0])
    for number in (3, 2, 1):
        lines = lines.replace(f"Iteration: {number} ", f"Iteration: {10 * number} ")
    for slow in (2.5, 2.0):  # a rate is the mean over the ten iterations before its line
        lines = lines.replace(f"{IMAGES / slow:.2f}", f"{10 * IMAGES / slow:.2f}")
    [record] = read(lines).records
    assert record.iteration_times_s is None
    assert record.missing["iteration_times_s"] == "the log has a line for every 10 iterations"
    assert record.throughput_images_per_s == pytest.approx(10 * IMAGES / 2.0, rel=1e-4)
    assert (record.params["iterations"], record.metrics["window_s"]) == ("20", pytest.approx(4.0))


RATE = f"train.total_ips : {IMAGES / 0.3:.2f}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (log().replace(RATE, "train.total_ips : nan"), "line 16: 'nan' is not a number"),
        (log().replace(RATE, "train.total_ips : None"), "not a number"),
        (log().replace(RATE, "train.total_ips :"), "not a number"),
        (log().replace(RATE, "train.total_ips : 91706.67"), "0.3001 s passed since"),
        (log(world_size="1"), "passed since"),
        (log().replace("Iteration: 13", "Iteration: 43"), "43 follows 12 of epoch 0"),
        (log(batch_size="6.4"), "not a whole number"),
        (log(batch_size=""), "--set batch_size=N"),
        (log(()), "ended before its first"),
        (streamed(unit=None), "no train.total_ips in images/s"),
        (streamed(unit="tokens/s"), "no train.total_ips in images/s"),
    ],
)
def test_what_cannot_be_true_or_is_of_something_else_is_refused(read, text, reason):
    found = read(text)
    assert found.records == []
    assert reason in str(found.problems[0])
