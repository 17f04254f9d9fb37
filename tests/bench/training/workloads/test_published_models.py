"""transformers' and timm's models, without a network; the cost model sees all of them."""

import json
import math
import socket
from collections import Counter

import pytest
import torch
from refusals import refusal
from torch.utils._python_dispatch import TorchDispatchMode

from bench.config.model_names import CHECKPOINTS
from bench.cost.estimate import step_complexity
from bench.records import StepSpec
from bench.training.step import Fp32, TrainingStep, make_optimizer
from bench.training.workloads import find_workload

pytestmark = pytest.mark.slow  # both take seconds to import

_NARROW = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4}
_TEXT = {"vocab_size": 99, "intermediate_size": 32, "max_position_embeddings": 40}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
TINY = {
    "bert": {**_NARROW, **_TEXT},
    "roberta": {**_NARROW, **_TEXT},
    "gpt2": {"vocab_size": 99, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40, **_ENDS},
    "llama": {**_NARROW, **_TEXT, "num_key_value_heads": 2, "torch_dtype": "bfloat16"},
    "vit": {**_NARROW, "intermediate_size": 32, "image_size": 32},
    "convnext": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_labels": 7},
}


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Make every connection and every name look-up fail."""

    def refuse(*arguments, **options):
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def tiny(tmp_path):
    """Return a function from a type, and maybe a task, to an arch of a small model of it."""

    def write(name, **more):
        kind, colon, task = name.partition(":")
        file = tmp_path / f"{kind}.json"
        file.write_text(json.dumps({"model_type": kind, **TINY[kind], **more}))
        return f"hf:{file}{colon}{task}"

    return write


#: Weights of the published checkpoints, tied ones once, with the head of the task.
WEIGHTS = {
    "distilbert/distilbert-base-uncased": 66_985_530,
    "facebook/convnext-tiny-224": 28_589_128,
    "google-bert/bert-base-uncased": 109_514_298,
    "google/vit-base-patch16-224": 86_567_656,
    "microsoft/resnet-50": 25_557_032,
    "microsoft/swin-tiny-patch4-window7-224": 28_288_354,
    "openai-community/gpt2": 124_439_808,
}


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_a_checkpoints_name_stands_for_a_model_of_its_size(checkpoint):
    workload = find_workload(f"hf:{checkpoint}")
    with torch.device("meta"):
        model = workload.build()
    assert sum(weights.numel() for weights in model.parameters()) == WEIGHTS[checkpoint]
    assert workload.image is None or workload.image[:2] == (224, 1000)


class _Ops(TorchDispatchMode):
    """Counts what is dispatched, in place or not, but for views and allocations."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        moves = not func.is_view and not name.startswith(("empty", "new_empty", "_unsafe_view"))
        if func.namespace == "aten" and moves:
            self.seen[name.rstrip("_")] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("bert", 99),
        ("bert:causal-lm", 99),
        ("bert:sequence-classification", 2),
        ("roberta", 99),
        ("gpt2", 99),
        ("gpt2:sequence-classification", 2),
        ("llama", 99),
        ("vit", 1000),
        ("convnext", 7),
    ],
)
def test_a_step_runs_and_its_cost_is_of_the_same_ops(name, classes, tiny):
    arch = tiny(name)
    torch.manual_seed(0)
    workload = find_workload(arch)
    model = workload.build()
    assert model.training
    assert {weights.dtype for weights in model.parameters()} == {torch.float32}
    batch = workload.batch(2)
    step = TrainingStep(workload, model, make_optimizer(model, "adamw", fused=True), Fp32())
    assert float(step(lambda: batch)) == pytest.approx(math.log(classes), rel=0.1)
    with _Ops() as ops:
        step(lambda: batch)
    cost = step_complexity(StepSpec(arch, 2, "fp32", optimizer="adamw"))
    counted = Counter()
    for op in cost.ops:
        counted[op.op.rstrip("_")] += op.calls
    assert counted == ops.seen


@pytest.mark.parametrize("name", ["bert:causal-lm", "gpt2", "llama"])
def test_a_token_that_is_guessed_is_not_seen_and_nothing_is_cached(name, tiny):
    workload = find_workload(tiny(name))
    model, batch = workload.build().eval(), workload.batch(1)
    before = workload.output(model, batch)
    batch["input_ids"][:, -1] = (batch["input_ids"][:, -1] + 1) % 99
    after = workload.output(model, batch)
    torch.testing.assert_close(after.logits[:, :-1], before.logits[:, :-1], rtol=0, atol=1e-6)
    assert not torch.equal(after.logits[:, -1], before.logits[:, -1])
    assert after.past_key_values is None


@pytest.mark.parametrize(("name", "most"), [("bert", 40), ("gpt2", 40), ("roberta", 38)])
def test_a_sequence_has_at_most_as_many_tokens_as_there_are_positions(name, most, tiny):
    arch = tiny(name)
    assert find_workload(arch).tokens_per_sample == most
    assert find_workload(arch, seq_len=8).batch(3)["input_ids"].shape == (3, 8)
    assert f"takes {most} tokens at most" in refusal(find_workload, arch, seq_len=most + 1)
    workload = find_workload(arch, seq_len=most)
    workload.loss(workload.output(workload.build(), batch := workload.batch(1)), batch)


