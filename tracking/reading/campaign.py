"""A campaign on the tracking server: which of its runs and records are there."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import cast

from bench.config import RunConfig, parse_config
from bench.errors import UserError
from bench.records import CeilingsRecord, Outcome, RunRecord
from bench.records.folders import MeasuredRecord
from campaigns.sweep.past import PastRun
from tracking import schema
from tracking.reading.filters import runs_filter
from tracking.reading.tracked_runs import TrackedRun, download_record, search_runs


def campaign_runs(campaign: str) -> list[PastRun]:
    """Return the campaign's whole measurements on the server, oldest first, of every machine.

    Raises `TrackingError`.
    """
    wanted = f"tags.`{schema.CAMPAIGN}` = '{campaign}' AND tags.`{schema.UPLOADED}` = 'true'"
    found = [
        past
        for run in search_runs(f"{wanted} AND tags.`{schema.KIND}` = 'measurement'")
        if (past := _past_run(run)) is not None
    ]
    return sorted(found, key=lambda past: past.record_id)


def campaign_records(
    campaign: str, environment_id: str, known: Collection[str]
) -> Iterator[RunRecord]:
    """Yield the campaign's measurements on one environment, less those of the `known` record ids.

    Raises `TrackingError`.
    """
    conditions = {
        schema.UPLOADED: "true",
        schema.KIND: "measurement",
        schema.ENVIRONMENT_ID: environment_id,
    }
    wanted = " and ".join(f"tags.`{tag}` = '{value}'" for tag, value in conditions.items())
    for record in _records(runs_filter(wanted, campaign), known):
        if isinstance(record, RunRecord):
            yield record


def tracked_ceilings(known: Collection[str]) -> Iterator[CeilingsRecord]:
    """Yield every tracked measurement of roofs, less those of the `known` record ids.

    Raises `TrackingError`.
    """
    for record in _records(f"tags.`{schema.KIND}` = 'ceilings'", known):
        if isinstance(record, CeilingsRecord):
            yield record


def _records(filter_string: str, known: Collection[str]) -> Iterator[MeasuredRecord]:
    for run in search_runs(filter_string):
        if run.tags.get(schema.RECORD_ID) not in known:
            try:
                yield download_record(run.run_id)
            except UserError:  # of another version
                continue


def _past_run(run: TrackedRun) -> PastRun | None:
    """What a sweep needs to know of a run; None for one that another version wrote."""
    given = {name: run.params[name] for name in RunConfig.model_fields if name in run.params}
    try:
        config = parse_config(given)
    except UserError:
        return None
    if config.config_id != run.tags.get(schema.CONFIG_ID):
        return None
    outcome = run.tags.get(schema.OUTCOME)
    if outcome not in schema.STATUS:
        return None
    return PastRun(
        config=config,
        environment_id=run.tags.get(schema.ENVIRONMENT_ID),
        outcome=cast(Outcome, outcome),
        reason=run.tags.get(schema.REASON),
        record_id=run.tags[schema.RECORD_ID],
        device=run.tags.get(schema.DEVICE),
    )
