"""milabench's `.data` files: a run each, as JSON lines of events (voir and mila-iqia/milabench).

Rates are images per second over a batch or over an interval (`voir`'s `interval`); the file does
not say which, so they are not times of iterations. Precisions are those of the argument parsers of
`benchmarks/torchvision` and timm's `train.py`: `fp16` there is autocast with loss scaling.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from tracking.importing.facts import BadLine, Facts, OtherWorkError
from tracking.importing.json_text import number_above_zero, parse_json, part
from tracking.importing.source_files import SourceFile
from tracking.importing.text_table import count

#: The first rate of a run is up to thirty times slower, the sixth is as fast as all later ones.
_WARM_UP = 5
#: A batch may take far longer than others, but not a third of their time.
_MOST_TIMES_FASTER = 3
_PRECISIONS = {
    "fp32": "fp32",
    "tf32": "tf32",
    "fp16": "amp-fp16",
    "tf32-fp16": "amp-fp16",
    "bf16": "amp-bf16",
    "tf32-bf16": "amp-bf16",
}
_AMP_TYPES = {"float16": "amp-fp16", "bfloat16": "amp-bf16"}
#: No telemetry of a GPU has a larger value in these units.
_MOST = 10_000_000
_EVENTS = frozenset(("config", "meta", "start", "phase", "data", "line", "stop", "end", "error"))
#: Telemetry of a GPU: this project's name, milabench's, and what its value is multiplied by.
_TELEMETRY = (
    ("gpu_power_w", "power", 1.0),
    ("gpu_utilization_percent", "load", 100.0),
    ("gpu_temperature_c", "temperature", 1.0),
    ("gpu_memory_used_mb", "memory", 1.0),  # a pair: used, of all
)


@dataclass
class _Log:
    """What a file says: its plan, its machine, its command, its rates, and its GPU beside them."""

    config: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)
    started_s: float | None = None
    rates: list[float] = field(default_factory=list)
    units: set[str] = field(default_factory=set)
    telemetry: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    return_code: str | None = None


def is_milabench(file: SourceFile, text: str) -> bool:
    """Whether the text begins with an event as voir writes it."""
    first = text.lstrip().partition("\n")[0]
    if not first.startswith('{"event"'):
        return False
    try:
        event = parse_json(first)
    except ValueError:
        return False
    return isinstance(event, dict) and event.get("event") in _EVENTS and "pipe" in event


def read_milabench(
    file: SourceFile, text: str, given: Mapping[str, str]
) -> Iterator[Facts | BadLine]:
    """Yield the run of a file, or its bad lines.

    Raises `OtherWorkError` where it did not train an image classifier, `ValueError` where the run
    ended before its rates.
    """
    log = _Log()
    bad: list[BadLine] = []
    for line, content in enumerate(text.splitlines(), 1):
        if content.strip():
            try:
                _take_event(log, parse_json(content))
            except ValueError as error:
                bad.append(BadLine(line, str(error)))
    tags = log.config.get("tags")
    if not isinstance(tags, list) or not {"classification", "vision"} <= {str(tag) for tag in tags}:
        raise OtherWorkError("milabench's tags name no image classification")
    if bad:
        yield from bad
        return
    if log.units - {"items/s"}:
        raise OtherWorkError(f"rates are in {min(log.units)[:20]!r}, not items/s")
    if len(log.rates) <= _WARM_UP:
        raise ValueError(f"{len(log.rates)} rates: the run ended in its warm-up")
    usual = statistics.median(log.rates)
    if max(log.rates) > _MOST_TIMES_FASTER * usual:
        raise ValueError(f"a rate of {max(log.rates):g} among rates of {usual:g} items/s")
    facts = _facts_of(log)
    _take_telemetry(facts, log)
    yield facts


def _take_event(log: _Log, event: Any) -> None:
    kind = event.get("event") if isinstance(event, dict) else None
    if not isinstance(kind, str):
        raise ValueError("no event of milabench")
    about = part(event, "data")
    if kind == "config":
        log.config = about
    elif kind == "meta":
        log.meta |= about
    elif kind == "start":
        command = about.get("command")
        log.command = [str(word) for word in command] if isinstance(command, list) else []
        log.started_s = number_above_zero(about["time"]) if about.get("time") else None
    elif kind == "end":
        log.return_code = str(about.get("return_code"))[:20]
    elif kind == "data" and about.get("rate") is not None and about.get("task") == "train":
        log.rates.append(number_above_zero(about["rate"]))
        log.units.add(str(about.get("units")))
    elif kind == "data" and part(about, "gpudata"):
        log.telemetry.append((len(log.rates), part(about, "gpudata")))


def _facts_of(log: _Log) -> Facts:
    facts = Facts("milabench", None)
    options = dict(zip(log.command, log.command[1:], strict=False))
    if model := options.get("--model"):
        facts.texts["arch"] = model
    precision = _precision(log.command, options)
    if precision is not None:
        facts.texts["precision"] = precision
    devices = log.config.get("devices")
    facts.devices = len(devices) if isinstance(devices, list) and devices else None
    if facts.devices == 1 and (batch := options.get("--batch-size")) is not None:
        facts.counts["batch_size"] = count(batch)
    else:
        facts.missing["batch_size"] = "whether a batch is of one GPU or of all is not stated"
    if "--optim" in options:
        facts.params["channels_last"] = str("channel_last" in options["--optim"]).lower()
    if options.get("--loader", "").startswith("synthetic"):
        facts.params["data"] = "synthetic"
    if log.started_s is not None and 946684800 <= log.started_s < 7258118400:
        facts.measured_at = datetime.fromtimestamp(log.started_s, timezone.utc)
    kept = log.rates[_WARM_UP:]
    facts.numbers["throughput_images_per_s"] = statistics.fmean(kept)
    facts.extra["throughput_from"] = f"mean of {len(kept)} rates; the first {_WARM_UP} are left out"
    rates = ", ".join(f"{rate:.5g}" for rate in log.rates)
    facts.extra["rates"] = (
        rates if len(rates) <= 1000 else rates[:1000].rpartition(",")[0] + ", ..."
    )
    facts.missing["iteration_times_s"] = "milabench's rates are of batches or of intervals"
    if log.return_code is not None:
        facts.extra["return_code"] = log.return_code
    facts.extra["command"] = " ".join(log.command)[:1000]
    _take_machine(facts, log)
    return facts


def _precision(command: list[str], options: Mapping[str, str]) -> str | None:
    if "--precision" in options:
        return _PRECISIONS.get(options["--precision"])
    if "--amp" in command:
        return _AMP_TYPES.get(options.get("--amp-dtype", ""), "amp")
    return None


def _take_machine(facts: Facts, log: _Log) -> None:
    accelerators = part(log.meta, "accelerators")
    gpus = part(accelerators, "gpus")
    places = log.config.get("devices")
    names = {
        str(part(gpus, str(place)).get("product"))[:200]
        for place in (places if isinstance(places, list) else [])
        if part(gpus, str(place)).get("product")
    }
    if len(names) == 1:
        facts.texts["device"] = names.pop()
    else:
        facts.missing["device"] = "this version of milabench did not record it"
    if arch := accelerators.get("arch") or log.config.get("arch"):
        facts.texts["backend"] = str(arch)[:40]
    machine = part(log.meta, "os").get("nodename") or log.config.get("run_name")
    if machine:
        facts.texts["env"] = str(machine)[:200]
    for name, text in {
        "name": log.config.get("name"),
        "run_name": log.config.get("run_name"),
        "gpu_index": log.config.get("device"),
        "torch": part(log.meta, "pytorch").get("torch"),
        "milabench": part(log.meta, "milabench").get("tag"),
        "driver": part(accelerators, "system").get("DRIVER_VERSION"),
        "cpu": part(log.meta, "cpu").get("brand"),
    }.items():
        if text is not None:
            facts.extra[name] = str(text)[:1000]


def _take_telemetry(facts: Facts, log: _Log) -> None:
    """Means of one GPU over the samples between the rates that count, and maxima of the run.

    Newer versions write all rates at the end: which samples are of the window is then unknown.
    """
    in_window = [one for rates, one in log.telemetry if _WARM_UP <= rates < len(log.rates)]
    for name, key, factor in _TELEMETRY:
        if found := _values([one for _, one in log.telemetry], key):
            facts.extra[f"{name}_max"] = f"{max(found) * factor:g}"
        if facts.devices == 1 and (found := _values(in_window, key)):
            facts.numbers[f"{name}_mean"] = statistics.fmean(found) * factor


def _values(samples: list[dict[str, Any]], key: str) -> list[float]:
    """What the samples say of each GPU they name; what is no number from zero is left out."""
    values = [part(sample, place).get(key) for sample in samples for place in sample]
    numbers = [value[0] if isinstance(value, list) and value else value for value in values]
    return [
        float(one)
        for one in numbers
        if isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one < _MOST
    ]
