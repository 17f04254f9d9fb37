"""Names of models, checked without importing torch, timm or transformers, which takes seconds."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args


def extra_folder(package: str, extra: str) -> Path:
    """Return the folder of a package of the extra `extra`; raise `ValueError` without it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"{package} is not installed; pip install 'mlproject[{extra}]', or in a clone "
            f"uv pip install -e '.[{extra}]'"
        )
    return Path(spec.submodule_search_locations[0])


def user_path(text: str | Path) -> Path:
    """Return the path with `~` as the home; that of a user who does not exist stays as it is."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def without_home(text: str) -> str:
    """Return the text with `~` for this user's home, which `user_path` reads; also of JSON."""
    if not set("/\\") & set(text):  # no path, as of most settings
        return text
    home = user_path("~")
    if not home.name or home.name not in text:
        return text
    path = re.escape(str(home)).replace(r"\\", r"\\{1,2}")  # Windows' separator, doubled in JSON
    before = r"(?:(?<![\w.~-])|(?<=\\[nrt]))"  # no longer path; JSON's ends of lines are letters
    return re.sub(rf"{before}{path}(?!\.?[\w-])", "~", text)


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return the hint that follows a wrong name: its nearest of `known`, or `otherwise`."""
    near = difflib.get_close_matches(name.lower(), list(known), n=3, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else otherwise


#: What a model is trained for. A type that has several without saying which gets the first.
Task = Literal["masked-lm", "causal-lm", "image-classification", "sequence-classification"]
TASKS: tuple[Task, ...] = get_args(Task)

#: Published checkpoints whose configuration is the default of their type in transformers, by the
#: number of weights. The others that its source names need not be: its default OPT has 12 layers,
#: and facebook/opt-350m, which stands beside it, has 24.
CHECKPOINTS: Mapping[str, str] = MappingProxyType(
    {
        "distilbert/distilbert-base-uncased": "distilbert",
        "facebook/convnext-tiny-224": "convnext",
        "google-bert/bert-base-uncased": "bert",
        "google/vit-base-patch16-224": "vit",
        "microsoft/resnet-50": "resnet",
        "microsoft/swin-tiny-patch4-window7-224": "swin",
        "openai-community/gpt2": "gpt2",
    }
)

#: Where transformers lists the classes of each task by type.
_MAPPINGS: Mapping[Task, str] = MappingProxyType(
    {
        "masked-lm": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
        "causal-lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
        "image-classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        "sequence-classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    }
)
_ENCODER_DECODERS = "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"
#: `("bert", "BertForMaskedLM")`, or a tuple of classes, of which the first is taken.
_ENTRY = re.compile(r'\(\s*"([^"]+)",\s*\(?\s*"([^"]+)"')


@cache
def _read_mappings() -> Mapping[str, Mapping[str, str]]:
    source = extra_folder("transformers", "hf") / "models" / "auto" / "modeling_auto.py"
    text = source.read_text(encoding="utf-8")
    mappings = {}
    for name in (*_MAPPINGS.values(), _ENCODER_DECODERS):
        body = text.partition(f"\n{name} = OrderedDict(\n")[2].partition("\n)\n")[0]
        mappings[name] = {match[1]: match[2] for match in _ENTRY.finditer(body)}
    return mappings


def _classes(model_type: str) -> dict[Task, str]:
    """Its class for each task, without those that are an encoder with a decoder."""
    mappings = _read_mappings()
    both = mappings[_ENCODER_DECODERS].values()
    names = {task: mappings[mapping].get(model_type) for task, mapping in _MAPPINGS.items()}
    return {task: name for task, name in names.items() if name is not None and name not in both}


@cache
def _types() -> Mapping[str, str]:
    """Types by the names that stand for them: a checkpoint's may be without its owner."""
    mappings = _read_mappings()
    kinds = [kind for mapping in _MAPPINGS.values() for kind in mappings[mapping]]
    types = {kind: kind for kind in kinds if _classes(kind)}
    for checkpoint, kind in CHECKPOINTS.items():
        types |= {checkpoint: kind, checkpoint.partition("/")[2]: kind}
    return types


class HfModel(NamedTuple):
    """A type of model, its class for the task, and the content of the user's `config.json`.

    Without a file it is None: the model has the default configuration of its type.
    """

    model_type: str
    task: Task
    class_name: str
    config: dict[str, Any] | None = None


def find_hf_model(name: str) -> HfModel:
    """Return the model that `hf:NAME` asks for. Raises `ValueError`."""
    base, task = _split_task(name)
    path = _config_path(base)
    config = None if path is None else _read(path)
    model_type = _types().get(base) if config is None else str(config["model_type"])
    if model_type is None:
        hint = nearest(base.rpartition("/")[2], set(_types().values()), "try gpt2, bert, vit")
        raise ValueError(
            f"neither a model type of transformers nor the path of a model's config.json; {hint}"
        )
    classes = _classes(model_type)
    if not classes:
        raise ValueError(f"{model_type} has no head for {', '.join(TASKS)}")
    chosen = task or _own_task(model_type, classes, (config or {}).get("architectures"))
    if chosen not in classes:
        raise ValueError(f"{model_type} has no head for {chosen}; give {' or '.join(classes)}")
    return HfModel(model_type, chosen, classes[chosen], config)


def _split_task(name: str) -> tuple[str, Task | None]:
    base, colon, asked = name.rpartition(":")
    if not colon:
        return name, None
    if asked not in TASKS:
        raise ValueError(f"{asked!r} is no task; give {', '.join(TASKS)}")
    return base, asked


