"""From what a file says of one result to a record: nothing added, nothing guessed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bench.config.model_names import torchvision_architectures
from bench.records import ImportedRecord
from tracking.importing.columns import BESIDE, COUNTS, TEXTS
from tracking.importing.source_files import SourceFile

_BACKENDS = {"gpu": "cuda", "nvidia": "cuda", "metal": "mps"}
_PRECISIONS = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "mixed": "amp",
    "mixed-precision": "amp",
    "amp_bf16": "amp-bf16",
    "amp_bfloat16": "amp-bf16",
    "amp_fp16": "amp-fp16",
    "amp_float16": "amp-fp16",
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]{0,127}")
_LABEL = re.compile(
    r"(?P<rest>[A-Za-z0-9._-]+)_(?P<precision>fp32|tf32|fp16|bf16|amp(?:-[a-z0-9]+)?)"
    r"_bs(?P<batch_size>[0-9]{1,6})(?:_run(?P<repeat>[0-9]{1,6}))?"
)
#: Families whose members' names have underscores: in a label they begin where these words do.
_FAMILIES = re.compile(
    r"(?:^|_)((?:alexnet|convnext|densenet|efficientnet|googlenet|inception|maxvit|mnasnet|"
    r"mobilenet|regnet|resnet|resnext|shufflenet|squeezenet|swin|vgg|vit|wide_resnet)\w*)$"
)
#: Families of models that read text.
_OF_TEXT = re.compile(
    r"gpt|bert|llama|mistral|qwen|gemma|bloom|falcon|transformer-?xl|\bt5\b|\bopt\b"
)
_GPU = re.compile(
    r"(?:^|_)(?:(?P<count>\d{1,2})x)?(?P<gpu>TitanRTX|QuadroRTX\d{4}|(?:AdaA|GH|[ABHLTV])\d{2,4}|"
    r"\d{4}(?:Ti|SuperMaxQ|Super|Max-?Q)?)[A-Za-z]*"
    r"(?P<variant>(?:_(?:\d{2,3}GB|SXM\d?|PCIe\d?|NVL)(?=_|$))*)(?=_|$)"
)
#: Samples of one step; more is a mistake in the file.
_LARGEST_BATCH = 10_000_000
#: Facts that a user may state, and of these the whole numbers.
GIVEN_COUNTS = ("batch_size", "repeat", "image_size", "devices", "warmup_iters")
GIVEN = ("arch", "env", "device", "backend", "precision", "unit", *GIVEN_COUNTS)
_SETTINGS = (
    *("image_size", "iterations", "warmup_iters", "repeats"),
    *("devices", "nodes", "grad_accum_steps"),
)
#: What a file says beside its result: no part of the record's id.
_CLAIMS = (*BESIDE, "throughput_images_per_s_max")


@dataclass
class Result:
    """What a file says of one result.

    `facts` have the names of the record's fields and metrics: texts (`arch`, `env`, `device`,
    `backend`, `precision`, and `label`, which may name several), counts (`batch_size` of one device
    and one backward pass, `image_size` in pixels a side, `repeat`, `iterations`, `warmup_iters`,
    `devices` of each machine, `nodes` that trained together, `grad_accum_steps`), and metrics
    (`throughput_images_per_s` of all devices, `throughput_images_per_s_max` of a part such as an
    epoch, `window_s`, ...). A None is no fact. `line` is of a table, None for a whole file.
    """

    format: str
    facts: dict[str, Any] = field(default_factory=dict)
    line: int | None = None
    #: Whatever else the file says, under its own names.
    extra: dict[str, str] = field(default_factory=dict)
    #: Why a fact is absent, where the source says more than nothing of it.
    missing: dict[str, str] = field(default_factory=dict)
    #: Other settings of the run, under the names of `RunConfig`; `step` for one without optimizer.
    params: dict[str, str] = field(default_factory=dict)
    measured_at: datetime | None = None
    iteration_times_s: tuple[float, ...] | None = None
    #: The column of a rate whose name does not say that it is of images.
    rate_column: str | None = None


def record_of(
    result: Result,
    file: SourceFile,
    *,
    campaign: str,
    given: Mapping[str, str],
    imported_at: datetime,
) -> ImportedRecord:
    """Return the record of one result. Raises `ValueError` where it lacks what makes it one.

    `given` are facts of the user's, for where the file and a label in it are silent.
    """
    facts = {name: fact for name, fact in result.facts.items() if fact not in (None, "")}
    texts = {name: str(fact) for name, fact in facts.items() if name in TEXTS}
    stated = {
        name: int(text) if name in GIVEN_COUNTS else text
        for name, text in given.items()
        if name != "unit"
    }
    result.facts = stated | facts_in_name(texts.get("label", "")) | facts | texts
    if label := result.facts.pop("label", None):
        result.extra.setdefault("label", label)
    _check(result, given)
    throughput = result.facts.get("throughput_images_per_s") or _derived(result)
    known_why = {"batch_size", "throughput_images_per_s"} & result.missing.keys()
    timed = result.iteration_times_s or "iteration_time_ms_mean" in result.facts
    if throughput is None and not (timed and known_why):
        raise ValueError("no throughput, and no iteration time with its batch size")
    facts = result.facts
    params = {name: str(facts[name]) for name in _SETTINGS if name in facts}
    no_metrics = {"throughput_images_per_s", *TEXTS, *COUNTS, *_SETTINGS}
    reasons = {
        "source_line": "the source is one whole file",
        "complexity": "not counted",
        "verdict": "none of its figures contradicts another",
    }
    return ImportedRecord.of(
        "the source does not say",
        reasons | result.missing,
        record_id=_identity(result, texts, given),
        created=result.measured_at or imported_at,
        source_file=file.name,
        source_sha256=file.sha256,
        source_line=result.line,
        source_format=result.format,
        campaign=campaign,
        arch=facts["arch"],
        device=facts.get("device"),
        backend=_spelled(facts.get("backend"), _BACKENDS),
        precision=_spelled(facts.get("precision"), _PRECISIONS),
        env=_as_label(facts.get("env")),
        batch_size=facts.get("batch_size"),
        repeat=facts.get("repeat"),
        throughput_images_per_s=throughput,
        iteration_times_s=result.iteration_times_s,
        measured_at=result.measured_at,
        params=params | result.params,
        metrics={name: fact for name, fact in facts.items() if name not in no_metrics},
        extra=result.extra,
    )


def _check(result: Result, given: Mapping[str, str]) -> None:
    arch = result.facts.get("arch")
    if arch is None:
        raise ValueError("no model is named: add --set arch=NAME")
    if not _NAME.fullmatch(arch):
        raise ValueError(f"model={arch[:40]!r} is no model's name")
    of_images = arch in torchvision_architectures() or _FAMILIES.match(arch)
    if result.rate_column and given.get("unit") != "images/s" and not of_images:
        raise ValueError(
            f"{result.rate_column}: {arch} may train on something else than images; if these are "
            "images/s, add --set unit=images/s"
        )
    if (batch := result.facts.get("batch_size") or 0) > _LARGEST_BATCH:
        raise ValueError(f"batch_size={batch}: more than {_LARGEST_BATCH}")


def _derived(result: Result) -> float | None:
    """Images over time, where the file gives both and no rate; the result then says so."""
    facts, unknown = result.facts, "throughput_images_per_s"
    if _OF_TEXT.search(facts["arch"].lower()):
        result.missing[unknown] = f"{facts['arch']} reads text: its samples are no images"
        return None
    batch = facts.get("batch_size")
    if batch is None:
        return None
    if (accumulated := facts.get("grad_accum_steps") or 1) > 1:
        result.missing[unknown] = (
            f"grad_accum_steps is {accumulated}, and the source does not say whether "
            "its time is of one batch or of all of a step"
        )
        return None
    images: int = batch * (facts.get("devices") or 1) * (facts.get("nodes") or 1)
    if times := result.iteration_times_s:
        result.extra["throughput_from"] = "batch size x iterations / sum of their times"
        return images * len(times) / sum(times)
    mean_ms: float | None = facts.get("iteration_time_ms_mean")
    if mean_ms is None:
        return None
    result.extra["throughput_from"] = "batch size / mean iteration time"
    return images * 1e3 / mean_ms


def _identity(result: Result, texts: Mapping[str, str], given: Mapping[str, str]) -> str:
    """Equal for the same result in whatever file, on whatever line, imported whenever.

    `texts` are the file's. What the user adds belongs to it: it distinguishes results whose files
    do not. What stands beside a result does not: when a reader comes to know such a column, a file
    that was imported before stays known.
    """
    no_numbers = {*TEXTS, *COUNTS, *_CLAIMS}
    says = {
        "format": result.format,
        "texts": texts,
        "numbers": {name: fact for name, fact in result.facts.items() if name not in no_numbers},
        "counts": {name: fact for name, fact in result.facts.items() if name in COUNTS},
        "extra": result.extra,
        "measured_at": result.measured_at.isoformat() if result.measured_at else None,
        "iteration_times_s": result.iteration_times_s,
        "given": dict(given),
    }
    canonical = json.dumps(says, sort_keys=True, separators=(",", ":"))
    return f"imported-{hashlib.sha256(canonical.encode()).hexdigest()[:20]}"


def facts_in_name(name: str) -> dict[str, Any]:
    """Return what a label such as `rtx4090_resnet50_amp_bs64_run1` says of its run."""
    found = _LABEL.fullmatch(name)
    if found is None:
        return {}
    facts = {"precision": found["precision"], "batch_size": int(found["batch_size"])}
    facts |= {"repeat": int(found["repeat"])} if found["repeat"] else {}
    if (family := _FAMILIES.search(found["rest"])) is not None:
        facts["arch"] = family[1]
        if env := found["rest"][: family.start(1)].rstrip("_"):
            facts["env"] = env
    return facts


def gpu_in_name(label: str) -> tuple[str | None, int | None]:
    """Return which GPU a machine's label names, and how many; None for what it does not say.

    `8xH100_80GB_SXM5_192-222-52-99_v2` has 8 `H100 80GB SXM5`.
    """
    gpu = _GPU.search(label)
    if gpu is None:
        return None, None
    return gpu["gpu"] + gpu["variant"].replace("_", " "), int(gpu["count"] or 0) or None


def _as_label(text: str | None) -> str | None:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text or "").strip("-._")[:64] or None


def _spelled(text: str | None, spellings: Mapping[str, str]) -> str | None:
    """A name in this project's spelling: `cuda:0` is cuda, `torch.float16` is fp16."""
    plain = (text or "").lower().removeprefix("torch.").partition(":")[0]
    return spellings.get(plain, plain)[:64] or None
