"""What the columns of results mean, and from what a file says of one result to a record.

The same names in every table; nothing is added and nothing guessed.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from bench.errors import UserError
from bench.records import ImportedRecord
from tracking.importing.table import Sheet, SourceFile

#: A fact, and what a cell is multiplied by to be in its unit.
Meaning: TypeAlias = tuple[str, float]

#: The headings of each fact, as `plain` writes them, with what a cell is multiplied by.
_HEADINGS: Mapping[Meaning, str] = {
    ("env", 1.0): "env environment machine platform",
    ("arch", 1.0): "arch architecture model model_name network",
    ("device", 1.0): "device device_name gpu gpu_name name_gpu hardware",
    ("backend", 1.0): "backend accelerator device_type",
    ("precision", 1.0): "precision dtype prec math",
    ("label", 1.0): "label run_name",
    ("measured_at", 1.0): "measured_at timestamp date",
    ("batch_size", 1.0): "batch_size batch batchsize",
    ("repeat", 1.0): "repeat run trial",
    ("repeats", 1.0): "repeats",
    ("iterations", 1.0): "iterations iters",
    ("warmup_iters", 1.0): "warmup_iters",
    ("image_size", 1.0): "image_size img_size resolution",
    ("devices", 1.0): "devices gpus num_gpus num_gpu",
    ("nodes", 1.0): "nodes num_nodes",
    ("grad_accum_steps", 1.0): "grad_accum_steps grad_accum gradient_accumulation_steps",
    ("parameters", 1.0): "parameters num_params",
    ("parameters", 1e6): "params_m",
    ("claimed_gflops", 1.0): "claimed_gflops attained_gflops gflops gflop_per_s",
    ("claimed_gflops", 1e3): "claimed_tflops attained_tflops tflops tflop_per_s",
    ("throughput_images_per_s", 1.0): "images_per_s images_per_sec images_per_second images_s "
    "throughput_images_per_s throughput_images_s img_s throughput_img_s",
    ("throughput_images_per_s_std", 1.0): "images_per_s_sd images_per_s_std "
    "throughput_images_per_s_std",
    ("window_s", 1.0): "window_s",
    ("real_s", 1.0): "real_s",
    ("user_s", 1.0): "user_s",
    ("system_s", 1.0): "sys_s system_s",
    ("max_rss_mb", 1.0): "max_rss_mb",
    ("max_rss_mb", 1024 / 1e6): "max_rss_kb",  # KiB, as time -v
    ("peak_memory_mb", 1.0): "peak_memory_mb",
    ("energy_j", 1.0): "energy_j",
    ("iteration", 1.0): "iteration iter step batch_idx global_step",
}
#: Facts that no heading means by itself: the user names the column.
_NAMED: Mapping[str, Meaning] = {
    "throughput": ("throughput_images_per_s", 1.0),
    "global_batch_size": ("global_batch_size", 1.0),
    "other": ("other", 1.0),
}
#: Milliseconds in a unit, by what follows a time's name.
MS_FACTORS = {"s": 1e3, "sec": 1e3, "ms": 1.0, "us": 1e-3}
_TIMES: Mapping[str, Meaning] = {
    f"{time}_{unit}{statistic}": (f"iteration_time_ms{statistic or '_mean'}", factor)
    for time in ("iteration_time", "iter_time", "step_time")
    for unit, factor in MS_FACTORS.items()
    for statistic in ("", "_mean", "_p50", "_p95", "_p99", "_std")
}
#: What a column is by its heading, or by the name that the user gives it.
MEANINGS: Mapping[str, Meaning] = {
    **{name: meaning for meaning, names in _HEADINGS.items() for name in names.split()},
    **_TIMES,
    **_NAMED,
}
TEXTS = frozenset(("env", "arch", "device", "backend", "precision", "label", "measured_at"))
COUNTS = frozenset(("batch_size", "repeat", "repeats", "iterations", "warmup_iters", "image_size"))
#: What a file says beside its result; the text stays among the file's own columns too.
CLAIMED = frozenset(("parameters", "claimed_gflops"))
BESIDE = CLAIMED | {"devices", "nodes", "grad_accum_steps", "global_batch_size"}
#: Times of one iteration where each has a row; `batch_time` as PyTorch's ImageNet example has it.
ITERATION_TIMES: Mapping[str, Meaning] = {
    "batch_time": ("iteration_time_ms_mean", 1e3),
    **{
        f"{time}_{unit}": ("iteration_time_ms_mean", factor)
        for time in ("time", "duration", "latency", "batch_time")
        for unit, factor in MS_FACTORS.items()
    },
}
#: What timm's benchmark.py means by its columns: its times are in ms, its parameters in millions.
TIMM: Mapping[str, Meaning] = {
    "train_samples_per_sec": ("throughput_images_per_s", 1.0),
    "train_step_time": ("iteration_time_ms_mean", 1.0),
    "train_batch_size": ("batch_size", 1.0),
    "train_img_size": ("image_size", 1.0),
    "param_count": ("parameters", 1e6),
}
#: Headings that are made of these words alone, and of a batch's or a device's among them, may
#: change what a result means: they are never passed over.
_UNCLEAR = re.compile(
    r"(?:(?:"
    r"(?P<batch>batch|[gm]?bsz?|accum(?:ulat(?:e|ed|ion))?|grad_acc|"
    r"(?:image|img|sample|example)s?_per)"
    r"|(?P<device>(?:v?gpu|[tnhxi]pu|gcd|device|accelerator|card|chip|node|host|machine|instance|"
    r"rank|replica|proc|process|task)(?:_?s|es)?|world|parallel|[dtp]p|np)"
    r"|n|num|number|no|nr|nb|count|cnt|of|per|the|in|to|all|each|total|size|degree|used|global|"
    r"local|effective|actual|train|training|mini|micro|grad|gradient|steps?|iters?|batches|update|"
    r"data|tensor|model|pipeline|cuda|visible|available|slurm|cores?|graphics"
    r")_?)+"
)
#: What such a heading may be, the fact to name it by, and what that counts.
_TO_NAME = {
    "batch": (
        "a batch",
        "batch_size",
        "of one device; global_batch_size is of all, grad_accum_steps counts batches",
    ),
    "device": ("a number of devices", "devices", "of each machine; nodes counts machines"),
    "rate": ("a throughput", "throughput", "images/s of all devices"),
}
#: The same of rates, where no column is known as one.
_RATE = re.compile(
    r"(?!infer|eval|test|val)(?:.*_)?"
    r"(?:throughput|ips|fps|(?:image|img|sample|example)s?_(?:per_)?s(?:ec(?:ond)?)?)(?:_.*)?"
)


def plain(column: str) -> str:
    """Return a column's name in lower-case words: `Throughput (img/s)` is `throughput_img_s`."""
    return re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")


