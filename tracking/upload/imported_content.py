"""What another program's result becomes on the server: our names, and where it comes from."""

from __future__ import annotations

import re

from bench.records import ImportedRecord
from tracking import schema

#: The file's own columns, below this; the record artifact holds all of them.
_PREFIX = "imported."
_MOST_EXTRA = 60
_KEY_CHARACTERS = 200


def imported_content(record: ImportedRecord) -> schema.Content:
    """Return the params, tags and metrics of an imported result."""
    return schema.Content(_params(record), _tags(record), _metrics(record), "FINISHED")


def run_name(record: ImportedRecord) -> str:
    """Return the name of its run, in the form of a measured one."""
    env, precision = record.env or "unknown", record.precision or "unknown"
    name = f"{env}_{record.arch}_{precision}_bs{record.batch_size or '-unknown'}"
    return name if record.repeat is None else f"{name}_run{record.repeat}"


def _params(record: ImportedRecord) -> dict[str, str]:
    known = {
        "arch": record.arch,
        "backend": record.backend,
        "precision": record.precision,
        "batch_size": record.batch_size,
        "repeat": record.repeat,
        "env": record.env,
        "campaign": record.campaign,
    }
    return record.params | {name: str(fact) for name, fact in known.items() if fact is not None}


def _tags(record: ImportedRecord) -> dict[str, str]:
    known = {
        schema.KIND: record.kind,
        schema.RECORD_ID: record.record_id,
        schema.OUTCOME: "ok",
        schema.CAMPAIGN: record.campaign,
        schema.IMPORTED: "true",
        schema.SOURCE_FILE: record.source_file,
        schema.SOURCE_SHA256: record.source_sha256,
        schema.SOURCE_FORMAT: record.source_format,
        schema.SOURCE_LINE: record.source_line,
        schema.ENV: record.env,
        schema.DEVICE: record.device,
        schema.RUN_NAME: run_name(record),
        schema.NOTE: _note(record),
    }
    tags = {name: str(fact) for name, fact in known.items() if fact is not None}
    return _extra(record) | {name: text[: schema.TAG_CHARACTERS] for name, text in tags.items()}


def _extra(record: ImportedRecord) -> dict[str, str]:
    """The columns that mean nothing to us, as tags; a server's keys hold few characters."""
    tags: dict[str, str] = {}
    for column, text in list(record.extra.items())[:_MOST_EXTRA]:
        key = _PREFIX + re.sub(r"[^A-Za-z0-9_.-]+", "_", column)[:_KEY_CHARACTERS]
        while key in tags:
            key += "_"
        tags[key] = text[: schema.TAG_CHARACTERS]
    return tags


def _metrics(record: ImportedRecord) -> list[schema.Point]:
    at_s = record.created.timestamp()
    found = dict(record.metrics)
    if record.throughput_images_per_s is not None:
        found["throughput_images_per_s"] = record.throughput_images_per_s
    if record.batch_size is not None:
        found["batch_size"] = record.batch_size
    points = [schema.Point(name, value, 0, at_s) for name, value in found.items()]
    for step, seconds in enumerate(record.iteration_times_s or ()):
        at_s += seconds
        points.append(schema.Point(schema.ITERATION_TIME_MS, seconds * 1e3, step, at_s))
    return points


def _note(record: ImportedRecord) -> str:
    where = schema.safe(record.source_file)
    if record.source_line is not None:
        where += f", line {record.source_line}"
    lines = [f"**{schema.safe(run_name(record))}**: imported from {where}, not measured here"]
    if record.throughput_images_per_s is not None:
        lines.append(f"{record.throughput_images_per_s:.4g} images/s")
    return "\n\n".join(lines)
