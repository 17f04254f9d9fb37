"""Tags of what other programs' files say: imported results, and traces."""

from __future__ import annotations

import re
from typing import Any

from bench.records import ImportedRecord, TraceRecord, findings_text
from tracking import schema

#: The columns of an imported file, below this; the record artifact holds all of them.
_IMPORTED = "imported."
_MOST_EXTRA = 60
_KEY_CHARACTERS = 200


def known_tags(tags: dict[str, Any]) -> dict[str, str]:
    """Return the tags that are there, none longer than a server keeps it."""
    return {
        name: str(text)[: schema.TAG_CHARACTERS] for name, text in tags.items() if text is not None
    }


def trace_tags(record: TraceRecord) -> dict[str, str]:
    """Return the tags of a trace: its file, what its steps are bound by, and the advice."""
    lines = [f"**{schema.safe(record.source_file)}**, a trace: bound by {record.bound}"]
    lines += [f"- {schema.safe(line)}" for line in (*record.findings, *record.advice)]
    known = {
        schema.KIND: record.kind,
        schema.RECORD_ID: record.record_id,
        schema.OUTCOME: "ok",
        schema.CAMPAIGN: record.campaign,
        schema.SOURCE_FILE: record.source_file,
        schema.SOURCE_SHA256: record.source_sha256,
        schema.ENV: record.env,
        schema.DEVICE: record.device,
        schema.FINDINGS: "; ".join(record.findings),
        schema.RUN_NAME: f"trace_{record.source_file}",
        schema.NOTE: "\n\n".join(lines),
    }
    return known_tags(known)


def imported_tags(record: ImportedRecord) -> dict[str, str]:
    """Return the tags of an imported result: its file and line, and the columns unknown here."""
    verdict = record.verdict
    env, precision = record.env or "unknown", record.precision or "unknown"
    name = f"{env}_{record.arch}_{precision}_bs{record.batch_size or '-unknown'}"
    if record.repeat is not None:
        name += f"_run{record.repeat}"
    where = schema.safe(record.source_file)
    if record.source_line is not None:
        where += f", line {record.source_line}"
    note = f"**{schema.safe(name)}**: imported from {where}, not measured here"
    if record.throughput_images_per_s is not None:
        note += f"\n\n{record.throughput_images_per_s:.4g} images/s"
    if record.complexity is not None:
        assumed = "".join(f"; assumed: {each}" for each in record.assumed)
        note += f"\n\nFLOP and bytes are modelled, of a training step of its model{assumed}"
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
        # A clean verdict says that a run was judged, and only its stated FLOP/s were.
        schema.VERDICT: verdict.level if verdict and verdict.level != "clean" else None,
        schema.FINDINGS: findings_text(verdict.findings) if verdict else None,
        schema.ENV: record.env,
        schema.DEVICE: record.device,
        schema.RUN_NAME: name,
        schema.NOTE: note,
    }
    return _extra(record) | known_tags(known)


def _extra(record: ImportedRecord) -> dict[str, str]:
    """The columns that mean nothing to us, as tags; a server's keys hold few characters."""
    tags: dict[str, str] = {}
    for column, text in list(record.extra.items())[:_MOST_EXTRA]:
        key = _IMPORTED + re.sub(r"[^A-Za-z0-9_.-]+", "_", column)[:_KEY_CHARACTERS]
        while key in tags:
            key += "_"
        tags[key] = text[: schema.TAG_CHARACTERS]
    return tags
