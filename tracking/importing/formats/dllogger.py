"""Logs of NVIDIA's DLLogger, as the image models of DeepLearningExamples print or stream them.

A printed line is `DLL <instant> - Epoch: 0 Iteration: 1 train.total_ips : 2021.16 images/s`, one of
a stream `DLLL {"timestamp": ..., "step": [0, 1], "data": {"train.total_ips": 2021.16}}`. The rate
is of all processes: `calc_ips` of DeepLearningExamples/PyTorch/Classification/ConvNets.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

from bench.records.verdict.record_metrics import iteration_statistics_ms
from tracking.importing.facts import BadLine, Facts, OtherWorkError
from tracking.importing.formats.machine_names import gpu_in_name
from tracking.importing.json_text import parse_json
from tracking.importing.source_files import SourceFile
from tracking.importing.text_table import count, not_negative, positive

#: What is left out where the user states nothing else: as many as this project's own warm-up has.
_WARM_UP = 10
#: Of 186,806 published iterations none is further than 3 % from the time between its lines.
_CLOCK_TOLERANCE, _CLOCK_SLACK_S = 0.2, 0.05
_RATE = "train.total_ips"
_IMAGES_PER_S = frozenset(("images/s", "img/s"))
_LINE = re.compile(r"DLL (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?) - (.*)")
_STREAMED = "DLLL {"
_ITERATION = re.compile(r"Epoch: (\d{1,9}) Iteration: (\d{1,9}) +(.*)")
_PRINTED_RATE = re.compile(rf"(?:^|\s){re.escape(_RATE)} : (\S+)(?: (\S+))?")
_PARAMETER = re.compile(r"(?:^|\s)([\w.]+) :(?=\s|$)")
_LAMBDA = re.compile(r"PyTorch_\w+")


@dataclass(frozen=True)
class _Iteration:
    """One line: when it was written, which iteration, images/s of all processes since the last."""

    line: int
    at_s: float | None
    epoch: int
    number: int
    images_per_s: float


@dataclass
class _Log:
    """What a log says: what it ran, its iterations, its own summary."""

    parameters: dict[str, str] = field(default_factory=dict)
    iterations: list[_Iteration] = field(default_factory=list)
    started: str | None = None
    summary: str | None = None
    units: dict[str, str] = field(default_factory=dict)
    metrics: set[str] = field(default_factory=set)


def is_dllogger(file: SourceFile, text: str) -> bool:
    """Whether DLLogger wrote lines of the text."""
    return _LINE.search(text) is not None or re.search(r"^DLLL \{", text, re.M) is not None


def read_dllogger(
    file: SourceFile, text: str, given: Mapping[str, str]
) -> Iterator[Facts | BadLine]:
    """Yield the run of a log, or its bad lines: a run with a hole in it is no run.

    The first ten iterations, or `warmup_iters` of `given`, are left out. Raises `ValueError` where
    its rates cannot be what the batch size and its own clock allow.
    """
    log = _Log()
    bad: list[BadLine] = []
    for line, content in enumerate(text.splitlines(), 1):
        try:
            _take_line(log, line, content)
        except ValueError as error:
            bad.append(BadLine(line, str(error)))
    if bad:
        yield from bad
        return
    if not log.iterations:
        if log.metrics:
            shown = ", ".join(sorted(log.metrics))[:120]
            raise OtherWorkError(f"a DLLogger log without {_RATE} in images/s (it has {shown})")
        raise ValueError("a DLLogger log without an iteration: the run ended before its first")
    facts = _facts_of(log)
    _take_machine(facts, file)
    _take_times(facts, log, given)
    yield facts


def _take_line(log: _Log, line: int, content: str) -> None:
    if content.startswith(_STREAMED):
        _take_streamed(log, line, parse_json(content[5:]))
    elif (found := _LINE.search(content)) is not None:
        at, rest = found.groups()
        instant = datetime.fromisoformat(at).replace(tzinfo=timezone.utc)  # only differences count
        _take_printed(log, line, at, instant.timestamp(), rest)
    elif content.startswith("['") and "command" not in log.parameters:
        log.parameters["command"] = content


def _take_printed(log: _Log, line: int, at: str, at_s: float, rest: str) -> None:
    log.started = log.started or at
    if rest.startswith("PARAMETER "):
        parts = _PARAMETER.split(rest.removeprefix("PARAMETER "))[1:]
        log.parameters |= dict(zip(parts[::2], (text.strip() for text in parts[1::2]), strict=True))
        return
    rate = _PRINTED_RATE.search(rest)
    if (found := _ITERATION.match(rest)) is not None:
        epoch, number, metrics = found.groups()
        log.metrics |= set(re.findall(r"([\w.]+) : ", metrics))
        if rate is not None:
            rate_of_all = positive(rate[1])
            _check_unit(rate[2])
            log.iterations.append(_Iteration(line, at_s, int(epoch), int(number), rate_of_all))
    elif rest.startswith("Summary") and rate is not None:
        log.summary = " ".join(filter(None, rate.groups()))


def _take_streamed(log: _Log, line: int, entry: Any) -> None:
    if not isinstance(entry, dict):
        raise ValueError("no entry of DLLogger")
    step, data = entry.get("step"), entry.get("data")
    if entry.get("type") == "METADATA":
        unit = entry.get("metadata")
        if isinstance(unit, dict):
            log.units[str(entry.get("metric"))] = str(unit.get("unit"))
        return
    if not isinstance(data, dict):
        return
    if log.started is None and isinstance(entry.get("datetime"), str):
        log.started = entry["datetime"][:40]
    if step == "PARAMETER":
        log.parameters |= {str(name): str(value) for name, value in data.items()}
    elif isinstance(step, list) and len(step) == 2:
        log.metrics |= {str(name) for name in data}
        if data.get(_RATE) is None:
            return
        _check_unit(log.units.get(_RATE))
        at = entry.get("timestamp")
        at_s = None if at is None else not_negative(str(at))
        epoch, number = (count(str(each)) for each in step)
        log.iterations.append(_Iteration(line, at_s, epoch, number, positive(str(data[_RATE]))))
    elif step in ([], "SUMMARY") and _RATE in data:
        log.summary = str(data[_RATE])[:40]


def _check_unit(unit: str | None) -> None:
    if unit is None:
        raise ValueError(f"{_RATE} has no unit here: import the log that the run printed")
    if unit not in _IMAGES_PER_S:
        raise OtherWorkError(f"{_RATE} is in {unit[:20]!r}, not images/s")


def _facts_of(log: _Log) -> Facts:
    """What ran, by the parameters that the log states."""
    facts = Facts("dllogger", None)
    stated = {name: text for name, text in log.parameters.items() if text not in ("", "None")}
    options = _options(stated.pop("command", ""))
    if arch := stated.pop("arch", options.get("arch")):
        facts.texts["arch"] = arch
    if batch := stated.pop("batch_size", options.get("batch-size") or options.get("b")):
        facts.counts["batch_size"] = count(batch)
    facts.devices = count(stated.pop("world_size", "1")) or None
    precision = _precision(stated, options)
    if precision is not None:
        facts.texts["precision"] = precision
    if precision == "fp32":
        facts.extra["precision_note"] = (
            "without --amp; PyTorch may compute fp32 convolutions in TF32 from Ampere on"
        )
    _take_settings(facts, stated, options)
    if options:
        facts.extra["command"] = log.parameters["command"][:1000]
    if log.started is not None:
        facts.extra["started"] = log.started
        facts.missing["measured_at"] = "the log names no time zone"
    facts.extra["summary_total_ips"] = log.summary or "none: the log ends before it"
    facts.extra |= {name: text[:1000] for name, text in stated.items()}
    return facts


def _take_settings(facts: Facts, stated: dict[str, str], options: Mapping[str, str]) -> None:
    """Settings that are under a name of this project's; the others stay as the log has them."""
    if "gpu" in stated:
        facts.texts["backend"] = "cuda"
    if layout := stated.get("memory_format", options.get("memory-format")):
        facts.params["channels_last"] = str(layout == "nhwc").lower()
    if stated.get("data_backend", options.get("data-backend")) in ("synthetic", "syntetic"):
        facts.params["data"] = "synthetic"
    if (size := stated.pop("image_size", None)) is not None:
        facts.counts["image_size"] = count(size)


