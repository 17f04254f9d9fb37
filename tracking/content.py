"""What each kind of record becomes on the server: params, tags, metrics and a status."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from bench.config import arch_label
from bench.records import (
    CeilingsRecord,
    Environment,
    ImportedRecord,
    ProfileRecord,
    RunRecord,
    TraceRecord,
    findings_text,
)
from bench.records.environment import environment_id
from bench.records.folders import AnyRecord
from bench.records.metrics import imported_summary, profile_summary, summary, trace_summary
from bench.records.step_settings import stated, step_id
from bench.statistics.steady_state import window_class
from tracking import schema

_OfConfig: TypeAlias = RunRecord | ProfileRecord
_OfFile: TypeAlias = ImportedRecord | TraceRecord
#: The columns of an imported file, below this; the record artifact holds all of them.
_IMPORTED = "imported."
_MOST_EXTRA = 60
_KEY_CHARACTERS = 200
#: What a run's description shows of its metrics.
_HEADLINES = re.compile(
    r"throughput_\w+_per_s|iteration_time_ms_p50|iterations|loader_images_per_s|attained_gflops|"
    r"intensity_(min|max)"
)


def content_of(record: AnyRecord, beside: schema.Addition | None = None) -> schema.Content:
    """Return the params, tags, metrics and status that a record becomes on the server.

    `beside` is what its run carries besides.
    """
    content = _content_of(record)
    points = [point for point in content.metrics if point.key not in content.params]
    tags = content.tags | {schema.FIGURES: figures_digest(last_values(points), content.tags)}
    if beside is not None:
        points += _summary_points(record, beside.metrics)
        tags |= beside.tags
    return replace(content, tags=tags, metrics=points)


def last_values(points: Iterable[schema.Point]) -> dict[str, float]:
    """Return the last value of each metric, which is what a search on a server returns."""
    return {point.key: point.value for point in points}


def figures_digest(metrics: Mapping[str, float], tags: Mapping[str, str]) -> str:
    """Return 32 hex digits of what a record gives its run: last values of metrics, and our tags.

    The same for a record's content and for its run, whatever is logged to the run beside the
    record. Series and what readers may change are left out.
    """
    series = (schema.TELEMETRY_PREFIX, *schema.METRICS_BESIDE_RECORD)
    own = {
        name: f"{value:.9g}"
        for name, value in metrics.items()
        if name != schema.ITERATION_TIME_MS and not name.startswith(series)
    }
    known = schema.BESIDE_RECORD | {schema.FIGURES}
    own |= {
        name: text
        for name, text in tags.items()
        if name.startswith("mlproject.") and name not in known
    }
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:32]


def _content_of(record: AnyRecord) -> schema.Content:
    figures, name = _figures(record), _name(record)
    status = schema.STATUS[getattr(record, "outcome", "ok")]
    tags = _tags(record, name) | _known_tags({schema.NOTE: _note(record, name, figures)})
    params: dict[str, str] = {}
    if isinstance(record, RunRecord | ProfileRecord):
        params = _params(record)
    elif isinstance(record, ImportedRecord):
        names = ("arch", "backend", "precision", "batch_size", "repeat", "env", "campaign")
        params, tags = record.params | _stated(record, *names), _extra(record) | tags
    elif isinstance(record, TraceRecord):
        params = _stated(record, "arch", "batch_size", "precision", "env", "campaign")
    return schema.Content(params, tags, _points(record, figures), status)


def _figures(record: AnyRecord) -> dict[str, float]:
    if isinstance(record, ImportedRecord):
        return imported_summary(record)
    if isinstance(record, TraceRecord):
        return trace_summary(record)
    if isinstance(record, CeilingsRecord):
        return _roofs(record)
    return profile_summary(record) if isinstance(record, ProfileRecord) else summary(record)


def _stated(record: _OfFile, *names: str) -> dict[str, str]:
    return {name: f"{fact}" for name in names if (fact := getattr(record, name)) is not None}


def end_ms(record: AnyRecord) -> int:
    """Return when the run ended: its start where no duration is known, never the upload's time."""
    ended = record.ended if isinstance(record, ProfileRecord | CeilingsRecord) else None
    known = record.process if isinstance(record, RunRecord) else None
    known_s = known.real_s if known else 0.0
    return int(((ended or record.created).timestamp() + known_s) * 1000)


