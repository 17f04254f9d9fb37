"""Which training step a result's file names, and what a count of it needs."""

import pytest
import samples

from bench.records import ImportedRecord
from tracking.importing import read_results
from tracking.importing.work import Step, step_of, with_work


@pytest.fixture
def read(tmp_path):
    def results(columns, *rows):
        path = tmp_path / "table.csv"
        path.write_text("\n".join((columns, *rows)))
        found = read_results(path, campaign="c", given={})
        assert found.problems == []
        return found.records

    return results


HEADER = "model,images_per_s,precision,batch_size,backend,img_size"


@pytest.mark.parametrize(
    ("row", "step"),
    [
        ("resnet18,9,fp32,8,cpu,", Step("resnet18", 8, "fp32", None, "cpu")),
        ("vgg16,9,tf32,8,cuda,160", Step("vgg16", 8, "tf32", 160, "cuda")),
        # CUDA's autocast is fp16 unless asked otherwise, a processor's bf16
        ("resnet18,9,amp,8,cuda,", Step("resnet18", 8, "amp-fp16", None, "cuda")),
        ("resnet18,9,amp,8,cpu,", Step("resnet18", 8, "amp-bf16", None, "cpu")),
        ("resnet18,9,bf16,8,,", Step("resnet18", 8, "amp-bf16", None, "cuda")),
        ("resnet18,9,,8,mps,", Step("resnet18", 8, "amp-fp16", None, "mps")),
    ],
)
def test_a_step_is_what_the_file_says_of_it(read, row, step):
    (record,) = read(HEADER, row)
    assert step_of(record) == step


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("resnet_18,9,fp32,8,cpu,", "its model is not one of torchvision's"),
        ("os:getcwd,9,fp32,8,cpu,", "its model is not one of torchvision's"),
        ("resnet18,9,fp32,,cpu,", "no batch size: the source does not say"),
        ("resnet18,9,int8,8,cpu,", "no step is counted in the precision 'int8'"),
    ],
)
def test_what_cannot_be_counted_has_a_reason(read, row, reason):
    (record,) = read(HEADER, row)
    assert reason in step_of(record)
    kept = with_work(record, "why not")
    assert kept.complexity is None
    assert kept.missing["complexity"] == "why not"


def test_a_count_says_what_the_file_leaves_open(read):
    counted = samples.complexity(image_size=224, precision="amp-fp16", math_mode="fp16")
    said, open_ = read(HEADER, "resnet18,9,amp,8,cuda,224", "resnet18,9,amp,9,cuda,")
    assert with_work(said, counted).assumed == ("amp counted as amp-fp16",)
    assert with_work(open_, counted).assumed[0] == "images of 224 pixels, the model's own size"
    assert with_work(open_, counted).complexity == counted
    exact = samples.complexity(image_size=224, precision="fp32")
    (plain,) = read(HEADER, "resnet18,9,fp32,8,cuda,224")
    assert with_work(plain, exact).assumed == ()


def test_a_model_of_another_size_is_not_torchvisions(read):
    counted = samples.complexity(parameters=11_689_512)
    same, other = read(
        "model,images_per_s,batch_size,params_m", "resnet18,9,8,11.69", "resnet18,9,9,23.8"
    )
    assert with_work(same, counted).complexity == counted
    refused = with_work(other, counted)
    assert refused.complexity is None
    assert "its model has 23.8 million parameters" in refused.missing["complexity"]


def test_results_imported_before_work_was_counted_are_read(read):
    (record,) = read(HEADER, "resnet18,9,fp32,8,cpu,")
    old = record.model_dump(mode="json")
    for name in ("complexity", "verdict", "assumed"):
        del old[name]
        old["missing"].pop(name, None)
    again = ImportedRecord.model_validate(old)
    assert again.missing["complexity"] == "imported by a version that did not count"
    assert again.throughput_images_per_s == 9
