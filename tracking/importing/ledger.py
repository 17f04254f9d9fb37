"""What the columns of results mean, and from what a file says of one result to a record.

The same names in every table; nothing is added and nothing guessed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, TypeAlias

from bench.config.model_names import torchvision_architectures
from bench.records import ImportedRecord
from tracking.importing.table import SourceFile

#: A fact, and what a cell is multiplied by to be in its unit.
Meaning: TypeAlias = tuple[str, float]

TEXTS = {
    "env": "env|environment|machine|machine_label|platform",
    "arch": "arch|architecture|model|model_name|network",
    "device": "device|device_name|gpu|gpu_name|hardware|accelerator_name",
    "backend": "backend|accelerator|device_type",
    "precision": "precision|dtype|prec|math|numeric_format",
    "label": "label|run_label|run_name|name",
    "measured_at": "measured_at|timestamp|datetime|date|started|start_time|created|created_at",
}
COUNTS = {
    "batch_size": "batch_size|batch|bs|batchsize|train_batch_size",
    "repeat": "repeat|run|rep|trial|run_index|repetition",
    "repeats": "(n_|num_)?repeats|n_runs|runs",
    "iterations": "(num_|n_)?iters|iterations|(num_)?steps|measured_iters",
    "warmup_iters": "warmup(_iters|_iterations|_steps)?",
    "image_size": "(train_)?(image|img)_size|input_size|resolution",
}
#: What a file says beside its result; the text stays among the file's own columns too.
BESIDE = {
    "devices": "((n|num)_)?(devices|gpus)|gpu_count|ngpus?",
    "nodes": "((n|num)_)?nodes",
    "grad_accum_steps": "grad_accum(_steps)?|gradient_accumulation_steps",
    "parameters": "((n|num)_)?parameters|(n|num)_params",
    "claimed_gflops": r"((claimed|attained|achieved)_)?gflop(s|s?_(per_)?s(ec)?)",
}
_RATE = "throughput|(train_|throughput_)?(images?|imgs?|samples)_(per_)?s(ec(ond)?)?"
#: Milliseconds in a unit, by what follows a time's name.
MS_FACTORS = {"ms": 1.0, "msec": 1.0, "s": 1e3, "sec": 1e3, "secs": 1e3, "seconds": 1e3, "us": 1e-3}
_UNIT = f"({'|'.join(MS_FACTORS)})"
_STATISTICS = ("mean", "avg", "median", "std", "p50", "p95", "p99")
_OTHERWISE = {"avg": "mean", "median": "p50"}
_STATISTIC = f"({'|'.join(_STATISTICS)})"
_STEP = "(iter|iteration|step)"
#: Times per iteration: `mean_step_time_s`, `iteration_time_ms_p95`, `avg_iter_ms`, `p50_s`.
_TIME = re.compile(
    f"({_STATISTIC}_)?({_STEP}_time|time_per_iter)(_{_STATISTIC})?_{_UNIT}(_{_STATISTIC})?"
    f"|{_STATISTIC}_{_STEP}_{_UNIT}|(p50|p95|p99)_{_UNIT}|{_UNIT}_per_{_STEP}"
)
#: Every other column: a fact, the factor of its unit, and the names.
_COLUMNS = (
    *((fact, 1.0, names) for group in (TEXTS, COUNTS, BESIDE) for fact, names in group.items()),
    ("claimed_gflops", 1e3, BESIDE["claimed_gflops"].replace("gflop", "tflop")),
    ("parameters", 1e6, "param(eter)?s_m(illion)?"),
    ("throughput_images_per_s", 1.0, _RATE),
    ("throughput_images_per_s_std", 1.0, f"({_RATE})_(std|sd)"),
    ("window_s", 1.0, "window_s"),
    ("real_s", 1.0, "(real|wall|wall_time|elapsed|total_time)_s"),
    ("user_s", 1.0, "user_s"),
    ("system_s", 1.0, "sys(tem)?_s"),
    ("max_rss_mb", 1.0, "(max|peak)_rss_mb"),
    ("max_rss_mb", 1024 / 1e6, "max_?rss_kb"),  # KiB, as time -v
    ("peak_memory_mb", 1.0, "(peak|max)_(gpu_)?memory_mb|gpu_(mem|memory)_mb"),
    ("energy_j", 1.0, "energy_j"),
)
#: Names of the time of one iteration, without their unit.
TIME_NAMES = frozenset(
    (
        *("time", "duration", "latency", "batch_time", "iteration_time", "iter_time", "step_time"),
        *("train_time", "time_per_iter", "time_per_step", "time_per_batch", "iteration_duration"),
    )
)
#: What timm's benchmark.py means by its columns: its times are in ms, its parameters in millions.
TIMM: Mapping[str, Meaning] = {
    "train_step_time": ("iteration_time_ms_mean", 1.0),
    "param_count": ("parameters", 1e6),
}


def plain(column: str) -> str:
    """Return a column's name in lower-case words: `Throughput (img/s)` is `throughput_img_s`."""
    return re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")


@cache
def _meaning(name: str) -> Meaning | None:
    for fact, factor, names in _COLUMNS:
        if re.fullmatch(names, name):
            return fact, factor
    if not _TIME.fullmatch(name):
        return None
    words = name.split("_")
    statistic = next((word for word in words if word in _STATISTICS), "mean")
    factor = next(MS_FACTORS[word] for word in words if word in MS_FACTORS)
    return f"iteration_time_ms_{_OTHERWISE.get(statistic, statistic)}", factor


def known_columns(
    columns: Sequence[str], also: Mapping[str, Meaning] | None = None
) -> dict[str, Meaning]:
    """Return what each column that is known means; of two that mean the same, the first.

    `also` has what columns mean in this table alone.
    """
    first: dict[str, tuple[str, Meaning]] = {}
    for column in columns:
        name = plain(column)
        if meaning := (also or {}).get(name) or _meaning(name):
            first.setdefault(meaning[0], (column, meaning))
    return dict(first.values())


def time_factor_ms(column: str, stated_unit: str | None = None) -> float | None:
    """Milliseconds in a unit of a column that holds one iteration's time; None for another.

    A name that has no unit has the one that the user states: s, ms or us. Without, `batch_time` is
    in seconds, as PyTorch's ImageNet example, whose word it is, measures it.
    """
    name = plain(column)
    stem, _, unit = name.rpartition("_")
    if name in TIME_NAMES:
        return MS_FACTORS.get(stated_unit or ("s" if name == "batch_time" else ""))
    if re.fullmatch(f"{_UNIT}_per_{_STEP}", name):
        unit = name.partition("_")[0]
    elif stem not in TIME_NAMES:
        return None
    return MS_FACTORS.get(unit)


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
    stated: dict[str, Any] = {name: text for name, text in given.items() if name != "unit"}
    stated |= {name: int(text) for name, text in given.items() if name in GIVEN_COUNTS}
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


def _spelled(text: str | None, spellings: Mapping[str, str]) -> str | None:
    """A name in this project's spelling: `cuda:0` is cuda, `torch.float16` is fp16."""
    plain = (text or "").lower().removeprefix("torch.").partition(":")[0]
    return spellings.get(plain, plain)[:64] or None