def _options(command: str) -> dict[str, str]:
    """The options of a printed argument list, by name; `"true"` for one without a value."""
    try:
        words = ast.literal_eval(command or "[]")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return {}
    return {
        word.lstrip("-"): "true" if following.startswith("-") else following
        for word, following in pairwise([*words, "-"])
        if word.startswith("-")
    }


def _precision(stated: dict[str, str], options: Mapping[str, str]) -> str | None:
    for name, precision in (("amp", "amp"), ("fp16", "fp16")):
        if stated.get(name) == "True" or (name not in stated and name in options):
            return precision
    return "fp32" if stated.get("amp") == "False" or options else None


def _take_machine(facts: Facts, file: SourceFile) -> None:
    """What Lambda's folders say: `8xH100_80GB_SXM5_192-222-52-99_v2/PyTorch_resnet50_AMP/`."""
    if len(file.folders) < 2 or not _LAMBDA.fullmatch(file.folders[0]):
        return
    machine = file.folders[1]
    facts.texts["env"] = machine
    device = gpu_in_name(machine)
    if device is not None:
        facts.texts["device"] = device
    else:
        facts.missing["device"] = "the folder's name has no GPU that is known"


def _take_times(facts: Facts, log: _Log, given: Mapping[str, str]) -> None:
    """The times of the iterations, each from its rate; the first ones are of the warm-up."""
    batch = facts.counts.get("batch_size") or count(given.get("batch_size", "0"))
    if not batch:
        raise ValueError("no batch size is stated: add --set batch_size=N, of one GPU")
    images = batch * (facts.devices or 1)
    every = _spacing(log.iterations)
    _check_clock(log.iterations, images * every)
    warm_up = int(given.get("warmup_iters", _WARM_UP))
    first = log.iterations[0].number
    warm = [one for one in log.iterations if _is_warm(one, log.iterations[0], first + warm_up)]
    kept = log.iterations[len(warm) :]
    if not kept:
        raise ValueError(
            f"{len(log.iterations) * every} iterations, {warm_up} of them warm-up: "
            "state fewer with --set warmup_iters=N"
        )
    times = tuple(images / one.images_per_s for one in kept)
    facts.counts["warmup_iters"] = warm_up
    facts.counts["iterations"] = len(kept) * every
    facts.numbers["window_s"] = math.fsum(times) * every
    facts.extra["times_from"] = f"images of an iteration / {_RATE}"
    if warm:
        shown = ", ".join(f"{images / one.images_per_s * 1e3:.4g}" for one in warm)
        facts.extra["warm_up_times_ms"] = shown[:1000]
    if every == 1:
        facts.iteration_times_s = times
        facts.numbers |= iteration_statistics_ms(times)
    else:
        facts.missing["iteration_times_s"] = f"the log has a line for every {every} iterations"
        facts.numbers["throughput_images_per_s"] = images * len(times) / math.fsum(times)
        facts.extra["throughput_from"] = f"images / time by {_RATE}"