def _name(record: AnyRecord) -> str:
    """Return `{env}_{arch}_{precision}_bs{batch}_run{n}` of a run, the like of others."""
    if isinstance(record, TraceRecord):
        return f"trace_{record.source_file}"
    if isinstance(record, ImportedRecord):
        env, precision = record.env or "unknown", record.precision or "unknown"
        name = f"{env}_{record.arch}_{precision}_bs{record.batch_size or '-unknown'}"
        return name if record.repeat is None else f"{name}_run{record.repeat}"
    label = record.environment.label if record.environment else None
    if isinstance(record, CeilingsRecord):
        return f"{label or 'unknown'}_ceilings"
    config = record.config
    batch = record.resolved.batch_size if record.resolved else config.batch_size
    name = f"{label or config.env}_{arch_label(config.arch)}_{config.precision}_bs{batch}"
    profile = "_profile" if isinstance(record, ProfileRecord) else ""
    return f"{name}_run{config.repeat}{profile}"


def _params(record: _OfConfig) -> dict[str, str]:
    """Every known field of the configuration as given, and as `resolved_<field>`."""
    given = {name: _text(value) for name, value in stated(record).items()}
    if isinstance(record, RunRecord):
        given |= {f"script_{name}": text for name, text in record.script.items()}
    if record.resolved is None:
        return given
    resolved = record.resolved.model_dump()
    return given | {f"resolved_{name}": _text(value) for name, value in resolved.items()}


def _text(value: Any) -> str:
    """As MLproject and the command line spell it: lower-case true and false, plain numbers."""
    return value if isinstance(value, str) else json.dumps(value)


def _tags(record: AnyRecord, name: str) -> dict[str, str]:
    """What runs are found and filed by."""
    verdict = None if isinstance(record, TraceRecord) else record.verdict
    tags: dict[str, Any] = {
        schema.KIND: record.kind,
        schema.RECORD_ID: record.record_id,
        schema.OUTCOME: getattr(record, "outcome", "ok"),
        schema.RUN_NAME: name,
    }
    if isinstance(record, _OfFile):
        tags |= {
            schema.CAMPAIGN: record.campaign,
            schema.SOURCE_FILE: record.source_file,
            schema.SOURCE_SHA256: record.source_sha256,
            schema.ENV: record.env,
            schema.DEVICE: record.device,
        }
        if isinstance(record, TraceRecord):
            return _known_tags(tags | {schema.FINDINGS: "; ".join(record.findings)})
        tags |= {
            schema.IMPORTED: "true",
            schema.SOURCE_FORMAT: record.source_format,
            schema.SOURCE_LINE: record.source_line,
            # A clean verdict says that a run was judged, and only its stated FLOP/s were.
            schema.VERDICT: verdict.level if verdict and verdict.level != "clean" else None,
            schema.FINDINGS: findings_text(verdict.findings) if verdict else None,
        }
        return _known_tags(tags)
    tags[schema.REASON] = record.reason
    if (environment := record.environment) is not None:
        tags |= {
            schema.ENV: environment.label,
            schema.ENVIRONMENT_ID: environment_id(environment),
            schema.DEVICE: environment.device.name,
            schema.GIT_COMMIT: environment.git_commit,
            **_machine_tags(environment),
        }
        if (code := environment.model_code) is not None:
            tags |= {schema.CODE: code.digest, schema.CODE_COMMIT: code.commit}
    if not isinstance(record, CeilingsRecord):
        tags |= {
            schema.CONFIG_ID: record.config_id,
            schema.STEP_ID: step_id(record),
            schema.CAMPAIGN: record.config.campaign,
            schema.VERDICT: verdict.level if verdict else None,
            schema.FINDINGS: findings_text(verdict.findings) if verdict else None,
        }
    if isinstance(record, ProfileRecord):
        tags[schema.TIMED_RECORD_ID] = record.timed_record_id
    elif isinstance(record, RunRecord) and record.measurement is not None:
        tags[schema.ENDED_EARLY] = record.measurement.ended_early
        tags[schema.WARMUP_ENDED_EARLY] = record.measurement.warmup_ended_early
        tags[schema.WINDOW_CLASS] = window_class(record.measurement.iteration_times_s).kind
    return _known_tags(tags)


def _machine_tags(environment: Environment) -> dict[str, str | None]:
    """What of the machine and its software people filter and group runs by."""
    device = environment.device
    memory_bytes = device.memory_bytes
    facts = {name: getattr(environment, name, None) for name in schema.MACHINE_FACTS} | {
        "driver": device.driver,
        "device_memory_gb": None if memory_bytes is None else f"{memory_bytes / 1e9:.4g}",
        "cloud": environment.cloud_provider,
        "machine_type": environment.cloud_machine_type,
        "zone": environment.cloud_zone,
    }
    return {f"mlproject.{name}": fact for name, fact in facts.items()}


