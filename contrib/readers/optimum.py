"""Reads reports of Hugging Face's optimum-benchmark: `benchmark.json`, or its two halves.

The halves are `benchmark_report.json` and, beside it, `benchmark_config.json`. Field names:
`BenchmarkReport` and `TrainingConfig` of huggingface/optimum-benchmark.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.records.metrics import iteration_statistics_ms
from contrib.readers import near, part
from tracking.importing import OtherFileError, Result, count, number


def recognises(file: Path, text: str) -> bool:
    """Whether the text is a report, whole or the half that has the results."""
    return text.startswith("{") and ('"report"' in text or '"train"' in text)


def read(file: Path, text: str, given: Mapping[str, str]) -> Iterator[Result]:
    """Yield what a report says of training. Raises `ValueError` where it is none of images."""
    content = json.loads(text)
    whole = isinstance(content.get("report"), dict)
    config = (
        part(content, "config")
        if whole
        else json.loads(near(file, "benchmark_config.json") or "{}")
    )
    report = content["report"] if whole else content
    if not isinstance(report.get("train"), dict):
        raise OtherFileError("no training in this report")
    backend = part(config, "backend")
    task = backend.get("task")
    if task is None:
        raise ValueError("no benchmark_config.json beside it says what was trained")
    if "image" not in str(task):
        raise OtherFileError(f"trains {str(task)[:60]!r}: its samples are no images")
    result = Result("optimum-benchmark", _facts(config, backend))
    times = part(report, "train", "latency").get("values")
    if isinstance(times, list) and times:
        result.iteration_times_s = tuple(number(repr(seconds)) for seconds in times)
        result.facts |= iteration_statistics_ms(result.iteration_times_s)
    if (rate := part(report, "train", "throughput").get("value")) is not None:
        result.facts["throughput_images_per_s"] = number(repr(rate))
    versions = {"optimum_benchmark_version": part(config, "environment")} | {"name": config}
    for name, where in versions.items():
        if isinstance(where.get(name), str):
            result.extra[name] = where[name][:1000]
    accumulated = result.facts["grad_accum_steps"]
    if accumulated not in (None, 1):  # results that differ in it alone are two
        result.extra["gradient_accumulation_steps"] = str(accumulated)
    yield result


def _facts(config: dict[str, Any], backend: dict[str, Any]) -> dict[str, Any]:
    environment = part(config, "environment")
    gpus = environment.get("gpu")
    gpu = gpus[0] if isinstance(gpus, list) and gpus else gpus
    arguments = part(config, "scenario", "training_arguments")
    texts = {
        "arch": backend.get("model"),
        "backend": backend.get("device"),
        "precision": backend.get("torch_dtype") or backend.get("dtype"),
        "device": environment.get("cpu") if backend.get("device") == "cpu" else gpu,
    }
    counts = {
        "batch_size": arguments.get("per_device_train_batch_size"),
        "grad_accum_steps": arguments.get("gradient_accumulation_steps"),
    }
    stated = {
        name: text.strip()[:200]
        for name, text in texts.items()
        if isinstance(text, str) and text.strip()
    }
    return stated | {name: None if n is None else count(repr(n)) for name, n in counts.items()}