def _is_warm(one: _Iteration, first: _Iteration, end: int) -> bool:
    return one.epoch == first.epoch and one.number < end


def _spacing(iterations: Sequence[_Iteration]) -> int:
    """How many iterations a line is for. Raises `ValueError` where lines are missing."""
    steps = {b.number - a.number for a, b in pairwise(iterations) if a.epoch == b.epoch}
    every = max(min(steps, default=1), 1)
    for before, one in pairwise(iterations):
        after = f"epoch {before.epoch} iteration {before.number}"
        whole = one.number - before.number == every
        if not (whole if one.epoch == before.epoch else one.epoch == before.epoch + 1):
            here = f"epoch {one.epoch} iteration {one.number}"
            raise ValueError(f"line {one.line}: {here} follows {after}")
    return every


def _check_clock(iterations: Sequence[_Iteration], images: int) -> None:
    """Refuse a rate that is not what passed between its line and the line before."""
    for before, one in pairwise(iterations):
        if one.epoch != before.epoch or one.at_s is None or before.at_s is None:
            continue
        passed_s, stated_s = one.at_s - before.at_s, images / one.images_per_s
        if abs(stated_s - passed_s) > _CLOCK_TOLERANCE * passed_s + _CLOCK_SLACK_S:
            raise ValueError(
                f"line {one.line}: {one.images_per_s:g} images/s is {stated_s:.4g} s for {images} "
                f"images, but {passed_s:.4g} s passed since the line before"
            )
