"""MLPerf Training: a run per `result_*.txt` of `:::MLLOG` lines, its system from `systems/*.json`.

The layout is `ORG/results/SYSTEM/resnet/result_0.txt` and `ORG/systems/SYSTEM.json` (rules and
logging package of mlcommons/training and mlcommons/logging). In the 300 published ResNet runs of
v3.0 that log a throughput, each point is the images of an epoch over its time, to within 6 %.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

from tracking.importing.facts import BadLine, Facts, OtherWorkError
from tracking.importing.json_text import number_above_zero, parse_json, part, texts_of
from tracking.importing.source_files import SourceFile
from tracking.importing.text_table import count

_LINE = re.compile(r":::MLLOG (\{.*)")
_RESULT = re.compile(r"result_(\d{1,4})")
#: "ResNet-50 v1.5" on ImageNet at 224 x 224: the rules of MLPerf Training, closed division.
_ARCHITECTURES = {"resnet": "resnet50"}
_IMAGE_SIZE = 224
_TOLERANCE = 0.2
#: Keys of a log that become facts of ours; of the others the last value is kept.
_TAKEN = frozenset(
    ("throughput", "tracked_stats", "weights_initialization", "init_start", "init_stop")
)


@dataclass(frozen=True)
class _Epoch:
    """One point: images/s over an epoch, and how long the epoch took, if its ends are logged."""

    line: int
    number: int | None
    images_per_s: float
    seconds: float | None


@dataclass
class _Log:
    """What a log says: the last value of each key, the epochs, when it ran."""

    values: dict[str, Any] = field(default_factory=dict)
    epochs: list[_Epoch] = field(default_factory=list)
    started_ms: float | None = None
    epoch_ms: float | None = None  # when the epoch in progress began
    epoch_s: float | None = None  # how long the last whole one took
    epoch_number: int | None = None
    status: str | None = None


def is_mlperf(file: SourceFile, text: str) -> bool:
    """Whether the text has lines of MLPerf's logging."""
    return _LINE.search(text) is not None


def read_mlperf(file: SourceFile, text: str, given: Mapping[str, str]) -> Iterator[Facts | BadLine]:
    """Yield the run of a result file, or its bad lines.

    Raises `OtherWorkError` for another benchmark than image classification, `ValueError` where no
    throughput is logged, or one that is not what its epoch's time allows.
    """
    log = _Log()
    bad: list[BadLine] = []
    for line, content in enumerate(text.splitlines(), 1):
        if (found := _LINE.search(content)) is not None:
            try:
                _take_line(log, line, parse_json(found[1]))
            except ValueError as error:
                bad.append(BadLine(line, str(error)))
    benchmark = str(log.values.get("submission_benchmark"))
    if benchmark not in _ARCHITECTURES and not (bad and benchmark == "None"):
        raise OtherWorkError(f"MLPerf's {benchmark[:40]!r} is no image classification")
    if bad:
        yield from bad
        return
    if not log.epochs:
        raise ValueError("no throughput is logged")
    yield _facts_of(log, benchmark, file)


def _take_line(log: _Log, line: int, entry: Any) -> None:
    key = entry.get("key") if isinstance(entry, dict) else None
    at_ms = entry.get("time_ms") if isinstance(entry, dict) else None
    if not isinstance(key, str) or at_ms is None:
        raise ValueError("an entry without key or time_ms")
    at_ms, value, about = number_above_zero(at_ms), entry.get("value"), part(entry, "metadata")
    if key == "run_start":
        log.started_ms = at_ms
    elif key == "run_stop":
        log.status = str(about.get("status"))[:40]
    elif key == "epoch_start":
        log.epoch_ms, log.epoch_s = at_ms, None
        log.epoch_number = _whole(about.get("epoch_num"))
    elif key == "epoch_stop" and log.epoch_ms is not None:
        log.epoch_s = (at_ms - log.epoch_ms) / 1e3
    elif key == "throughput" or (key == "tracked_stats" and "throughput" in part(entry, "value")):
        rate = number_above_zero(value if key == "throughput" else value["throughput"])
        log.epochs.append(_Epoch(line, log.epoch_number, rate, log.epoch_s))
    if key not in _TAKEN and value is not None:
        log.values[key] = value


