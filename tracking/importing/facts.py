"""From what a file says of one result to a record: nothing added, nothing guessed."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from datetime import datetime

from bench.config.architectures import torchvision_architectures
from bench.records import ImportedRecord, SourceFormat

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
#: Samples of one step; more is a mistake in the file.
_LARGEST_BATCH = 10_000_000
#: Facts that a user may state and that are whole numbers.
GIVEN_COUNTS = ("batch_size", "repeat", "image_size", "devices", "warmup_iters")
_NOT_STATED = "the source does not say"


@dataclass
class Facts:
    """What a file says of one result; names of facts as in the record and its metrics.

    `counts["batch_size"]` is of one device and one backward pass, `counts["image_size"]` in pixels
    a side. `devices` are those of each machine, `nodes` the machines that trained together. What
    follows `iteration_times_s` does not enter the record's id: a reader that comes to know a column
    keeps its text in `extra`, as before, so that a file imported earlier is known again.
    """

    format: SourceFormat
    line: int | None
    texts: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    extra: dict[str, str] = field(default_factory=dict)
    measured_at: datetime | None = None
    iteration_times_s: tuple[float, ...] | None = None
    devices: int | None = None
    nodes: int | None = None
    grad_accum_steps: int | None = None
    parameters: float | None = None  # of the model
    claimed_gflops: float | None = None  # GFLOP/s, all devices together
    fastest_images_per_s: float | None = None  # of a part that the file states, such as an epoch
    has_optimizer: bool = True  # False: its steps end with the backward pass
    rate_column: str | None = None  # of a rate whose name does not say that it is of images
    #: Other settings of the run, under the names of `RunConfig`.
    params: dict[str, str] = field(default_factory=dict)
    #: Why a fact is absent, where the source says more than nothing of it.
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BadLine:
    """A line of a file that could not be taken, and why."""

    line: int
    reason: str


class OtherWorkError(ValueError):
    """A file of a known format with results of something else than training on images."""


@dataclass(frozen=True)
class Source:
    """The file, and what the user adds to it."""

    name: str
    sha256: str
    campaign: str
    given: dict[str, str]
    imported_at: datetime


def record_of(facts: Facts, source: Source) -> ImportedRecord:
    """Return the record of one result. Raises `ValueError` where it lacks what makes it one."""
    texts = _completed(facts, source)
    arch = texts.get("arch")
    if arch is None:
        raise ValueError("no model is named: add --set arch=NAME")
    if not _NAME.fullmatch(arch):
        raise ValueError(f"model={arch[:40]!r} is no model's name")
    if facts.rate_column and source.given.get("unit") != "images/s" and not _is_of_images(arch):
        raise ValueError(
            f"{facts.rate_column}: {arch} may train on something else than images; if these are "
            "images/s, add --set unit=images/s"
        )
    if (batch := facts.counts.get("batch_size") or 0) > _LARGEST_BATCH:
        raise ValueError(f"batch_size={batch}: more than {_LARGEST_BATCH}")
    claims = {
        "parameters": facts.parameters,
        "claimed_gflops": facts.claimed_gflops,
        "throughput_images_per_s_max": facts.fastest_images_per_s,
    }
    metrics = facts.numbers | {name: one for name, one in claims.items() if one is not None}
    throughput = metrics.pop("throughput_images_per_s", None)
    if throughput is None and _OF_TEXT.search(arch.lower()):
        facts.missing["throughput_images_per_s"] = f"{arch} reads text: its samples are no images"
    elif throughput is None:
        throughput = _derived(facts)
    known_why = {"batch_size", "throughput_images_per_s"} & facts.missing.keys()
    timed = facts.iteration_times_s or "iteration_time_ms_mean" in facts.numbers
    if throughput is None and not (timed and known_why):
        raise ValueError("no throughput, and no iteration time with its batch size")
    facts.missing.setdefault("source_line", "the source is one whole file")
    known = {
        "device": texts.get("device"),
        "backend": _backend(texts.get("backend")),
        "precision": _precision(texts.get("precision")),
        "env": _as_label(texts.get("env")),
        "batch_size": facts.counts.get("batch_size"),
        "repeat": facts.counts.get("repeat"),
        "iteration_times_s": facts.iteration_times_s,
        "measured_at": facts.measured_at,
        "source_line": facts.line,
        "throughput_images_per_s": throughput,
    }
    return ImportedRecord(
        record_id=_identity(facts, source),
        created=facts.measured_at or source.imported_at,
        source_file=source.name,
        source_sha256=source.sha256,
        source_format=facts.format,
        campaign=source.campaign,
        arch=arch,
        **known,
        complexity=None,
        verdict=None,
        params=_params(facts),
        metrics=metrics,
        extra=facts.extra,
        missing={
            name: facts.missing.get(name, _NOT_STATED)
            for name, fact in known.items()
            if fact is None
        }
        | {"complexity": "not counted", "verdict": "none of its figures contradicts another"},
    )


def _params(facts: Facts) -> dict[str, str]:
    counts: dict[str, int | None] = {
        **{n: facts.counts.get(n) for n in ("image_size", "iterations", "warmup_iters", "repeats")},
        **{n: getattr(facts, n) for n in ("devices", "nodes", "grad_accum_steps")},
    }
    stated = {name: str(number) for name, number in counts.items() if number is not None}
    stated |= facts.params
    return stated if facts.has_optimizer else stated | {"step": "forward and backward"}


def facts_in_name(name: str) -> dict[str, str]:
    """Return what a label such as `rtx4090_resnet50_amp_bs64_run1` says of its run."""
    found = _LABEL.fullmatch(name)
    if found is None:
        return {}
    facts = {key: text for key, text in found.groupdict().items() if text and key != "rest"}
    family = _FAMILIES.search(found["rest"])
    if family is None:
        return facts
    facts["arch"] = family[1]
    if env := found["rest"][: family.start(1)].rstrip("_"):
        facts["env"] = env
    return facts


def _completed(facts: Facts, source: Source) -> dict[str, str]:
    """The texts, with what a label and then the user says where the file is silent."""
    texts = dict(facts.texts)
    for more in (facts_in_name(texts.get("label", "")), source.given):
        for name, text in more.items():
            if name == "devices":
                facts.devices = facts.devices or int(text)
            elif name in GIVEN_COUNTS:
                facts.counts.setdefault(name, int(text))
            elif name != "unit":
                texts.setdefault(name, text)
    if label := texts.pop("label", None):
        facts.extra.setdefault("label", label)
    return texts


def _derived(facts: Facts) -> float | None:
    """Images over time, where the file gives both and no rate; it then says so itself."""
    batch = facts.counts.get("batch_size")
    if batch is None:
        return None
    if (facts.grad_accum_steps or 1) > 1:
        facts.missing["throughput_images_per_s"] = (
            f"grad_accum_steps is {facts.grad_accum_steps}, and the source does not say whether "
            "its time is of one batch or of all of a step"
        )
        return None
    batch *= (facts.devices or 1) * (facts.nodes or 1)
    if facts.iteration_times_s:
        facts.extra["throughput_from"] = "batch size x iterations / sum of their times"
        return batch * len(facts.iteration_times_s) / sum(facts.iteration_times_s)
    mean_ms = facts.numbers.get("iteration_time_ms_mean")
    if mean_ms is None:
        return None
    facts.extra["throughput_from"] = "batch size / mean iteration time"
    return batch * 1e3 / mean_ms


def _identity(facts: Facts, source: Source) -> str:
    """Equal for the same result in whatever file, on whatever line, imported whenever.

    What the user adds belongs to it: it distinguishes results whose files do not.
    """
    says = {
        "format": facts.format,
        "texts": facts.texts,
        "numbers": facts.numbers,
        "counts": facts.counts,
        "extra": facts.extra,
        "measured_at": facts.measured_at.isoformat() if facts.measured_at else None,
        "iteration_times_s": facts.iteration_times_s,
        "given": source.given,
    }
    canonical = json.dumps(says, sort_keys=True, separators=(",", ":"))
    return f"imported-{hashlib.sha256(canonical.encode()).hexdigest()[:20]}"


def _is_of_images(arch: str) -> bool:
    return arch in torchvision_architectures() or _FAMILIES.match(arch) is not None


def _as_label(text: str | None) -> str | None:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text or "").strip("-._")[:64]
    return plain or None


def _backend(text: str | None) -> str | None:
    if text is None:
        return None
    lower = text.lower().partition(":")[0]
    return _BACKENDS.get(lower, lower)[:64]


def _precision(text: str | None) -> str | None:
    if text is None:
        return None
    plain = text.lower().removeprefix("torch.")
    return _PRECISIONS.get(plain, plain)[:64]