def _config_path(base: str) -> Path | None:
    """The user's `config.json` that is asked for; None where it is a type or a checkpoint."""
    if base in _types():
        return None
    path = user_path(base)
    if base and path.is_dir():
        path /= "config.json"
    looks_like_one = path.suffix == ".json" or base.startswith((".", "/", "~"))
    return path if looks_like_one or path.is_file() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); check the path") from None
    except ValueError:  # neither UTF-8 nor JSON
        raise ValueError(f"{path} is no JSON: give a model's config.json") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ValueError(f"{path} has no model_type: give a model's config.json")
    return config


def _own_task(model_type: str, classes: Mapping[Task, str], stated: object) -> Task:
    """Return the task of the class that a file states, else the first that the type is made for."""
    names = stated if isinstance(stated, list) else []
    for task, class_name in classes.items():
        if class_name in names:
            return task
    remedy = f"add :TASK, which is {' or '.join(classes)}"
    if names and not str(names[0]).endswith("Model"):  # a class without a head asks for nothing
        raise ValueError(f"its class is {names[0]}: {remedy}")
    if model_type in _read_mappings()[_ENCODER_DECODERS]:
        raise ValueError(
            f"{model_type} is an encoder with a decoder, not trained as a whole here: {remedy}"
        )
    return next(iter(classes))


_OF_TIMM = re.compile(r"^@register_model\ndef (\w+)", re.M)
_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_CALLABLE = re.compile(rf"{_DOTTED}:{_DOTTED}")


#: Where a model comes from: a package, or a callable of the user's own.
ModelSource = Literal["torchvision", "timm", "hf", "own", "script"]
_PREFIXES: tuple[ModelSource, ...] = ("timm", "hf", "script")


def split_arch(arch: str) -> tuple[ModelSource, str]:
    """Return where the model `arch` comes from, and its name there.

    `timm:convnext_tiny` is `convnext_tiny` of timm, `script:train.py` what that script trains; a
    torchvision name has no prefix, and any other colon stands in a callable of the user's own,
    whose name is all of `arch`.
    """
    prefix, colon, name = arch.partition(":")
    if not colon:
        return "torchvision", arch
    return next(((source, name) for source in _PREFIXES if prefix == source), ("own", arch))


def arch_label(arch: str) -> str:
    """Return `arch` for use in a name: a path's slashes and a callable's colon are not in it."""
    parts = re.split(r"[^A-Za-z0-9._-]+", arch.replace(":", "."))
    return "-".join(part for part in (part.strip(".") for part in parts) if part)


def package_of(arch: str) -> str | None:
    """Return the package that holds all of the model `arch`; None where a file of the user's does.

    transformers' configurations are in the package unless they are named by a path.
    """
    source, name = split_arch(arch)
    if source == "hf":
        return "transformers" if _config_path(_split_task(name)[0]) is None else None
    return None if source in ("own", "script") else source


def missing_package(arch: str) -> str | None:
    """Return what to install for `arch` to be built here, or None where nothing is missing."""
    source, _ = split_arch(arch)
    package = {"timm": "timm", "hf": "transformers"}.get(source)
    if package is None or importlib.util.find_spec(package) is not None:
        return None
    return f"{package} (pip install 'mlproject[{source}]')"


#: The classification models of the pinned torchvision; another version may have more.
TORCHVISION_MODELS = tuple(
    """
    alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161
    densenet169 densenet201 efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3
    efficientnet_b4 efficientnet_b5 efficientnet_b6 efficientnet_b7 efficientnet_v2_l
    efficientnet_v2_m efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5 mnasnet0_75
    mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf
    regnet_x_1_6gf regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf
    regnet_y_128gf regnet_y_16gf regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf regnet_y_400mf
    regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet18 resnet34 resnet50 resnext101_32x8d
    resnext101_64x4d resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5
    shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b swin_s swin_t swin_v2_b swin_v2_s
    swin_v2_t vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn vit_b_16 vit_b_32
    vit_h_14 vit_l_16 vit_l_32 wide_resnet101_2 wide_resnet50_2
    """.split()  # noqa: SIM905 - as a list they would be eighty lines
)


@cache
def timm_architectures() -> tuple[str, ...]:
    """Names of timm's models, read from its source: those of `timm.list_models()`.

    Raises `ValueError` where timm is not installed.
    """
    sources = (extra_folder("timm", "timm") / "models").glob("*.py")
    names = {name for file in sources for name in _OF_TIMM.findall(file.read_text("utf-8"))}
    return tuple(sorted(names))


def check_architecture(arch: str) -> str:
    """Return `arch`; raise `ValueError`, with the nearest names, if it cannot name a model."""
    source, name = split_arch(arch)
    if source == "hf":
        find_hf_model(name)
    elif source == "script":
        raise ValueError(f"a script is measured as it is: mlproject watch -- python {name}")
    elif source == "own":
        if not _CALLABLE.fullmatch(name):
            raise ValueError("write your own model as module:callable, like mymodels.nets:tiny")
    elif source == "timm":
        model = name.partition(".")[0]  # behind the dot: which weights, whose images it takes
        if model not in (known := timm_architectures()):
            usual = "try convnext_tiny, efficientnet_b0, vit_base_patch16_224"
            raise ValueError(f"not a model of timm; {nearest(model, known, usual)}")
    elif name not in TORCHVISION_MODELS and name not in _installed_torchvision_models():
        hint = nearest(name, TORCHVISION_MODELS, "try resnet50, vgg16, mobilenet_v2")
        raise ValueError(f"not a torchvision classification model; {hint}")
    return arch


def _installed_torchvision_models() -> list[str]:
    """Ask torchvision itself, which takes seconds."""
    try:
        models = importlib.import_module("torchvision.models")
    except ImportError:
        raise ValueError("torchvision is not installed: run make setup") from None
    return list(models.list_models(module=models))
