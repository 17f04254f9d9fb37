"""What each kind of record becomes on the server."""

from __future__ import annotations

import json
from typing import Any

from bench.records import CeilingsRecord, Environment, ImportedRecord, ProfileRecord, RunRecord
from bench.records.environment import environment_id
from bench.records.folders import AnyRecord
from bench.records.verdict.record_metrics import profile_summary, summary
from tracking import schema
from tracking.upload.imported_content import imported_content


def content_of(record: AnyRecord) -> schema.Content:
    """Return the params, tags, metrics and status that a record becomes on the server."""
    if isinstance(record, ImportedRecord):
        return imported_content(record)
    status = schema.STATUS[record.outcome]
    if isinstance(record, CeilingsRecord):
        return schema.Content({}, ceilings_tags(record), ceilings_metrics(record), status)
    if isinstance(record, ProfileRecord):
        points = profile_metrics(record)
        return schema.Content(params(record), profile_tags(record), points, status)
    return schema.Content(params(record), tags(record), metrics(record), status)


def end_ms(record: AnyRecord) -> int:
    """Return when the run ended: its start where no duration is known, never the upload's time."""
    known = record.process if isinstance(record, RunRecord) else None
    return int((record.created.timestamp() + (known.real_s if known else 0.0)) * 1000)


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
        schema.CONFIG_ID: record.config_id,
        schema.CAMPAIGN: record.config.campaign,
        schema.RUN_NAME: run_name(record),
        schema.NOTE: note(record),
    }
    if record.verdict is not None:
        found[schema.VERDICT] = record.verdict.level
    return found


def ceilings_tags(record: CeilingsRecord) -> dict[str, str]:
    """Return the tags of a run that measured roofs."""
    label = record.environment.label if record.environment else "unknown"
    return _common_tags(record, record.environment) | {
        schema.RUN_NAME: f"{label}_ceilings",
        schema.NOTE: ceilings_note(record),
    }


def profile_tags(record: ProfileRecord) -> dict[str, str]:
    """Return the tags of a profile: those of a measurement, and which one it explains."""
    found = _common_tags(record, record.environment) | {
        schema.CONFIG_ID: record.config_id,
        schema.CAMPAIGN: record.config.campaign,
        schema.RUN_NAME: f"{run_name(record)}_profile",
        schema.NOTE: profile_note(record),
    }
    if record.timed_record_id is not None:
        found[schema.TIMED_RECORD_ID] = record.timed_record_id
    if record.verdict is not None:
        found[schema.VERDICT] = record.verdict.level
    return found


def profile_metrics(record: ProfileRecord) -> list[schema.Point]:
    """Return the figures of a profile, one value each."""
    at_s = record.created.timestamp()
    return [schema.Point(key, value, 0, at_s) for key, value in profile_summary(record).items()]


def metrics(record: RunRecord) -> list[schema.Point]:
    """Return every metric: the summary, one point per iteration, and the telemetry series."""
    at_s = record.created.timestamp()
    points = [schema.Point(key, value, 0, at_s) for key, value in summary(record).items()]
    if record.measurement is not None:
        at_s = record.measurement.window_start_unix_s
        elapsed_s = 0.0
        for step, seconds in enumerate(record.measurement.iteration_times_s):
            elapsed_s += seconds
            points.append(
                schema.Point(schema.ITERATION_TIME_MS, seconds * 1e3, step, at_s + elapsed_s)
            )
    for series in record.telemetry.series if record.telemetry else ():
        points += [
            schema.Point(schema.TELEMETRY_PREFIX + series.name, value, step, at_s + time_s)
            for step, (time_s, value) in enumerate(zip(series.times_s, series.values, strict=True))
        ]
    return points


def ceilings_metrics(record: CeilingsRecord) -> list[schema.Point]:
    """Return the roofs as metrics, such as `peak_gflops_fp32` and `peak_gb_per_s`."""
    at_s = record.created.timestamp()
    found: dict[str, float] = {}
    for ceiling in record.ceilings:
        if ceiling.peak_flops_per_s is not None:
            found[f"peak_gflops_{ceiling.math_mode}"] = ceiling.peak_flops_per_s / 1e9
        if ceiling.peak_bytes_per_s is not None:
            found["peak_gb_per_s"] = ceiling.peak_bytes_per_s / 1e9
    return [schema.Point(key, value, 0, at_s) for key, value in found.items()]


def note(record: RunRecord) -> str:
    """Return the summary that MLflow's UI shows as the run's description (Markdown)."""
    facts = summary(record)
    lines = [f"**{schema.safe(run_name(record))}**: {record.outcome}"]
    if record.reason:
        lines.append(f"Reason: {schema.safe(record.reason)}")
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
        lines.append(f"Device: {schema.safe(record.environment.device.name)}")
    for finding in record.verdict.findings if record.verdict else ():
        lines.append(f"- {finding.level}: {schema.safe(finding.message)}")
    return "\n\n".join(lines)


def ceilings_note(record: CeilingsRecord) -> str:
    """Return the description of a run that measured roofs (Markdown)."""
    lines = [f"Roofs: {record.outcome}"]
    for ceiling in record.ceilings:
        if ceiling.peak_flops_per_s is not None:
            lines.append(
                f"- {ceiling.math_mode}: {ceiling.peak_flops_per_s / 1e9:.4g} GFLOP/s "
                f"({schema.safe(ceiling.source)})"
            )
    return "\n\n".join(lines)


def profile_note(record: ProfileRecord) -> str:
    """Return the description of a profile (Markdown)."""
    lines = [f"**{schema.safe(run_name(record))}**, profiled: {record.outcome}"]
    if record.reason:
        lines.append(f"Reason: {schema.safe(record.reason)}")
    lines += [f"{name}: {value:.4g}" for name, value in profile_summary(record).items()]
    for section in ("ops", "counters", "cpu_counters"):
        if section in record.missing:
            lines.append(f"No {section}: {schema.safe(record.missing[section])}")
    for finding in record.verdict.findings if record.verdict else ():
        lines.append(f"- {finding.level}: {schema.safe(finding.message)}")
    return "\n\n".join(lines)


def _common_tags(
    record: RunRecord | CeilingsRecord | ProfileRecord, environment: Environment | None
) -> dict[str, str]:
    found = {
        schema.KIND: record.kind,
        schema.RECORD_ID: record.record_id,
        schema.OUTCOME: record.outcome,
    }
    if record.reason is not None:
        found[schema.REASON] = record.reason[: schema.TAG_CHARACTERS]
    if environment is not None:
        found |= {
            schema.ENV: environment.label,
            schema.ENVIRONMENT_ID: environment_id(environment),
            schema.DEVICE: environment.device.name,
        }
        if environment.git_commit is not None:
            found["mlflow.source.git.commit"] = environment.git_commit
    return found


def _text(value: Any) -> str:
    """As MLproject and the command line spell it: lower-case true and false, plain numbers."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else json.dumps(value)