@pytest.mark.parametrize(
    ("arch", "sizes", "words"),
    [
        ("hf:gpt2", {"seq_len": 1025}, "takes 1024 tokens at most"),
        ("hf:gpt2", {"seq_len": 1}, "give 2 or more"),
        ("hf:gpt2", {"image_size": 32}, "hf:gpt2 takes no --image-size"),
        ("hf:vit", {"seq_len": 8}, "leave it out"),
        ("hf:nothing", {}, "neither a model type"),
    ],
)
def test_a_size_that_a_model_has_no_use_for_is_refused(arch, sizes, words):
    assert words in refusal(find_workload, arch, **sizes)
    assert find_workload("hf:gpt2").seq_len == 128  # unless asked


def test_what_transformers_refuses_is_one_line(tiny):
    arch = tiny("bert", hidden_size="wide")
    assert "transformers refuses this configuration" in refusal(find_workload, arch)
    workload = find_workload(tiny("bert", num_attention_heads=5))
    assert "transformers cannot build it" in refusal(workload.build)


def test_of_a_masked_language_models_tokens_15_percent_have_labels(tiny):
    batch = find_workload(tiny("bert")).batch(50)
    has_label = batch["labels"] != -100
    assert has_label.sum(1).tolist() == [6] * 50
    assert torch.equal(batch["labels"][has_label], batch["input_ids"][has_label])
    assert batch["input_ids"].min() == 1  # 0 is padding
    assert batch["input_ids"].max() == 98


def test_images_have_the_size_and_classes_of_the_file(tiny):
    assert find_workload(tiny("vit")).image[:2] == (32, 1000)
    assert find_workload(tiny("convnext")).image[:2] == (224, 7)
    arch = tiny("vit", id2label={"0": "cat", "1": "dog", "2": "cow"})
    assert find_workload(arch).image.classes == 3
    larger = find_workload(arch, image_size=64)
    images, labels = larger.batch(2)
    assert images.shape == (2, 3, 64, 64)
    assert larger.output(larger.build(), (images, labels)).logits.shape == (2, 3)
    assert "1 channels" in refusal(find_workload, tiny("vit", num_channels=1))
    assert "give image_size" in refusal(find_workload, tiny("vit", image_size=[32, 64]))


def test_code_that_a_file_names_is_not_run(tiny):
    theirs = {"AutoConfig": "someone/theirs--code.Config", "AutoModelForMaskedLM": "code.Model"}
    model = find_workload(tiny("bert", auto_map=theirs)).build()
    assert type(model).__module__.startswith("transformers.models.bert.")


# timm's


def _outputs(workload):
    """The shape of what the model makes of one of its images; nothing is computed."""
    with torch.device("meta"):
        model, batch = workload.build(), workload.batch(1)
        return tuple(workload.output(model, batch).shape)


@pytest.mark.parametrize(
    ("name", "size", "classes", "mean"),
    [
        ("mobilenetv3_small_050", 224, 1000, (0.485, 0.456, 0.406)),
        ("vit_tiny_patch16_224", 224, 1000, (0.5, 0.5, 0.5)),
        ("vit_tiny_patch16_224.augreg_in21k", 224, 21843, (0.5, 0.5, 0.5)),
        ("vit_small_patch14_dinov2", 518, 1000, (0.485, 0.456, 0.406)),
    ],
)
def test_images_are_those_that_the_model_was_published_with(name, size, classes, mean):
    workload = find_workload(f"timm:{name}")
    assert workload.sample == "image"
    assert workload.image[:3] == (size, classes, mean)
    assert _outputs(workload) == (1, classes)


@pytest.mark.parametrize(
    ("name", "size"), [("resnet18", 96), ("vit_tiny_patch16_224", 96), ("mixer_s32_224", 64)]
)
def test_another_size_is_told_to_models_whose_weights_depend_on_it(name, size):
    workload = find_workload(f"timm:{name}", image_size=size)
    assert workload.image.size == size
    assert _outputs(workload) == (1, 1000)


def test_images_that_are_not_square_need_a_size():
    arch = "timm:vit_base_patch16_sapiens2"
    assert "not square (1024 x 768); give image_size" in refusal(find_workload, arch)
    assert _outputs(find_workload(arch, image_size=64)) == (1, 1000)


@pytest.mark.parametrize(
    ("arch", "options", "words"),
    [
        ("timm:resnet18.of_mine", {}, "timm has no such tag"),
        ("timm:nest_tiny", {"image_size": 100}, "cannot be built for that size"),
        ("timm:resnet18", {"seq_len": 8}, "leave it out"),
    ],
)
def test_what_a_model_does_not_take_is_one_line(arch, options, words):
    assert words in refusal(lambda: find_workload(arch, **options).build())
