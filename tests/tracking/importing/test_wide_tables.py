"""Tables with a column per model, written here in the forms of two published collections."""

import json

import pytest

from tracking.importing import read_results

TIMES = "resnet18,vgg16\n10.0,40.0\n20.0,80.0\n"
TRAINED = "GeForce_RTX_3090__half_model_train_benchmark.csv"
CONFIG = {"WARM_UP": 5, "NUM_TEST": 2, "BATCH_SIZE": 12, "GPU_COUNT": 1}
MACHINES = (
    ",ssd,resnet50,vgg16\n"
    "Lambda_8xH100_80GB_SXM5_99_v2,6501.0,21880.0,0.0\n"
    "2x4090_v1,300,2000,900\n"
)


@pytest.fixture
def read(tmp_path):
    def read(text, name="table.csv", config=None, **given):
        path = tmp_path / "GeForce_RTX_3090" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        if config is not None:
            (path.parent / "config.json").write_text(json.dumps(config))
        return read_results(path, campaign="old", given=given)

    return read


def test_a_column_of_iterations_is_a_run_without_an_optimizer(read):
    found = read(TIMES, TRAINED, CONFIG)
    assert found.problems == []
    first, second = found.records
    assert (first.arch, second.arch) == ("resnet18", "vgg16")
    assert first.source_format == "wide-iterations"
    assert first.iteration_times_s == pytest.approx((0.01, 0.02))
    assert first.throughput_images_per_s == pytest.approx(12 * 2 / 0.03)
    assert (first.env, first.device) == ("GeForce_RTX_3090", "GeForce RTX 3090")
    assert (first.precision, first.batch_size) == ("fp16", 12)
    assert first.params == {
        "image_size": "224",
        "iterations": "2",
        "warmup_iters": "5",
        "devices": "1",
        "data": "synthetic",
        "step": "forward and backward",
    }
    assert "no optimizer" in first.extra["step"]


def test_without_a_configuration_there_are_times_and_no_throughput(read):
    [record, _] = read(TIMES, TRAINED).records
    assert record.iteration_times_s == pytest.approx((0.01, 0.02))
    assert record.batch_size is record.throughput_images_per_s is None
    assert record.missing["batch_size"] == "no config.json is beside the file"
    assert record.missing["throughput_images_per_s"] == "no batch size is known"
    [record, _] = read(TIMES, TRAINED, batch_size="6").records
    assert record.throughput_images_per_s == pytest.approx(6 * 2 / 0.03)


def test_the_batch_of_several_gpus_is_shared_and_a_strange_configuration_is_not_believed(read):
    name = TRAINED.replace("__half", "__3X__half")
    [record, _] = read(TIMES, name, CONFIG | {"GPU_COUNT": 3}).records
    assert (record.batch_size, record.params["devices"]) == (4, "3")
    assert record.device == "GeForce RTX 3090"
    for changed, reason in (
        ({"GPU_COUNT": 1}, "another number of GPUs"),
        ({"NUM_TEST": 50}, "another number of iterations"),
        ({"GPU_COUNT": 3, "BATCH_SIZE": 16}, "not shared evenly by 3 GPUs"),
    ):
        [record, _] = read(TIMES, name, CONFIG | changed).records
        assert reason in record.missing["batch_size"]


def test_other_times_need_a_unit_and_inference_is_something_else(read):
    assert "--set unit=s, ms or us" in read(TIMES).problems[0].reason
    [record, _] = read(TIMES, unit="us", warmup_iters="1", batch_size="2").records
    assert record.iteration_times_s == pytest.approx((20e-6,))
    assert "step" not in record.params
    assert "inference" in read(TIMES, TRAINED.replace("train", "inference")).problems[0].reason


def test_a_bad_time_costs_its_model(read):
    found = read(TIMES.replace("80.0", "nan"), TRAINED, CONFIG)
    assert [record.arch for record in found.records] == ["resnet18"]
    assert found.problems[0].reason == "vgg16: 'nan' is not a number"
    assert found.problems[0].line == 3


def test_a_row_of_throughputs_is_a_run_per_image_model(read):
    assert "--set unit=images/s" in read(MACHINES).problems[0].reason
    found = read(MACHINES, unit="images/s")
    assert found.problems == []
    facts = [
        (one.env, one.device, one.params["devices"], one.arch, one.throughput_images_per_s)
        for one in found.records
    ]
    assert facts == [
        ("Lambda_8xH100_80GB_SXM5_99_v2", "H100 80GB SXM5", "8", "resnet50", 21880.0),
        ("2x4090_v1", "4090", "2", "resnet50", 2000.0),
        ("2x4090_v1", "4090", "2", "vgg16", 900.0),
    ]
    assert [record.source_line for record in found.records] == [2, 3, 3]
    [named] = read("name_gpu,num_gpu,resnet50\nRTX 3090,2,905\n", unit="images/s").records
    assert (named.device, named.params["devices"]) == ("RTX 3090", "2")
    found = read(MACHINES.replace("900", "fast"), unit="images/s")
    assert found.problems[0].reason == "vgg16: 'fast' is not a number"
