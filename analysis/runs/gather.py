"""Records from a tracking server: each run's whole record, fetched once and then cached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from analysis.runs.filters import (
    CEILINGS_FILTER,
    PROFILES_FILTER,
    imported_filter,
    measurement_filter,
)
from analysis.runs.machines import Labels
from analysis.runs.observations import Observation, observe_imported, observe_result
from analysis.runs.results import run_results
from bench.records import CeilingsRecord, ProfileRecord, RunRecord
from tracking import schema

if TYPE_CHECKING:
    from tracking.reading.search import TrackedRun


@dataclass(frozen=True)
class Gathered:
    """Records by kind, the tracked runs that hold them, and what could not be read."""

    measurements: list[RunRecord] = field(default_factory=list)
    ceilings: list[CeilingsRecord] = field(default_factory=list)
    profiles: list[ProfileRecord] = field(default_factory=list)
    run_ids: dict[str, str] = field(default_factory=dict)  # record id -> run id
    unreadable: list[str] = field(default_factory=list)
    imported: list[Observation] = field(default_factory=list)  # runs that no record is of

    def told_apart(self, *beside: Gathered) -> Gathered:
        """Return the same with `(1)`, `(2)` after a label that machines of several kinds carry.

        The machines of `beside` are counted with them: what is compared has one numbering.
        """
        labels = Labels(chain.from_iterable(one.records() for one in (self, *beside)))
        return replace(
            self,
            measurements=[labels.on(record) for record in self.measurements],
            ceilings=[labels.on(record) for record in self.ceilings],
            profiles=[labels.on(record) for record in self.profiles],
        )

    def records(self) -> list[RunRecord | CeilingsRecord | ProfileRecord]:
        """Return all records, of whatever kind."""
        return [*self.measurements, *self.ceilings, *self.profiles]

    def observations(self) -> list[Observation]:
        """Return every measurement as comparisons see it: recorded ones first, in report order."""
        results = run_results(self.measurements, self.ceilings, self.run_ids, self.profiles)
        return [*map(observe_result, results), *self.imported]


def gather_records(
    filter_string: str = "",
    *,
    experiments: Sequence[str] | None = None,
    campaign: str | None = None,
    tracking_uri: str | None = None,
    refresh: bool = False,
    watch: Callable[[Sequence[TrackedRun]], Iterable[TrackedRun]] = iter,
) -> Gathered:
    """Fetch the measurements that match, their profiles, and every measured ceiling of the server.

    Imported runs that match come as observations: they have no record of a measurement.

    Ceilings and profiles are looked for in all experiments: a machine's roof is the same in each,
    and a profile belongs to a configuration. A run whose record cannot be read is named in
    `unreadable`, and the others are used. Raises `UserError` or `TrackingError` if the search
    itself fails. `refresh` is as in `pull_runs`. `watch` wraps the runs while
    their records come in.
    """
    from tracking.reading.incremental import search_kept_runs  # takes MLflow along
    from tracking.reading.search import download_records

    def search(wanted: str, names: Sequence[str] | None = None) -> list[TrackedRun]:
        return search_kept_runs(
            wanted, experiments=names, tracking_uri=tracking_uri, refresh=refresh
        )

    wanted = search(measurement_filter(filter_string, campaign), experiments)
    imported = search(imported_filter(filter_string, campaign), experiments)
    gathered = Gathered(imported=sorted(map(observe_imported, imported), key=Observation.order))
    if not wanted:
        return gathered
    configurations = {run.tags.get(schema.CONFIG_ID) for run in wanted}
    profiles = [
        run for run in search(PROFILES_FILTER) if run.tags.get(schema.CONFIG_ID) in configurations
    ]
    runs = [*wanted, *search(CEILINGS_FILTER), *profiles]
    records = download_records(runs, tracking_uri)
    for run, record in zip(watch(runs), records, strict=True):
        if isinstance(record, Exception):
            gathered.unreadable.append(f"{run.name} ({run.run_id}): {record}")
        elif record.record_id not in gathered.run_ids:  # uploaded twice: one measurement
            gathered.run_ids[record.record_id] = run.run_id
            _sort_in(gathered, record)
    return gathered


def split_records(
    records: Sequence[RunRecord | CeilingsRecord | ProfileRecord], campaign: str | None = None
) -> Gathered:
    """Sort records from disk by kind; measurements and profiles of `campaign`, if given."""
    gathered = Gathered()
    for record in records:
        if isinstance(record, CeilingsRecord) or campaign in (None, record.config.campaign):
            _sort_in(gathered, record)
    return gathered


def _sort_in(gathered: Gathered, record: RunRecord | CeilingsRecord | ProfileRecord) -> None:
    if isinstance(record, RunRecord):
        gathered.measurements.append(record)
    elif isinstance(record, ProfileRecord):
        gathered.profiles.append(record)
    else:
        gathered.ceilings.append(record)