def _facts_of(log: _Log, benchmark: str, file: SourceFile) -> Facts:
    facts = Facts("mlperf", None)
    facts.texts["arch"] = _ARCHITECTURES[benchmark]
    if log.values.get("submission_division") == "closed":
        facts.counts["image_size"] = _IMAGE_SIZE
    facts.missing["precision"] = "MLPerf's logs do not say"
    facts.missing["iteration_times_s"] = "MLPerf logs epochs"
    if log.started_ms is not None:
        facts.measured_at = _instant(log.started_ms)
    if (number := _RESULT.fullmatch(file.stem)) is not None:
        facts.counts["repeat"] = int(number[1])
    facts.extra = texts_of(log.values)
    facts.extra["status"] = log.status or "the log ends before run_stop"
    _take_system(facts, file)
    _take_batch(facts, log)
    _take_throughput(facts, log)
    return facts


def _take_throughput(facts: Facts, log: _Log) -> None:
    """Images over time of all epochs but the first, in which input and clocks settle."""
    images = _whole(log.values.get("train_samples")) or None
    _check(log.epochs, images)
    kept = log.epochs[1:] or log.epochs
    facts.numbers["throughput_images_per_s"] = len(kept) / math.fsum(
        1 / one.images_per_s for one in kept
    )
    seconds = [one.seconds for one in kept]
    if all(one is not None for one in seconds):
        facts.numbers["window_s"] = math.fsum(one for one in seconds if one is not None)
    left_out = "the first epoch is left out" if len(log.epochs) > 1 else "one epoch, the first"
    facts.extra["throughput_from"] = f"epochs without evaluation; {left_out}"
    points = ", ".join(f"{one.images_per_s:.6g}" for one in log.epochs)
    facts.extra["throughput_points"] = points[:1000]
    facts.extra["epochs"] = str(len(log.epochs))
    facts.fastest_images_per_s = max(one.images_per_s for one in log.epochs)


def _check(epochs: list[_Epoch], images: int | None) -> None:
    """Refuse epochs that do not follow each other, and one that its images and time contradict."""
    for before, one in pairwise(epochs):
        last, number = before.number, one.number
        if last is not None and number is not None and number != last + 1:
            raise ValueError(f"line {one.line}: epoch {number} follows epoch {last}")
    for one in epochs:
        if images is None or one.seconds is None:
            continue
        stated = one.images_per_s * one.seconds / images
        if abs(stated - 1) > _TOLERANCE:
            raise ValueError(
                f"line {one.line}: {one.images_per_s:g} images/s, but the epoch's {images} images "
                f"took {one.seconds:g} s"
            )


def _take_system(facts: Facts, file: SourceFile) -> None:
    """The machines, from the JSON that a submission has for each of its systems."""
    if len(file.folders) < 3 or file.folders[2] != "results":
        _without_system(facts, "the file is not in ORG/results/SYSTEM/BENCHMARK")
        return
    system = file.folders[1]
    facts.texts["env"] = system
    text = file.near("..", "..", "..", "systems", f"{system}.json")
    if text is None:
        _without_system(facts, f"no systems/{system}.json is there")
        return
    about = parse_json(text)
    if not isinstance(about, dict):
        raise ValueError(f"systems/{system}.json holds no object")
    facts.nodes = _whole(about.get("number_of_nodes")) or None
    facts.devices = _whole(about.get("accelerators_per_node")) or None
    name = about.get("accelerator_model_name")
    if facts.devices is None:
        facts.texts["backend"] = "cpu"
        name = about.get("host_processor_model_name")
    if isinstance(name, str) and name.strip():
        facts.texts["device"] = name.strip()[:200]
        if name.startswith("NVIDIA"):
            facts.texts["backend"] = "cuda"
    facts.extra |= texts_of(about)


def _without_system(facts: Facts, reason: str) -> None:
    facts.missing |= {"device": reason, "batch_size": reason, "env": reason}


def _take_batch(facts: Facts, log: _Log) -> None:
    """The batch of one device and one backward pass, where it is a whole number."""
    whole = _whole(log.values.get("global_batch_size"))
    facts.grad_accum_steps = _whole(log.values.get("gradient_accumulation_steps")) or None
    if not whole or facts.devices is None or facts.nodes is None:
        facts.missing.setdefault("batch_size", "how many devices share a batch is not stated")
        return
    parts = facts.devices * facts.nodes * (facts.grad_accum_steps or 1)
    if whole % parts:
        facts.missing["batch_size"] = f"{whole} images are not shared evenly by {parts} parts"
    else:
        facts.counts["batch_size"] = whole // parts


def _whole(value: Any) -> int | None:
    """A whole number from zero, of a JSON number or its text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return count(str(value))
    except ValueError:
        return None


def _instant(at_ms: float) -> datetime | None:
    try:
        at = datetime.fromtimestamp(at_ms / 1e3, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return None
    return at if 2000 <= at.year <= 2200 else None
