"""Reads logs of NVIDIA's DLLogger, as image models of DeepLearningExamples print or stream them.

A printed line is `DLL <instant> - Epoch: 0 Iteration: 1 train.total_ips : 2021.16 images/s`, one of
a stream `DLLL {"timestamp": ..., "step": [0, 1], "data": {"train.total_ips": 2021.16}}`. The rate
is of all processes: `calc_ips` of DeepLearningExamples/PyTorch/Classification/ConvNets.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from math import fsum
from pathlib import Path
from typing import Any

from bench.records.metrics import iteration_statistics_ms
from contrib.readers import gpu_in_name, on_line, part
from tracking.importing import OtherFileError, Result, count, number

_RATE = "train.total_ips"
_LINE = re.compile(r"DLL (\d{4}-\S+ [\d:.]+) - (?:(PARAMETER)|Epoch: (\d+) Iteration: (\d+)) (.*)")


def recognises(file: Path, text: str) -> bool:
    """Whether DLLogger wrote lines of the text."""
    return re.search(r"DLL \d{4}-\d\d-\d\d [\d:.]+ - |^DLLL \{", text, re.MULTILINE) is not None


def read(file: Path, text: str, given: Mapping[str, str]) -> Iterator[Result]:
    """Yield the run of a log, without ten iterations of warm-up, or `warmup_iters` of `given`."""
    log, iterations = _log(text)
    batch = count(log.get("batch_size") or log.get("b") or given.get("batch_size", "0"))
    if not batch:
        raise ValueError("no batch size is stated: add --set batch_size=N, of one GPU")
    images = batch * max(count(log.get("world_size", "1")), 1)
    every = _spacing(iterations, images)
    warm_up = int(given.get("warmup_iters", 10))
    end = (iterations[0][2], iterations[0][3] + warm_up)
    times_s = tuple(images / rate for _, _, *where, rate in iterations if (*where,) >= end)
    if not times_s:
        raise ValueError(f"no iteration behind {warm_up} of warm-up: add --set warmup_iters=N")
    half = [name for name in ("amp", "fp16") if log.get(name) == "True"]
    facts: dict[str, Any] = {"arch": log.get("arch"), "batch_size": batch}
    facts |= {"devices": images // batch, "backend": "cuda" if "gpu" in log else None}
    facts |= {"warmup_iters": warm_up, "iterations": len(times_s) * every}
    facts["window_s"] = fsum(times_s) * every
    facts["precision"] = half[0] if half else "fp32" if {"amp", "command"} & log.keys() else None
    facts["image_size"] = count(log["image_size"]) if "image_size" in log else None
    if file.parent.name.startswith("PyTorch_"):  # Lambda's MACHINE/PyTorch_MODEL/
        machine = file.parents[1].name
        facts |= {"env": machine, "device": gpu_in_name(machine)[0]}
    result = Result("dllogger", facts, extra={"command": log.get("command", "")})
    if every == 1:
        result.iteration_times_s = times_s
        facts |= iteration_statistics_ms(times_s)
    else:
        facts["throughput_images_per_s"] = images * len(times_s) / fsum(times_s)
        result.missing["iteration_times_s"] = f"the log has a line for every {every} iterations"
    if "memory_format" in log:
        result.params["channels_last"] = str(log["memory_format"] == "nhwc").lower()
    if log.get("data_backend") in ("synthetic", "syntetic"):
        result.params["data"] = "synthetic"
    yield result


def _log(text: str) -> tuple[dict[str, str], list[tuple[Any, ...]]]:
    """What ran; and line, instant, epoch, number and images/s of each iteration."""
    log: dict[str, str] = {}
    iterations: list[tuple[Any, ...]] = []
    for line, at_s, step, data in _entries(text):
        if step == "PARAMETER":
            log = {name: data[name] for name in data if data[name] not in ("", "None")} | log
        elif isinstance(step, list) and _RATE in data:
            rate, _, unit = data[_RATE].partition(" ")
            with on_line(line):
                iterations.append((line, at_s, *map(int, step), number(rate)))
            if unit not in ("images/s", "img/s"):
                raise OtherFileError(f"no {_RATE} in images/s: another model")
    if not iterations:
        raise OtherFileError(f"no {_RATE} in images/s: another model, or ended before its first")
    return log, iterations


def _entries(text: str) -> Iterator[tuple[int, float, Any, dict[str, str]]]:
    """The line, the time in seconds, the step and the data as text of each entry."""
    units: dict[str | None, str] = {}
    for line, content in enumerate(text.splitlines(), 1):
        if content.startswith("DLLL {"):
            with on_line(line):
                entry = json.loads(content[5:])
                at_s = float(entry.get("timestamp") or "nan")
            units[entry.get("metric")] = part(entry, "metadata").get("unit") or ""
            data = {n: f"{v} {units.get(n, '')}".strip() for n, v in part(entry, "data").items()}
            yield line, at_s, entry.get("step"), data
        elif printed := _LINE.search(content):
            at, parameter, epoch, iteration, rest = printed.groups()
            texts = re.split(r"(?:^|\s)([\w.]+) :(?=\s|$)", rest)[1:]
            data = dict(zip(texts[::2], map(str.strip, texts[1::2]), strict=True))
            at_s = datetime.fromisoformat(f"{at}+00:00").timestamp()  # only differences count
            yield line, at_s, parameter or [epoch, iteration], data
        elif content.startswith("['"):
            options = re.findall(r"'--?([\w-]+)'(?:, '([^-'][^']*)')?", content)
            data = {name.replace("-", "_"): value or "True" for name, value in options}
            yield line, 0.0, "PARAMETER", data | {"command": content[:1000]}


def _spacing(iterations: list[tuple[Any, ...]], images: int) -> int:
    """How many iterations a line is for. Raises `ValueError` for rates that their clock denies."""
    every = max(min((b[3] - a[3] for a, b in pairwise(iterations) if a[2] == b[2]), default=1), 1)
    for (_, before_s, epoch, last, _), (line, at_s, new_epoch, here, rate) in pairwise(iterations):
        if here - last != every if new_epoch == epoch else new_epoch != epoch + 1:
            raise ValueError(f"line {line}: iteration {here} follows {last} of epoch {epoch}")
        passed_s, stated_s = at_s - before_s, images * every / rate  # nan without an instant
        # Of 186,806 published iterations none is further than 3 % from the time between its lines.
        if new_epoch == epoch and abs(stated_s - passed_s) > 0.2 * passed_s + 0.05:
            raise ValueError(f"line {line}: {stated_s:g} s stated, {passed_s:g} s passed since")
    return every
