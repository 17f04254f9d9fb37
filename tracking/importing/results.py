"""One result of a file, as its reader says it, and the record that it becomes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bench.records import ImportedRecord
from tracking.importing.sources import SourceFile

TEXTS = frozenset(("env", "arch", "device", "backend", "precision", "label", "measured_at"))
COUNTS = frozenset(("batch_size", "repeat", "repeats", "iterations", "warmup_iters", "image_size"))
#: What a file says beside its result; the text stays among the file's own columns too.
BESIDE = frozenset(
    ("parameters", "claimed_gflops", "devices", "nodes", "grad_accum_steps", "global_batch_size")
)
#: Facts that a user may state, and of these the whole numbers.
GIVEN_COUNTS = ("batch_size", "repeat", "image_size", "devices", "warmup_iters")
GIVEN = ("arch", "env", "device", "backend", "precision", *GIVEN_COUNTS)
#: What a record holds as params.
_SETTINGS = (
    *("image_size", "iterations", "warmup_iters", "repeats"),
    *("devices", "nodes", "grad_accum_steps"),
)
_BACKENDS = {"gpu": "cuda", "nvidia": "cuda", "metal": "mps"}
#: Also Lightning's `16-mixed`, Keras's `mixed_float16` and Apex's `O1`, by their documentations.
_PRECISIONS = {
    **dict.fromkeys(("float32", "float", "32-true", "32", "o0"), "fp32"),
    **dict.fromkeys(("float16", "half"), "fp16"),
    "bfloat16": "bf16",
    **dict.fromkeys(("mixed", "mixed-precision"), "amp"),
    **dict.fromkeys(("amp-bf16", "amp-bfloat16", "bf16-mixed", "mixed-bfloat16"), "amp-bf16"),
    **dict.fromkeys(("amp-fp16", "amp-float16", "16-mixed", "mixed-float16", "o1"), "amp-fp16"),
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
#: A rate may be of other iterations than a mean time; no published file is further apart.
_AGREEMENT = 0.2


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


def record_of(
    result: Result, file: SourceFile, campaign: str, given: Mapping[str, str], now: datetime
) -> ImportedRecord:
    """Return the record of one result. Raises `ValueError` where it lacks what makes it one.

    `given` are facts of the user's, for where the file and a label in it are silent.
    """
    facts = {name: fact for name, fact in result.facts.items() if fact not in (None, "")}
    texts = {name: str(fact) for name, fact in facts.items() if name in TEXTS}
    stated: dict[str, Any] = {
        name: int(text) if name in GIVEN_COUNTS else text for name, text in given.items()
    }
    facts = result.facts = stated | facts_in_name(texts.get("label", "")) | facts | texts
    if label := facts.pop("label", None):
        result.extra.setdefault("label", label)
    devices = (facts.get("devices") or 1) * (facts.get("nodes") or 1)
    _check_batch(facts, devices)
    throughput = facts.get("throughput_images_per_s") or _derived(result, devices)
    known_why = {"batch_size", "throughput_images_per_s"} & result.missing.keys()
    timed = result.iteration_times_s or "iteration_time_ms_mean" in facts
    if throughput is None and not (timed and known_why):
        raise ValueError("no throughput, and no iteration time with its batch size")
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
        created=result.measured_at or now,
        source_file=file.name,
        source_sha256=file.sha256,
        source_line=result.line,
        source_format=result.format,
        campaign=campaign,
        # the same name may be another model elsewhere: timm's vgg16 convolves its classifier
        arch=f"timm:{facts['arch']}" if result.format == "timm" else facts["arch"],
        device=facts.get("device"),
        backend=_spelled(facts.get("backend"), _BACKENDS),
        precision=_spelled(facts.get("precision"), _PRECISIONS),
        env=re.sub(r"[^A-Za-z0-9._-]+", "-", facts.get("env") or "").strip("-._")[:64] or None,
        batch_size=facts.get("batch_size"),
        repeat=facts.get("repeat"),
        throughput_images_per_s=throughput,
        iteration_times_s=result.iteration_times_s,
        measured_at=result.measured_at,
        params=params | result.params,
        metrics={name: fact for name, fact in facts.items() if name not in no_metrics},
        extra=result.extra,
    )


def _check_batch(facts: dict[str, Any], devices: int) -> None:
    """Raise `ValueError` where the model or batch cannot be, or time and batch deny the rate.

    A batch of all devices is shared by them.
    """
    arch = facts.get("arch")
    if arch is None:
        raise ValueError("no model is named: add --set arch=NAME")
    if not _NAME.fullmatch(arch):
        raise ValueError(f"model={arch[:40]!r} is no model's name")
    accumulated = facts.get("grad_accum_steps") or 1
    if (whole := facts.pop("global_batch_size", None)) is not None:
        if not facts.get("devices"):
            raise ValueError(f"global_batch_size={whole}: shared by how many? add --set devices=N")
        share, rest = divmod(whole, devices * accumulated)
        if rest or facts.setdefault("batch_size", share) != share:
            raise ValueError(
                f"global_batch_size={whole}: is not {devices} devices x {accumulated} batches x "
                f"{facts.get('batch_size', 'a whole number')}"
            )
    if (batch := facts.get("batch_size") or 0) > _LARGEST_BATCH:
        raise ValueError(f"batch_size={batch}: more than {_LARGEST_BATCH}")
    rate, time_ms = facts.get("throughput_images_per_s"), facts.get("iteration_time_ms_mean")
    if not (rate and batch and time_ms):
        return
    own = batch * devices * 1e3 / time_ms
    if all(abs(rate / (own * steps) - 1) > _AGREEMENT for steps in (1, accumulated)):
        raise ValueError(
            f"a batch of {batch} on each of {devices} devices in {time_ms:g} ms is {own:.4g} "
            f"images/s, and the file says {rate:.4g}: name by --column which of its columns is "
            "of all devices (global_batch_size), or other"
        )


def _derived(result: Result, devices: int) -> float | None:
    """Images over time, where the file gives both and no rate; the result then says so."""
    facts, unknown = result.facts, "throughput_images_per_s"
    times, mean_ms = result.iteration_times_s, facts.get("iteration_time_ms_mean")
    if _OF_TEXT.search(facts["arch"].lower()):
        result.missing[unknown] = f"{facts['arch']} reads text: its samples are no images"
        return None
    if (batch := facts.get("batch_size")) is None:
        return None
    if (accumulated := facts.get("grad_accum_steps") or 1) > 1:
        result.missing[unknown] = (
            f"grad_accum_steps is {accumulated}, and the source does not say whether "
            "its time is of one batch or of all of a step"
        )
        return None
    if times:
        result.extra["throughput_from"] = "batch size x iterations / sum of their times"
        return float(batch * devices * len(times) / sum(times))
    if mean_ms is None:
        return None
    result.extra["throughput_from"] = "batch size / mean iteration time"
    return float(batch * devices * 1e3 / mean_ms)


def _identity(result: Result, texts: Mapping[str, str], given: Mapping[str, str]) -> str:
    """Equal for the same result in whatever file, on whatever line, imported whenever.

    `texts` are the file's. What the user adds belongs to it: it distinguishes results whose files
    do not. What stands beside a result does not: when a reader comes to know such a column, a file
    that was imported before stays known.
    """
    no_numbers = {*TEXTS, *COUNTS, *BESIDE, "throughput_images_per_s_max"}
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
    label = _LABEL.fullmatch(name)
    if label is None:
        return {}
    facts = {"precision": label["precision"], "batch_size": int(label["batch_size"])}
    facts |= {"repeat": int(label["repeat"])} if label["repeat"] else {}
    if (family := _FAMILIES.search(label["rest"])) is not None:
        facts["arch"] = family[1]
        if env := label["rest"][: family.start(1)].rstrip("_"):
            facts["env"] = env
    return facts


def _spelled(text: str | None, spellings: Mapping[str, str]) -> str | None:
    """A name in this project's spelling: `cuda:0` is cuda, `torch.float16` is fp16."""
    plain = (text or "").lower().removeprefix("torch.").partition(":")[0]
    return spellings.get(plain.replace("_", "-"), plain)[:64] or None
