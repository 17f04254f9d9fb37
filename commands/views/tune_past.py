"""What a tuning finds before it starts: its campaign's trials, and the roofs of its device."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.errors import UserError
from bench.records import CeilingsRecord, Environment, RunRecord

if TYPE_CHECKING:
    from bench.records.folders import AnyRecord


def known_trials(
    records: Path, campaign: str, environment: Environment, *, tracked: bool
) -> list[RunRecord]:
    """Return the campaign's runs on this environment, from the folder and from the server."""
    from bench.machine.identity import environment_id
    from campaigns.tune.archive import campaign_records

    known = campaign_records(records, campaign, environment)
    if tracked:
        from tracking import schema
        from tracking.reading.search import runs_filter

        wanted = runs_filter(
            f"tags.`{schema.UPLOADED}` = 'true' and tags.`{schema.KIND}` = 'measurement' and "
            f"tags.`{schema.ENVIRONMENT_ID}` = '{environment_id(environment)}'",
            campaign,
        )
        here = {record.record_id for record in known}
        known += [each for each in _on_server(wanted, here) if isinstance(each, RunRecord)]
    return known


def known_ceilings(records: Path, *, tracked: bool) -> list[CeilingsRecord]:
    """Return every measured roof of the records folder and of the server."""
    from bench.records.folders import readable_records

    found = [record for _, record in readable_records(records)]
    if tracked:
        from tracking import schema

        here = {record.record_id for record in found}
        found += _on_server(f"tags.`{schema.KIND}` = 'ceilings'", here)
    return [record for record in found if isinstance(record, CeilingsRecord)]


def _on_server(filter_string: str, here: Collection[str]) -> list[AnyRecord]:
    """The records of the runs that match, less those that are `here` already."""
    from tracking import schema
    from tracking.reading.search import download_record, search_runs
    from tracking.store import TrackingError

    found: list[AnyRecord] = []
    try:
        for run in search_runs(filter_string):
            if run.tags.get(schema.RECORD_ID) in here:
                continue
            try:
                found.append(download_record(run.run_id))
            except UserError:  # of another version
                continue
    except TrackingError as error:
        click.echo(f"mlproject: the server was not asked ({error})", err=True)
    return found
