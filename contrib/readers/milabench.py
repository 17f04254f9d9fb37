"""Reads milabench's `.data` files: a run each, as JSON lines of events (voir, mila-iqia/milabench).

Rates are images per second over a batch or over an interval (`voir`'s `interval`); the file does
not say which, so they are not times of iterations. Precisions are those of the argument parsers of
`benchmarks/torchvision` and timm's `train.py`: `fp16` there is autocast with loss scaling.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean, median
from typing import Any

from contrib.readers import on_line, part
from tracking.importing import OtherFileError, Result, count, number

#: The first rate of a run is up to thirty times slower, the sixth is as fast as all later ones.
_WARM_UP = 5
#: A batch may take far longer than others, but not a third of their time.
_MOST_TIMES_FASTER = 3
_PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "fp16": "amp-fp16", "bf16": "amp-bf16"}
_AMP_TYPES = {"float16": "amp-fp16", "bfloat16": "amp-bf16"}
#: Telemetry of a GPU: this project's name, milabench's, and what its value is multiplied by.
_TELEMETRY = {
    "gpu_power_w": ("power", 1.0),
    "gpu_utilization_percent": ("load", 100.0),
    "gpu_temperature_c": ("temperature", 1.0),
    "gpu_memory_used_mb": ("memory", 1.0),  # a pair: used, of all
}


def recognises(file: Path, text: str) -> bool:
    """Whether the text begins with an event as voir writes it."""
    first = text.lstrip().partition("\n")[0]
    return first.startswith('{"event"') and '"pipe"' in first


def read(file: Path, text: str, given: Mapping[str, str]) -> Iterator[Result]:
    """Yield the run of a file. Raises `ValueError` where the run ended before its rates."""
    events, rates, samples = _log(text)
    if len(rates) <= _WARM_UP:
        raise ValueError(f"{len(rates)} rates: the run ended in its warm-up")
    if max(rates) > _MOST_TIMES_FASTER * median(rates):
        raise ValueError(f"a rate of {max(rates):g} among rates of {median(rates):g} items/s")
    start = events.get("start", {})
    command = [str(word) for word in start.get("command") or ()]
    options = dict(zip(command, [*command[1:], ""], strict=True))
    result = Result("milabench", _facts(events["config"], events.get("meta", {}), options))
    result.facts["throughput_images_per_s"] = fmean(rates[_WARM_UP:])
    result.missing["batch_size"] = "whether a batch is of one GPU or of all is not stated"
    result.missing["iteration_times_s"] = "milabench's rates are of batches or of intervals"
    if "--optim" in options:
        result.params["channels_last"] = str("channel_last" in options["--optim"]).lower()
    if options.get("--loader", "").startswith("synthetic"):
        result.params["data"] = "synthetic"
    if start.get("time"):
        result.measured_at = datetime.fromtimestamp(start["time"], timezone.utc)
    result.extra["throughput_from"] = f"mean of the rates; the first {_WARM_UP} are left out"
    result.extra["return_code"] = str(events.get("end", {}).get("return_code"))
    result.extra["command"] = " ".join(command)[:1000]
    # Newer versions write all rates at the end: which samples are of the window is then unknown.
    in_window = [gpu for rate, gpu in samples if _WARM_UP <= rate < len(rates)]
    for name, (key, factor) in _TELEMETRY.items():
        if values := _values((gpu for _, gpu in samples), key):
            result.extra[f"{name}_max"] = f"{max(values) * factor:g}"
        if result.facts["devices"] == 1 and (values := _values(in_window, key)):
            result.facts[f"{name}_mean"] = fmean(values) * factor
    yield result


def _log(text: str) -> tuple[dict[str, Any], list[float], list[Any]]:
    """The data of each kind of event; the rates; samples of a GPU, after how many rates each."""
    events: dict[str, Any] = {}
    rates: list[float] = []
    samples: list[Any] = []
    for line, content in enumerate(text.splitlines(), 1):
        with on_line(line):
            event = json.loads(content.strip() or "{}")
            kind, data = event.get("event"), part(event, "data")
            is_rate = data.get("task") == "train" and data.get("rate") is not None
            rates += [number(repr(data["rate"]))] if is_rate else []
        if kind == "config" and not {"classification", "vision"} <= set(data.get("tags") or ()):
            raise OtherFileError("milabench's tags name no image classification")
        if is_rate and data.get("units") != "items/s":
            raise OtherFileError(f"rates are in {data.get('units')!r}, not items/s")
        samples += [(len(rates), gpu) for gpu in part(data, "gpudata").values()]
        events.setdefault(kind, {}).update(data)
    return events, rates, samples


def _facts(config: dict[str, Any], meta: dict[str, Any], options: dict[str, str]) -> dict[str, Any]:
    places = config.get("devices") or []
    gpus = {part(meta, "accelerators", "gpus", str(place)).get("product") for place in places} - {
        None
    }
    precision = _PRECISIONS.get(options.get("--precision", "").removeprefix("tf32-"))
    if "--amp" in options and "--precision" not in options:
        precision = _AMP_TYPES.get(options.get("--amp-dtype", ""), "amp")
    batch = options.get("--batch-size")
    return {
        "arch": options.get("--model"),
        "precision": precision,
        "devices": len(places) or None,
        "batch_size": count(batch) if batch and len(places) == 1 else None,
        "device": gpus.pop() if len(gpus) == 1 else None,
        "backend": part(meta, "accelerators").get("arch") or config.get("arch"),
        "env": part(meta, "os").get("nodename") or config.get("run_name"),
    }


def _values(samples: Iterable[dict[str, Any]], key: str) -> list[float]:
    values = [sample.get(key) for sample in samples]
    numbers = [value[0] if isinstance(value, list) else value for value in values]
    return [float(n) for n in numbers if isinstance(n, int | float) and 0 <= n < 1e7]
