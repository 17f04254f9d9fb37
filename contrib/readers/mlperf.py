"""Reads MLPerf Training's ResNet: a run per `result_*.txt`, its machines from `systems/*.json`.

The layout is `ORG/results/SYSTEM/resnet/result_0.txt` and `ORG/systems/SYSTEM.json` (rules and
logging package of mlcommons/training and mlcommons/logging). In the 300 published ResNet runs of
v3.0 that log a throughput, each point is the images of an epoch over its time, to within 6 %.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from contrib.readers import near, on_line, part, whole_number
from tracking.importing import OtherFileError, Result, number

_LINE = re.compile(r":::MLLOG (\{.*)")
_TOLERANCE = 0.2


def recognises(file: Path, text: str) -> bool:
    """Whether the text has lines of MLPerf's logging package."""
    return _LINE.search(text) is not None


def read(file: Path, text: str, given: Mapping[str, str]) -> Iterator[Result]:
    """Yield the run of a result file; the first epoch, in which clocks settle, is left out."""
    values, epochs = _log(text)
    if not epochs or "submission_benchmark" not in values:
        raise ValueError("no throughput is logged, or no benchmark")
    images = whole_number(values.get("train_samples"))
    before: Any = None
    for line, epoch, rate, seconds in epochs:
        if None not in (before, epoch) and epoch != before + 1:
            raise ValueError(f"line {line}: epoch {epoch} follows epoch {before}")
        if images and seconds is not None and abs(rate * seconds / images - 1) > _TOLERANCE:
            raise ValueError(f"line {line}: {rate:g} images/s, but the epoch took {seconds:g} s")
        before = epoch
    rates = [rate for _, _, rate, _ in epochs]
    *_, kept, seconds = zip(*(epochs[1:] or epochs), strict=True)
    result = Result("mlperf", {"arch": "resnet50", "throughput_images_per_s_max": max(rates)})
    result.facts |= {
        "throughput_images_per_s": len(kept) / math.fsum(1 / rate for rate in kept),
        "window_s": None if None in seconds else math.fsum(seconds),
        # "ResNet-50 v1.5" at 224 x 224: the rules of the closed division
        "image_size": 224 if values.get("submission_division") == "closed" else None,
        "repeat": whole_number(file.stem.removeprefix("result_")),
        "grad_accum_steps": whole_number(values.get("gradient_accumulation_steps")) or None,
    }
    if (started_ms := values.get("run_start")) is not None:
        result.measured_at = datetime.fromtimestamp(started_ms / 1e3, timezone.utc)
    result.missing = dict.fromkeys(("precision", "iteration_times_s"), "MLPerf's logs do not say")
    result.extra["throughput_from"] = "epochs without evaluation; the first epoch is left out"
    result.extra["throughput_points"] = ", ".join(f"{rate:.6g}" for rate in rates)[:1000]
    result.extra["global_batch_size"] = str(values.get("global_batch_size"))
    result.extra["status"] = str(values.get("run_stop"))
    _take_machines(result, file)
    yield result


def _log(text: str) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """The last value of each key; and line, number, images/s and seconds of each epoch."""
    values: dict[str, Any] = {}
    epochs: list[tuple[Any, ...]] = []
    began_ms = seconds = epoch = None
    for line, content in enumerate(text.splitlines(), 1):
        if (logged := _LINE.search(content)) is None:
            continue
        with on_line(line):
            entry = json.loads(logged[1])
            key, value, at_ms = entry["key"], entry.get("value"), number(repr(entry["time_ms"]))
            rate = value if key == "throughput" else part(entry, "value").get("throughput")
            if key in ("throughput", "tracked_stats") and rate is not None:
                epochs.append((line, epoch, number(repr(rate)), seconds))
        if key == "submission_benchmark" and value != "resnet":
            raise OtherFileError(f"MLPerf's {value!r} is no image classification")
        about = part(entry, "metadata")
        if key == "epoch_start":
            began_ms, seconds, epoch = at_ms, None, whole_number(about.get("epoch_num"))
        elif key == "epoch_stop" and began_ms is not None:
            seconds = (at_ms - began_ms) / 1e3
        values[key] = {"run_start": at_ms, "run_stop": about.get("status")}.get(key, value)
    return values, epochs


def _take_machines(result: Result, file: Path) -> None:
    machine = file.parents[1]
    env = machine.name if machine.parent.name == "results" else None
    text = near(file, "..", "..", "..", "systems", f"{env}.json")
    about = {} if text is None else json.loads(text)
    nodes = whole_number(about.get("number_of_nodes"))
    devices = whole_number(about.get("accelerators_per_node"))
    name = about.get("accelerator_model_name" if devices else "host_processor_model_name")
    backend = "cuda" if str(name).startswith("NVIDIA") else "cpu" if text and not devices else None
    result.facts |= {"env": env, "device": name, "backend": backend}
    result.facts |= {"nodes": nodes or None, "devices": devices or None}
    batch = whole_number(result.extra["global_batch_size"])
    accumulated = result.facts["grad_accum_steps"]
    if text is None:
        result.missing |= dict.fromkeys(("device", "batch_size"), f"no systems/{env}.json is there")
    elif not (batch and nodes and devices):
        result.missing["batch_size"] = "how many devices share a batch is not stated"
    elif batch % (parts := nodes * devices * (accumulated or 1)):
        result.missing["batch_size"] = f"{batch} images are not shared evenly by {parts} parts"
    else:
        result.facts["batch_size"] = batch // parts
