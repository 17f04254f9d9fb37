"""Results behind a path: which reader knows a file, the record of each, a bad one by its line."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from runpy import run_path
from statistics import fmean
from types import MappingProxyType, SimpleNamespace
from typing import Any, Protocol, runtime_checkable

from pydantic import ValidationError

from bench.errors import UserError, fault_line, one_line, printable
from bench.records import ImportedRecord
from tracking.importing.sources import (
    BESIDE,
    COUNTS,
    TEXTS,
    NotTaken,
    OtherFileError,
    Result,
    files_in,
    read_text,
)
from tracking.importing.tables import read_table

#: Facts that a user may state, and of these the whole numbers.
GIVEN_COUNTS = ("batch_size", "repeat", "image_size", "devices", "warmup_iters")
GIVEN = ("arch", "env", "device", "backend", "precision", *GIVEN_COUNTS)
#: What a record holds as params.
_SETTINGS = (
    *("image_size", "iterations", "warmup_iters", "repeats"),
    *("devices", "nodes", "grad_accum_steps"),
)
#: Also Lightning's `16-mixed`, Keras's `mixed_float16` and Apex's `O1`, by their documentations.
_PRECISIONS = {
    spelling: ours
    for ours, spellings in {
        "fp32": "float32 float 32-true 32 o0",
        "fp16": "float16 half",
        "bf16": "bfloat16",
        "amp": "mixed mixed-precision",
        "amp-bf16": "amp-bf16 amp-bfloat16 bf16-mixed bfloat16-mixed mixed-bfloat16 mixed-bf16",
        "amp-fp16": "amp-fp16 amp-float16 16-mixed fp16-mixed mixed-float16 mixed-fp16 o1",
    }.items()
    for spelling in spellings.split()
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]{0,127}")
#: Families of models that read text.
_OF_TEXT = re.compile(
    r"gpt|bert|llama|mistral|qwen|gemma|bloom|falcon|transformer-?xl|\bt5\b|\bopt\b"
)
#: A rate may be of other iterations than a mean time; no published file is further apart.
_AGREEMENT = 0.2
#: Installed distributions name readers of theirs in this group of entry points.
ENTRY_POINTS = "mlproject.readers"


@runtime_checkable
class Reader(Protocol):
    """A format of results, as a plug-in reads it: a module with these functions, or an object."""

    def recognises(self, file: Path, text: str) -> bool:
        """Whether the text of a file is of this format."""

    def read(self, file: Path, text: str, given: Mapping[str, str]) -> Iterator[Result | NotTaken]:
        """Yield the results in a text, and what cannot be taken by its line.

        `given` is what the user states. Raises `OtherFileError` where the results are not of
        training on images, `ValueError` with the reason where the file cannot be taken.
        """


@dataclass
class Imported:
    """The results of a path.

    `repeated` counts results that say what another one said, `other_files` those of a folder that
    are of no known format, or of other work than training on images.
    """

    records: list[ImportedRecord] = field(default_factory=list)
    problems: list[NotTaken] = field(default_factory=list)
    repeated: int = 0
    other_files: int = 0


def load_readers(names: Sequence[str] = ()) -> list[Reader]:
    """Return the readers of these names, and those of installed distributions.

    A name is a file's path, `package.module` or `package.module:object`. Raises `UserError` for one
    that cannot be loaded.
    """
    readers = []
    for name in (*names, *(plug_in.value for plug_in in entry_points(group=ENTRY_POINTS))):
        try:
            if name.endswith(".py"):
                reader: Any = SimpleNamespace(**run_path(str(Path(name).absolute())))
            else:
                reader = resolve_name(name)
        except Exception as error:  # whatever the code of somebody else raises
            raise UserError(f"reader={name!r}: {one_line(error)}") from error
        if not isinstance(reader, Reader):
            raise UserError(f"reader={name!r}: has no functions recognises and read")
        readers.append(reader)
    return readers


def read_results(
    path: Path,
    *,
    campaign: str,
    given: Mapping[str, str],
    readers: Sequence[Reader] = (),
    named: Mapping[str, str] = MappingProxyType({}),
) -> Imported:
    """Read the results in a file, or in all files of a folder.

    `given` are facts for where a file is silent, of those in `tracking.importing.readers.GIVEN`. A
    file that none of `readers` recognises is read as a table; `named` has what the user calls its
    columns, of `MEANINGS`. A result that cannot be taken is a problem; so is a file, but in a
    folder a file of something else is only counted. Raises `UserError` where a column must be named
    first.
    """
    imported, ids = Imported(), set()
    now = datetime.now(timezone.utc).replace(microsecond=0)
    for place in files_in(path):
        problems = []
        try:
            text, sha256 = read_text(place)
            file = place.resolve()
            reader = next((r for r in readers if r.recognises(file, text)), None)
            read = reader.read if reader else partial(read_table, named=named)
            for result in read(file, text, given):
                if isinstance(result, NotTaken):
                    problems.append(result)
                    continue
                try:
                    record = record_of(result, place, sha256, campaign, given, now)
                except ValueError as error:
                    problems.append(NotTaken(_reason(error), result.line))
                    continue
                imported.repeated += record.record_id in ids
                imported.records += [] if record.record_id in ids else [record]
                ids.add(record.record_id)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        except Exception as error:  # a mistake in somebody's reader costs its file alone
            if isinstance(error, OtherFileError) and place != path:
                imported.other_files += 1
            else:
                problems.append(NotTaken(_reason(error)))
        problems.sort(key=lambda problem: problem.line or 0)
        imported.problems += [replace(problem, path=place) for problem in problems]
    return imported


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error) if isinstance(error, ValueError) else fault_line(error)


def record_of(
    result: Result,
    file: Path,
    sha256: str,
    campaign: str,
    given: Mapping[str, str],
    now: datetime,
) -> ImportedRecord:
    """Return the record of one result. Raises `ValueError` where it lacks what makes it one.

    `sha256` is the file's; `given` are facts of the user's, for where the file is silent.
    """
    facts = {name: fact for name, fact in result.facts.items() if fact not in (None, "")}
    texts = {name: str(fact) for name, fact in facts.items() if name in TEXTS}
    stated: dict[str, Any] = {
        name: int(text) if name in GIVEN_COUNTS else text for name, text in given.items()
    }
    facts = result.facts = stated | facts | texts
    if label := facts.pop("label", None):
        result.extra.setdefault("label", label)
    devices = (facts.get("devices") or 1) * (facts.get("nodes") or 1)
    _check_batch(facts, devices)
    throughput = facts.get("throughput_images_per_s") or _derived(result, devices)
    known_why = {"batch_size", "throughput_images_per_s"} & result.missing.keys()
    timed = result.iteration_times_s or "iteration_time_ms_mean" in facts
    if throughput is None and not (timed and known_why):
        raise ValueError("no throughput, and no time with its batch size (--set batch_size=N)")
    precision = _plain(facts.get("precision"))
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
        source_file=printable(file.name),
        source_sha256=sha256,
        source_line=result.line,
        source_format=result.format,
        campaign=campaign,
        # the same name may be another model elsewhere: timm's vgg16 convolves its classifier
        arch=f"timm:{facts['arch']}" if result.format == "timm" else facts["arch"],
        device=facts.get("device"),
        backend=_plain(facts.get("backend")),
        precision=_PRECISIONS.get((precision or "").replace("_", "-"), precision),
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
    batch, rate = facts.get("batch_size"), facts.get("throughput_images_per_s")
    time_ms = facts.get("iteration_time_ms_mean")
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
    facts, times = result.facts, result.iteration_times_s
    if _OF_TEXT.search(facts["arch"].lower()):
        why = f"{facts['arch']} reads text: its samples are no images"
        result.missing["throughput_images_per_s"] = why
        return None
    if (accumulated := facts.get("grad_accum_steps") or 1) > 1:
        result.missing["throughput_images_per_s"] = (
            f"grad_accum_steps is {accumulated}, and the source does not say whether "
            "its time is of one batch or of all of a step"
        )
        return None
    mean_s = fmean(times) if times else facts.get("iteration_time_ms_mean", 0.0) / 1e3
    if not (mean_s and facts.get("batch_size")):
        return None
    how = (
        "batch size x iterations / sum of their times"
        if times
        else "batch size / mean iteration time"
    )
    result.extra["throughput_from"] = how
    return float(facts["batch_size"] * devices / mean_s)


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


def _plain(text: str | None) -> str | None:
    """A name as this project spells it: `cuda:0` is cuda, `torch.float16` is float16."""
    plain = (text or "").lower().removeprefix("torch.").partition(":")[0]
    return plain[:64] or None
