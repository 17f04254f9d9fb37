"""Observations with arithmetic for the head, and those of two published reports."""

import csv
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from analysis.runs.placed import Run, imported_run
from bench.config import FILING_FIELDS, WINDOW_FIELDS, RunConfig
from bench.records import Finding
from tracking import schema

PUBLISHED = Path(__file__).with_name("data") / "published_runs.csv"

_DEFAULTS = {
    name: f"{value}"
    for name, value in RunConfig(arch="resnet18", batch_size=10).model_dump().items()
    if name not in FILING_FIELDS | WINDOW_FIELDS
} | {"env": "lab", "device": "Example GPU"}


def observation(name="r1", images_per_s=100.0, *, times_s=(), metrics=None, **changes):
    """A run that ended well; settings by name, other fields of `Run` too."""
    fields = {
        key: changes.pop(key)
        for key in ("outcome", "reason", "campaign", "software", "count", "deviations", "findings")
        if key in changes
    }
    settings = _DEFAULTS | {key: f"{value}" for key, value in changes.items()}
    return Run(
        **{
            "name": name,
            "settings": settings,
            "outcome": "ok",
            "reason": None,
            "campaign": None,
            "software": {},
            "metrics": {"throughput_images_per_s": images_per_s} if metrics is None else metrics,
            "iteration_times_s": tuple(times_s),
            **fields,
        }
    )


#: What the verdict of a window that was not in steady state says.
DRIFT = Finding(code="drift", level="suspect", message="the last third ran slower")


def repeated(name, rates, **changes):
    """One observation per rate: name-1, name-2, ..."""
    return [
        observation(f"{name}-{number}", rate, **changes) for number, rate in enumerate(rates, 1)
    ]


@dataclass
class Imported:
    """What tracking tells of an imported run."""

    run_id: str
    params: dict
    metrics: dict
    tags: dict
    name: str = "imported"
    status: str = "FINISHED"
    start_time: datetime = datetime(2025, 6, 1, tzinfo=timezone.utc)
    artifact_uri: str = ""


def published_runs():
    """The 48 configurations of two published reports as the tracking server would tell them."""
    with PUBLISHED.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    runs = []
    for number, row in enumerate(rows, start=2):
        metrics = {
            "throughput_images_per_s": float(row["images_per_s"]),
            "batch_size": float(row["batch_size"]),
        }
        if row["images_per_s_sd"]:
            metrics["throughput_images_per_s_std"] = float(row["images_per_s_sd"])
        params = {
            name: row[name] for name in ("arch", "precision", "batch_size", "backend", "repeats")
        }
        tags = {
            schema.IMPORTED: "true",
            schema.SOURCE_FILE: PUBLISHED.name,
            schema.KIND: "imported",
            schema.ENV: row["env"],
            schema.DEVICE: row["device"],
            schema.OUTCOME: "ok",
        }
        runs.append(Imported(f"line-{number}", params, metrics, tags))
    return runs


def published():
    return [imported_run(run) for run in published_runs()]