def known_columns(
    columns: Sequence[str], named: Mapping[str, str], also: Mapping[str, Meaning] | None = None
) -> dict[str, Meaning]:
    """Return what each column that is known means; of two that mean the same, the first.

    `named` has what the user calls columns, and goes first; `also` what they mean in this table
    alone.
    """
    first: dict[str, tuple[str, Meaning]] = {}
    for column in sorted(columns, key=lambda column: plain(column) not in named):
        name = plain(column)
        own = None if name in _NAMED else MEANINGS.get(name)
        if meaning := MEANINGS.get(named.get(name, "")) or (also or {}).get(name) or own:
            first.setdefault(meaning[0], (column, meaning))
    return dict(first.values())


def names_a_rate(column: str) -> bool:
    """Whether a heading looks like a throughput of training."""
    return _RATE.fullmatch(plain(column)) is not None


def check_headings(
    table: Sheet, known: Mapping[str, Meaning], named: Mapping[str, str], *, has_rate: bool
) -> None:
    """Raise `UserError` for a column that may be a batch or devices, and is not known.

    Also for one that may be the rate, unless the table has one.
    """
    for column in table.columns:
        name, (fact, _) = plain(column)[:100], known.get(column, ("", 1.0))
        if name in named or (fact and fact not in TEXTS):
            continue
        number = r"\W*\d{1,3}" if fact else r"\W*\d.*"
        if not any(re.fullmatch(number, row.cells.get(column, "")) for row in table.rows):
            continue
        unclear = _UNCLEAR.fullmatch(name)
        kind = next((name for name in ("batch", "device") if unclear and unclear[name]), None)
        if kind is None and not has_rate and names_a_rate(column):
            kind = "rate"
        if kind is not None:
            what, fact, how = _TO_NAME[kind]
            option = f"--column {fact}={shlex.quote(column)}"
            raise UserError(
                f"{column!r} looks like {what}: add {option} ({how}; other is none of these)"
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
_GPU = re.compile(
    r"(?:^|_)(?:(?P<count>\d{1,2})x)?(?P<gpu>TitanRTX|QuadroRTX\d{4}|(?:AdaA|GH|[ABHLTV])\d{2,4}|"
    r"\d{4}(?:Ti|SuperMaxQ|Super|Max-?Q)?)[A-Za-z]*"
    r"(?P<variant>(?:_(?:\d{2,3}GB|SXM\d?|PCIe\d?|NVL)(?=_|$))*)(?=_|$)"
)
#: Samples of one step; more is a mistake in the file.
_LARGEST_BATCH = 10_000_000
#: Facts that a user may state, and of these the whole numbers.
GIVEN_COUNTS = ("batch_size", "repeat", "image_size", "devices", "warmup_iters")
GIVEN = ("arch", "env", "device", "backend", "precision", *GIVEN_COUNTS)
_SETTINGS = (
    *("image_size", "iterations", "warmup_iters", "repeats"),
    *("devices", "nodes", "grad_accum_steps"),
)
#: What a file says beside its result: no part of the record's id.
_CLAIMS = (*BESIDE, "throughput_images_per_s_max")
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
    stated: dict[str, Any] = dict(given) | {
        name: int(text) for name, text in given.items() if name in GIVEN_COUNTS
    }
    result.facts = stated | facts_in_name(texts.get("label", "")) | facts | texts
    if label := result.facts.pop("label", None):
        result.extra.setdefault("label", label)
    _check(result)
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


def _check(result: Result) -> None:
    """Raise `ValueError` where a fact cannot be, or its time and batch deny the rate."""
    facts = result.facts
    arch = facts.get("arch")
    if arch is None:
        raise ValueError("no model is named: add --set arch=NAME")
    if not _NAME.fullmatch(arch):
        raise ValueError(f"model={arch[:40]!r} is no model's name")
    devices = (facts.get("devices") or 1) * (facts.get("nodes") or 1)
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
    return spellings.get(plain.replace("_", "-"), plain)[:64] or None
