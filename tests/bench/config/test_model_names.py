"""Names of models: checked against what the packages say, without importing them."""

import json

import pytest
from refusals import refusal
from worker_processes import output_of

from bench.config import arch_label, parse_config, recorded_config, user_path, without_home
from bench.config.model_names import (
    TORCHVISION_MODELS,
    HfModel,
    find_hf_model,
    package_of,
    timm_architectures,
)


@pytest.mark.slow
def test_the_list_of_torchvisions_names_is_that_of_the_pinned_version(monkeypatch):
    from torchvision import models

    assert list(TORCHVISION_MODELS) == models.list_models(module=models)
    monkeypatch.setattr("bench.config.model_names.TORCHVISION_MODELS", ())
    assert parse_config({"arch": "resnet50"}).arch == "resnet50"  # of another version


@pytest.mark.slow
def test_timms_names_are_those_that_it_lists():
    import timm

    assert set(timm_architectures()) == set(timm.list_models())


@pytest.mark.slow
def test_transformers_classes_are_those_of_its_mappings():
    from transformers.models.auto import modeling_auto

    from bench.config.model_names import _read_mappings

    for name, read in _read_mappings().items():
        known = getattr(modeling_auto, name).items()
        assert read == {kind: one if isinstance(one, str) else one[0] for kind, one in known}


@pytest.mark.parametrize(
    ("arch", "words"),
    [
        ("timm:convnext_tinny", ["convnext_tiny"]),
        ("timm:", ["try convnext_tiny"]),
        ("hf:gpt3", ["did you mean", "gpt2"]),
        ("hf:", ["try gpt2"]),
        ("hf:gpt2:guessing", ["'guessing' is no task", "causal-lm"]),
        ("hf:gpt2:masked-lm", ["no head for masked-lm", "causal-lm or sequence-classification"]),
        ("hf:t5", ["add :TASK", "sequence-classification"]),
        ("hf:bart:masked-lm", ["bart has no head for masked-lm"]),
        ("hf:facebook/opt-350m", ["config.json", "did you mean opt"]),
        ("hf:./none/config.json", ["none/config.json", "check the path"]),
    ],
)
def test_a_wrong_name_is_refused_with_the_remedy(arch, words):
    message = refusal(parse_config, {"arch": arch})
    assert all(word in message for word in [f"arch={arch!r}", *words])


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("gpt2", ("gpt2", "causal-lm", "GPT2LMHeadModel")),
        ("bert", ("bert", "masked-lm", "BertForMaskedLM")),
        ("bert-base-uncased", ("bert", "masked-lm", "BertForMaskedLM")),
        ("google-bert/bert-base-uncased:causal-lm", ("bert", "causal-lm", "BertLMHeadModel")),
        ("bart:causal-lm", ("bart", "causal-lm", "BartForCausalLM")),
        ("convnext", ("convnext", "image-classification", "ConvNextForImageClassification")),
    ],
)
def test_a_type_or_checkpoint_has_its_own_task_unless_one_is_stated(
    name, model, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()  # a type is not taken for a folder of its name
    assert find_hf_model(name) == HfModel(*model)
    assert "gpt2/config.json cannot be read" in refusal(find_hf_model, "./gpt2", error=ValueError)


@pytest.mark.parametrize(
    ("stated", "task"),
    [
        ('{"model_type": "gpt2"}', "causal-lm"),
        ('{"model_type": "bert", "architectures": ["BertModel"]}', "masked-lm"),
        ('{"model_type": "bert", "architectures": ["BertLMHeadModel"]}', "causal-lm"),
        (
            '{"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"]}',
            "sequence-classification",
        ),
    ],
)
def test_a_file_states_its_task(stated, task, tmp_path):
    (tmp_path / "config.json").write_text(stated)
    assert (
        find_hf_model(str(tmp_path)).task == find_hf_model(f"{tmp_path}/config.json").task == task
    )
    assert find_hf_model(f"{tmp_path}:causal-lm").task == "causal-lm"
    assert package_of(f"hf:{tmp_path}:causal-lm") is None
    assert package_of("hf:gpt2:causal-lm") == "transformers"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is no JSON"),
        ("[1]", "no model_type"),
        ("{}", "no model_type"),
        ('{"model_type": "gpt5"}', "gpt5 has no head for"),
        (
            '{"model_type": "bert", "architectures": ["BertForQuestionAnswering"]}',
            "BertForQuestionAnswering: add :TASK",
        ),
    ],
)
def test_a_file_that_describes_no_model_is_refused(content, words, tmp_path):
    (tmp_path / "config.json").write_text(content)
    assert words in refusal(parse_config, {"arch": f"hf:{tmp_path}"})


ABSENT = """
import importlib.util, sys
from bench.config import parse_config
from bench.errors import UserError
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: (
    None if name in ("timm", "transformers") else found(name, *rest))
for arch in ("timm:resnet50", "hf:gpt2"):
    try:
        parse_config({"arch": arch})
    except UserError as error:
        print(error)
importlib.util.find_spec = found
for arch in ("timm:resnet50", "hf:gpt2"):
    parse_config({"arch": arch})
print(sorted({"torch", "timm", "transformers"} & sys.modules.keys()))
"""


def test_names_are_checked_without_importing_the_packages_which_need_not_be_here():
    timm, transformers, imported = output_of(ABSENT).splitlines()
    assert "timm is not installed; pip install 'mlproject[timm]'" in timm
    assert "transformers is not installed; pip install 'mlproject[hf]'" in transformers
    assert imported == "[]"
    for gone in ("timm:of_a_later_version", "hf:./gone/config.json"):
        assert recorded_config({"arch": gone}).arch == gone


@pytest.mark.parametrize(
    ("arch", "label"),
    [
        ("resnet50", "resnet50"),
        ("mymodels.nets:tiny", "mymodels.nets.tiny"),
        ("timm:resnet50.a1_in1k", "timm.resnet50.a1_in1k"),
        ("hf:google-bert/bert-base-uncased", "hf.google-bert-bert-base-uncased"),
        ("hf:./my models/config.json", "hf-my-models-config.json"),
        ("hf:../config.json:masked-lm", "hf-config.json.masked-lm"),
    ],
)
def test_a_name_made_from_an_arch_has_no_path_in_it(arch, label):
    assert arch_label(arch) == label


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("HOME", "~"),
        ("cannot open HOME/a b.pt: no", "cannot open ~/a b.pt: no"),
        ("'HOME', HOME.", "'~', ~."),
        ("file://HOME/x\nHOME/y", "file://~/x\n~/y"),
        ("HOMEbel/x HOME-2/x HOME.bak/x /dataHOME/x", None),
    ],
)
def test_a_home_becomes_a_tilde_and_its_likes_stay(monkeypatch, tmp_path, text, short):
    monkeypatch.setenv("HOME", home := str(tmp_path / "anna"))
    text = text.replace("HOME", home)
    short = text if short is None else short
    assert without_home(text) == short
    assert json.loads(without_home(json.dumps(text))) == short
    assert parse_config({"data": f"{home}/pics"}).data == "~/pics"
    assert user_path("~/pics") == tmp_path / "anna" / "pics"
    monkeypatch.setenv("HOME", "/")
    assert without_home("/data/x") == "/data/x"