def _summary_points(record: AnyRecord, metrics: dict[str, float]) -> list[schema.Point]:
    at_s = record.created.timestamp()
    return [schema.Point(key, value, 0, at_s) for key, value in metrics.items()]


def _iteration_points(start_unix_s: float, times_s: tuple[float, ...]) -> list[schema.Point]:
    points, elapsed_s = [], 0.0
    for step, seconds in enumerate(times_s):
        elapsed_s += seconds
        at_s = start_unix_s + elapsed_s
        points.append(schema.Point(schema.ITERATION_TIME_MS, seconds * 1e3, step, at_s))
    return points


def _points(record: AnyRecord, figures: dict[str, float]) -> list[schema.Point]:
    """The summary, one point per iteration, and the telemetry series."""
    points, at_s = _summary_points(record, figures), record.created.timestamp()
    if isinstance(record, ImportedRecord):
        return points + _iteration_points(at_s, record.iteration_times_s or ())
    if not isinstance(record, RunRecord):
        return points
    if record.measurement is not None:
        at_s = record.measurement.window_start_unix_s
        points += _iteration_points(at_s, record.measurement.iteration_times_s)
    for series in record.telemetry.series if record.telemetry else ():
        points += [
            schema.Point(schema.TELEMETRY_PREFIX + series.name, value, step, at_s + time_s)
            for step, (time_s, value) in enumerate(zip(series.times_s, series.values, strict=True))
        ]
    return points


def _roofs(record: CeilingsRecord) -> dict[str, float]:
    """The roofs as metrics, such as `peak_gflops_fp32` and `peak_gb_per_s`."""
    roofs: dict[str, float] = {}
    for ceiling in record.ceilings:
        if ceiling.peak_flops_per_s is not None:
            roofs[f"peak_gflops_{ceiling.math_mode}"] = ceiling.peak_flops_per_s / 1e9
        if ceiling.peak_bytes_per_s is not None:
            roofs["peak_gb_per_s"] = ceiling.peak_bytes_per_s / 1e9
    if link := record.all_reduces:
        roofs["all_reduce_gb_per_s"] = max(one.bus_bytes_per_s for one in link) / 1e9
        roofs["all_reduce_latency_us"] = 1e6 * link[0].time_s
    return roofs


def _note(record: AnyRecord, name: str, figures: Mapping[str, float]) -> str:
    """What MLflow's UI shows as a run's description (Markdown): figures, then what they mean."""
    lines: list[str] = []
    if isinstance(record, TraceRecord):
        what, device = f"a trace, bound by {record.bound}", record.device
        lines += (*record.findings, *record.advice)
    elif isinstance(record, ImportedRecord):
        line = "" if record.source_line is None else f", line {record.source_line}"
        what, device = f"imported from {record.source_file}{line}, not measured here", record.device
        if record.complexity is not None:
            lines = ["FLOP and bytes are modelled, of a training step of its model"]
            lines += [f"assumed: {assumption}" for assumption in record.assumed]
    else:
        what = record.outcome
        device = record.environment.device.name if record.environment else None
        lines += [f"reason: {record.reason}"] if record.reason else []
        findings = record.verdict.findings if record.verdict else ()
        lines += [f"{finding.level}: {finding.sentence}" for finding in findings]
    whole = isinstance(record, ProfileRecord | CeilingsRecord)
    shown = {n: value for n, value in figures.items() if whole or _HEADLINES.fullmatch(n)}
    if isinstance(record, ProfileRecord):
        sections = ("ops", "counters", "cpu_counters")
        lines += [f"no {s}: {record.missing[s]}" for s in sections if s in record.missing]
    texts = [*(f"{n}: {value:.4g}" for n, value in shown.items()), *map(schema.safe, lines)]
    about = f"**{schema.safe(name)}** on {schema.safe(device or 'an unknown device')}"
    return "\n\n".join([f"{about}: {schema.safe(what)}", *(f"- {text}" for text in texts)])


def _known_tags(tags: dict[str, Any]) -> dict[str, str]:
    """Return the tags that are there, none longer than a server keeps it."""
    return {
        name: str(text)[: schema.TAG_CHARACTERS] for name, text in tags.items() if text is not None
    }


def _extra(record: ImportedRecord) -> dict[str, str]:
    """The columns that mean nothing to us, as tags; a server's keys hold few characters."""
    tags: dict[str, str] = {}
    for column, text in list(record.extra.items())[:_MOST_EXTRA]:
        key = _IMPORTED + re.sub(r"[^A-Za-z0-9_.-]+", "_", column)[:_KEY_CHARACTERS]
        while key in tags:
            key += "_"
        tags[key] = text[: schema.TAG_CHARACTERS]
    return tags
