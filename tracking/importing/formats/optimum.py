"""Reports of Hugging Face's optimum-benchmark: `benchmark.json`, or its two halves side by side.

Field names: `BenchmarkReport` and `TrainingConfig` of huggingface/optimum-benchmark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.records.verdict.record_metrics import iteration_statistics_ms
from tracking.importing.facts import Facts, OtherWorkError
from tracking.importing.json_text import parse_json, part
from tracking.importing.source_files import SourceFile
from tracking.importing.text_table import count, positive


def is_report(file: SourceFile, text: str) -> bool:
    """Whether the text is a report, whole or the half that has the results."""
    if not text.startswith("{"):
        return False
    try:
        content = parse_json(text)
    except ValueError:
        return False
    return isinstance(content, dict) and bool(
        isinstance(content.get("report"), dict) or isinstance(content.get("train"), dict)
    )


def read_report(file: SourceFile, text: str, given: Mapping[str, str]) -> Iterator[Facts]:
    """Yield what a report says of training. Raises `ValueError` where it is none of images."""
    config, report = _halves(parse_json(text), file)
    training = report.get("train")
    if not isinstance(training, dict):
        raise OtherWorkError("no training in this report")
    backend = part(config, "backend")
    task = backend.get("task")
    if task is not None and "image" not in str(task):
        raise OtherWorkError(f"trains {str(task)[:60]!r}: its samples are no images")
    if task is None:
        raise ValueError("no benchmark_config.json beside it says what was trained")
    facts = Facts("optimum-benchmark", None)
    times = part(training, "latency").get("values")
    if isinstance(times, list) and times:
        facts.iteration_times_s = tuple(positive(repr(each)) for each in times)
        facts.numbers |= iteration_statistics_ms(facts.iteration_times_s)
    rate = part(training, "throughput").get("value")
    if rate is not None:
        facts.numbers["throughput_images_per_s"] = positive(repr(rate))
    _take_config(facts, config, backend)
    yield facts


def _take_config(facts: Facts, config: dict[str, Any], backend: dict[str, Any]) -> None:
    environment = part(config, "environment")
    gpus = environment.get("gpu")
    for fact, text in {
        "arch": backend.get("model"),
        "backend": backend.get("device"),
        "precision": backend.get("torch_dtype") or backend.get("dtype"),
        "device": environment.get("cpu")
        if backend.get("device") == "cpu"
        else (gpus[0] if isinstance(gpus, list) and gpus else gpus),
    }.items():
        if isinstance(text, str) and text.strip():
            facts.texts[fact] = text.strip()[:200]
    arguments = part(part(config, "scenario"), "training_arguments")
    if (batch := arguments.get("per_device_train_batch_size")) is not None:
        facts.counts["batch_size"] = count(repr(batch))
    for name in ("name", "optimum_benchmark_version"):
        text = config.get(name) or environment.get(name)
        if isinstance(text, str):
            facts.extra[name] = text[:1000]
    if (accumulated := arguments.get("gradient_accumulation_steps")) is not None:
        facts.grad_accum_steps = count(repr(accumulated))
        if accumulated != 1:  # as its text: results that differ in it alone are two
            facts.extra["gradient_accumulation_steps"] = str(accumulated)


def _halves(content: Any, file: SourceFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration and the report; a report alone has its configuration beside it."""
    if not isinstance(content, dict):
        raise ValueError("no report of optimum-benchmark")
    if isinstance(content.get("report"), dict):
        return part(content, "config"), content["report"]
    beside = file.near("benchmark_config.json")
    config = {} if beside is None else parse_json(beside)
    return config if isinstance(config, dict) else {}, content
