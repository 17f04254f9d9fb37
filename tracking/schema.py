"""Every name that we write to MLflow, in one place, and which value of a record it carries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from bench.machine.identity import environment_id
from bench.records import CeilingsRecord, Environment, ProfileRecord, RunRecord
from bench.records.verdict.summary import profile_summary, summary

KIND = "mlproject.kind"
CAMPAIGN = "mlproject.campaign"
CONFIG_ID = "mlproject.config_id"
RECORD_ID = "mlproject.record_id"
#: On a profile: the record, and the run, of the measurement that it explains.
TIMED_RECORD_ID = "mlproject.timed_record_id"
TIMED_RUN_ID = "mlproject.timed_run_id"
ENV = "mlproject.env"
#: Equal for runs of one machine, device, driver and torch.
ENVIRONMENT_ID = "mlproject.environment_id"
DEVICE = "mlproject.device"
VERDICT = "mlproject.verdict"
OUTCOME = "mlproject.outcome"
REASON = "mlproject.reason"
#: Set last: a run that carries it holds the whole record.
UPLOADED = "mlproject.uploaded"
#: When that was, by the uploader's clock, as text that sorts: what came after it is looked for.
UPLOADED_AT = "mlproject.uploaded_at"
#: Who fills the run: a machine (hashed) and a process there, `pid@start`; for `sync --reap`.
HOST = "mlproject.host"
PROCESS = "mlproject.process"
#: On a run that was copied from another server: the run there, and that the copy is whole.
COPIED_FROM = "mlproject.copied_from"
COPIED = "mlproject.copied"
#: On a run whose numbers another program measured: true, and where they were read.
IMPORTED = "mlproject.imported"
SOURCE_FILE = "mlproject.source_file"
SOURCE_SHA256 = "mlproject.source_sha256"
SOURCE_LINE = "mlproject.source_line"
SOURCE_FORMAT = "mlproject.source_format"
NOTE = "mlflow.note.content"
RUN_NAME = "mlflow.runName"

RECORD_ARTIFACT = "record.json"
REPORT_ARTIFACTS = "report"
ITERATION_TIME_MS = "iteration_time_ms"
TELEMETRY_PREFIX = "system/"

#: MLflow's run states by how a measurement ended.
STATUS = {
    "ok": "FINISHED",
    "interrupted": "KILLED",
    "oom": "FAILED",
    "unsupported": "FAILED",
    "refused": "FAILED",
    "crashed": "FAILED",
}

#: MLflow cuts longer tags silently.
TAG_CHARACTERS = 5000


@dataclass(frozen=True)
class Point:
    """One value of a metric: `step` counts from 0, `unix_s` is when it was measured."""

    key: str
    value: float
    step: int
    unix_s: float


@dataclass(frozen=True)
class Content:
    """What a record becomes on the server."""

    params: dict[str, str]
    tags: dict[str, str]
    metrics: Sequence[Point]
    status: str


def whole_tags(now: datetime | None = None) -> dict[str, str]:
    """Return the tags of a run that holds all of its record since `now`."""
    return {UPLOADED: "true", UPLOADED_AT: sortable(now or datetime.now(timezone.utc))}


def sortable(when: datetime) -> str:
    """Return a time as `UPLOADED_AT` holds it: 2026-11-21T18:00:00.000000Z."""
    return f"{when.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S.%fZ}"


def run_name(record: RunRecord | ProfileRecord) -> str:
    """Return `{env}_{arch}_{precision}_bs{batch}_run{n}`."""
    env = record.environment.label if record.environment else record.config.env
    batch = record.resolved.batch_size if record.resolved else record.config.batch_size
    arch = record.config.arch.replace(":", ".")
    return f"{env}_{arch}_{record.config.precision}_bs{batch}_run{record.config.repeat}"


def params(record: RunRecord | ProfileRecord) -> dict[str, str]:
    """Return every field of the configuration as given, and as `resolved_<field>`."""
    given = {name: _text(value) for name, value in record.config.model_dump().items()}
    if record.resolved is None:
        return given
    resolved = record.resolved.model_dump()
    return given | {f"resolved_{name}": _text(value) for name, value in resolved.items()}


def tags(record: RunRecord) -> dict[str, str]:
    """Return what runs are found and filed by."""
    found = _common_tags(record, record.environment) | {
        CONFIG_ID: record.config_id,
        CAMPAIGN: record.config.campaign,
        RUN_NAME: run_name(record),
        NOTE: note(record),
    }
    if record.verdict is not None:
        found[VERDICT] = record.verdict.level
    return found


def ceilings_tags(record: CeilingsRecord) -> dict[str, str]:
    """Return the tags of a run that measured roofs."""
    label = record.environment.label if record.environment else "unknown"
    return _common_tags(record, record.environment) | {
        RUN_NAME: f"{label}_ceilings",
        NOTE: ceilings_note(record),
    }


def profile_tags(record: ProfileRecord) -> dict[str, str]:
    """Return the tags of a profile: those of a measurement, and which one it explains."""
    found = _common_tags(record, record.environment) | {
        CONFIG_ID: record.config_id,
        CAMPAIGN: record.config.campaign,
        RUN_NAME: f"{run_name(record)}_profile",
        NOTE: profile_note(record),
    }
    if record.timed_record_id is not None:
        found[TIMED_RECORD_ID] = record.timed_record_id
    if record.verdict is not None:
        found[VERDICT] = record.verdict.level
    return found


def profile_metrics(record: ProfileRecord) -> list[Point]:
    """Return the figures of a profile, one value each."""
    at_s = record.created.timestamp()
    return [Point(key, value, 0, at_s) for key, value in profile_summary(record).items()]


def metrics(record: RunRecord) -> list[Point]:
    """Return every metric: the summary, one point per iteration, and the telemetry series."""
    at_s = record.created.timestamp()
    points = [Point(key, value, 0, at_s) for key, value in summary(record).items()]
    if record.measurement is not None:
        at_s = record.measurement.window_start_unix_s
        elapsed_s = 0.0
        for step, seconds in enumerate(record.measurement.iteration_times_s):
            elapsed_s += seconds
            points.append(Point(ITERATION_TIME_MS, seconds * 1e3, step, at_s + elapsed_s))
    for series in record.telemetry.series if record.telemetry else ():
        points += [
            Point(TELEMETRY_PREFIX + series.name, value, step, at_s + time_s)
            for step, (time_s, value) in enumerate(zip(series.times_s, series.values, strict=True))
        ]
    return points


def ceilings_metrics(record: CeilingsRecord) -> list[Point]:
    """Return the roofs as metrics, such as `peak_gflops_fp32` and `peak_gb_per_s`."""
    at_s = record.created.timestamp()
    found: dict[str, float] = {}
    for ceiling in record.ceilings:
        if ceiling.peak_flops_per_s is not None:
            found[f"peak_gflops_{ceiling.math_mode}"] = ceiling.peak_flops_per_s / 1e9
        if ceiling.peak_bytes_per_s is not None:
            found["peak_gb_per_s"] = ceiling.peak_bytes_per_s / 1e9
    return [Point(key, value, 0, at_s) for key, value in found.items()]


def note(record: RunRecord) -> str:
    """Return the summary that MLflow's UI shows as the run's description (Markdown)."""
    facts = summary(record)
    lines = [f"**{safe(run_name(record))}**: {record.outcome}"]
    if record.reason:
        lines.append(f"Reason: {safe(record.reason)}")
    if "throughput_images_per_s" in facts:
        lines.append(
            f"{facts['throughput_images_per_s']:.4g} images/s, "
            f"{facts['iteration_time_ms_p50']:.4g} ms per iteration (median of "
            f"{facts['iterations']:.0f})"
        )
    if "loader_images_per_s" in facts:
        lines.append(f"{facts['loader_images_per_s']:.4g} images/s from the loader alone")
    if "attained_gflops" in facts:
        lines.append(
            f"{facts['attained_gflops']:.4g} GFLOP/s attained; between "
            f"{facts['intensity_min']:.3g} and {facts['intensity_max']:.3g} FLOP/byte"
        )
    if record.environment is not None:
        lines.append(f"Device: {safe(record.environment.device.name)}")
    for finding in record.verdict.findings if record.verdict else ():
        lines.append(f"- {finding.level}: {safe(finding.message)}")
    return "\n\n".join(lines)


def ceilings_note(record: CeilingsRecord) -> str:
    """Return the description of a run that measured roofs (Markdown)."""
    lines = [f"Roofs: {record.outcome}"]
    for ceiling in record.ceilings:
        if ceiling.peak_flops_per_s is not None:
            lines.append(
                f"- {ceiling.math_mode}: {ceiling.peak_flops_per_s / 1e9:.4g} GFLOP/s "
                f"({safe(ceiling.source)})"
            )
    return "\n\n".join(lines)


def profile_note(record: ProfileRecord) -> str:
    """Return the description of a profile (Markdown)."""
    lines = [f"**{safe(run_name(record))}**, profiled: {record.outcome}"]
    if record.reason:
        lines.append(f"Reason: {safe(record.reason)}")
    lines += [f"{name}: {value:.4g}" for name, value in profile_summary(record).items()]
    for section in ("ops", "counters", "cpu_counters"):
        if section in record.missing:
            lines.append(f"No {section}: {safe(record.missing[section])}")
    for finding in record.verdict.findings if record.verdict else ():
        lines.append(f"- {finding.level}: {safe(finding.message)}")
    return "\n\n".join(lines)


def _common_tags(
    record: RunRecord | CeilingsRecord | ProfileRecord, environment: Environment | None
) -> dict[str, str]:
    found = {KIND: record.kind, RECORD_ID: record.record_id, OUTCOME: record.outcome}
    if record.reason is not None:
        found[REASON] = record.reason[:TAG_CHARACTERS]
    if environment is not None:
        found |= {
            ENV: environment.label,
            ENVIRONMENT_ID: environment_id(environment),
            DEVICE: environment.device.name,
        }
        if environment.git_commit is not None:
            found["mlflow.source.git.commit"] = environment.git_commit
    return found


def _text(value: Any) -> str:
    """As MLproject and the command line spell it: lower-case true and false, plain numbers."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else json.dumps(value)


def safe(text: str) -> str:
    """Text from a record, unable to become markup in the UI's description."""
    return text.replace("<", "&lt;").replace("|", "\\|").replace("\n", " ")
