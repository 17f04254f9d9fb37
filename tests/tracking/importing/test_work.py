"""Which training step a result's file names, what its count needs, and GFLOP/s that files state."""

import pytest
import samples

from bench.config.model_names import timm_architectures
from bench.cost import cached_complexity
from bench.records import StepSpec
from tracking.importing.work import step_of, with_work

HEADER = "model,images_per_s,precision,batch_size,backend,img_size"


def step(arch, precision, image_size=None, backend="cuda"):
    return StepSpec(arch, 8, precision, image_size, backend=backend)


@pytest.mark.parametrize(
    ("row", "step"),
    [
        ("resnet18,9,fp32,8,cpu,", step("resnet18", "fp32", backend="cpu")),
        ("vgg16,9,tf32,8,cuda,160", step("vgg16", "tf32", 160)),
        # CUDA's autocast is fp16 unless asked otherwise, a processor's bf16
        ("resnet18,9,amp,8,cuda,", step("resnet18", "amp-fp16")),
        ("resnet18,9,amp,8,cpu,", step("resnet18", "amp-bf16", backend="cpu")),
        ("resnet18,9,bf16,8,,", step("resnet18", "amp-bf16")),
        ("resnet18,9,,8,mps,", step("resnet18", "amp-fp16", backend="mps")),
        ("timm:vgg16.tv_in1k,9,tf32,8,,448", step("timm:vgg16.tv_in1k", "tf32", 448)),
    ],
)
def test_a_step_is_what_the_file_says_of_it(read, row, step):
    (record,) = read(f"{HEADER}\n{row}").records
    assert step_of(record) == step


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("timm:resnet_18,9,fp32,8,cpu,", "in a table of timm's one of timm's"),
        ("resnet_18,9,fp32,8,cpu,", "its model is not one of torchvision's"),
        ("os:getcwd,9,fp32,8,cpu,", "its model is not one of torchvision's"),
        ("resnet18,9,fp32,,cpu,", "no batch size: the source does not say"),
        ("resnet18,9,int8,8,cpu,", "no step is counted in the precision 'int8'"),
    ],
)
def test_what_cannot_be_counted_has_a_reason(read, row, reason):
    (record,) = read(f"{HEADER}\n{row}").records
    assert reason in step_of(record)
    kept = with_work(record, "why not")
    assert (kept.complexity, kept.missing["complexity"]) == (None, "why not")


def test_a_count_says_what_the_file_leaves_open(read):
    rows = "resnet18,9,amp,8,cuda,224\nresnet18,9,amp,9,cuda,\nresnet18,9,fp32,8,cuda,224"
    said, open_, plain = read(f"{HEADER}\n{rows}").records
    counted = samples.complexity(image_size=224, precision="amp-fp16", math_mode="fp16")
    assert with_work(said, counted).assumed == ("amp counted as amp-fp16",)
    assert with_work(open_, counted).assumed[0] == "images of 224 pixels, the model's own size"
    assert with_work(open_, counted).complexity == counted
    exact = samples.complexity(image_size=224, precision="fp32")
    assert with_work(plain, exact).assumed == ()
    assert with_work(plain, counted).assumed == ()  # fp32 is no name of another precision


def test_a_model_of_timms_has_no_cost_where_timm_is_not_installed(read, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    timm_architectures.cache_clear()
    (record,) = read(f"{HEADER}\ntimm:vgg16,9,fp32,8,cuda,").records
    assert "timm is not installed" in step_of(record)
    timm_architectures.cache_clear()


@pytest.mark.slow
def test_a_row_of_timms_table_is_counted_as_timms_model(read):
    table = "model,train_samples_per_sec,train_batch_size,train_img_size\nvgg16,300,1,448\n"
    (record,) = read(table).records
    # by hand: the convolutions of 224 pixels four times, 15,346,630,656 MAC, and the classifier as
    # convolutions over a map of 14: at 8 x 8 places fc6 and fc7, then pooled for fc8
    macs = 4 * 15_346_630_656 + 8 * 8 * (512 * 49 * 4096 + 4096 * 4096) + 4096 * 1000
    assert cached_complexity(step_of(record)).forward_macs == macs == 69_041_029_120


def test_a_model_of_another_size_is_not_torchvisions(read):
    counted = samples.complexity(parameters=11_689_512)
    table = "model,images_per_s,batch_size,params_m\nresnet18,9,8,11.69\nresnet18,9,9,11.9\n"
    same, other = read(table).records
    assert with_work(same, counted).complexity == counted
    refused = with_work(other, counted)
    assert refused.complexity is None
    assert "its model has 11.9 million parameters" in refused.missing["complexity"]


GIGA = 10**9
#: A step of 10 images: 10 GFLOP an image, 3.4 of them in the forward pass (1.7 GMAC).
COMPLEXITY = samples.complexity(batch_size=10, step_flops=100 * GIGA, forward_macs=17 * GIGA)


@pytest.mark.parametrize(
    ("claimed", "words"),
    [
        (34.0, "the forward pass alone"),
        (17.0, "the forward pass alone with a multiply-add as 1 FLOP"),
        (50.0, "a training step with a multiply-add as 1 FLOP"),
        (68.0, "2 x the forward pass"),
        (102.9, None),
        (103.1, "3 x the forward pass"),
        (400.0, "no usual count"),
    ],
)
def test_a_figure_of_other_work_is_named_with_its_convention(read, claimed, words):
    table = f"model,images_per_s,batch_size,gflops\nresnet18,10,10,{claimed}\n"
    verdict = with_work(read(table).records[0], COMPLEXITY).verdict
    if words is None:
        assert verdict is None
        return
    [found] = verdict.findings
    assert found.level == ("suspect" if words.startswith("no usual") else "note")
    assert (found.facts["stated_gflops"], found.facts["own_gflops"]) == (claimed, 100)
    assert words in found.facts["fits"]
