"""What each kind of record becomes on the server."""

from __future__ import annotations

from bench.records import CeilingsRecord, ImportedRecord, ProfileRecord, RunRecord
from bench.records.folders import AnyRecord
from tracking import schema
from tracking.upload.imported import imported_content


def content_of(record: AnyRecord) -> schema.Content:
    """Return the params, tags, metrics and status that a record becomes on the server."""
    if isinstance(record, ImportedRecord):
        return imported_content(record)
    status = schema.STATUS[record.outcome]
    if isinstance(record, CeilingsRecord):
        tags, points = schema.ceilings_tags(record), schema.ceilings_metrics(record)
        return schema.Content({}, tags, points, status)
    if isinstance(record, ProfileRecord):
        tags, points = schema.profile_tags(record), schema.profile_metrics(record)
        return schema.Content(schema.params(record), tags, points, status)
    return schema.Content(
        schema.params(record), schema.tags(record), schema.metrics(record), status
    )


def end_ms(record: AnyRecord) -> int:
    """Return when the run ended: its start where no duration is known, never the upload's time."""
    known = record.process if isinstance(record, RunRecord) else None
    return int((record.created.timestamp() + (known.real_s if known else 0.0)) * 1000)
