"""Tracked runs: as a table by MLflow's own search, and as records, fetched once and then cached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from analysis.roofs.peaks import Peaks
from analysis.runs.imported import imported_run
from analysis.runs.placed import place
from analysis.runs.run import Run
from analysis.runs.tracked.record_set import RecordSet
from bench.records import ImportedRecord, RunRecord, TraceRecord
from tracking import schema
from tracking.schema import CEILINGS_FILTER, PROFILES_FILTER, runs_filter

if TYPE_CHECKING:
    import pandas as pd

    from tracking.reading.run_columns import RunColumns, TrackedRun


def pull_records(
    filter_string: str = "",
    *,
    experiments: Sequence[str] | None = None,
    campaign: str | None = None,
    tracking_uri: str | None = None,
    refresh: bool = False,
    traces: bool = False,
    watch: Callable[[Sequence[TrackedRun]], Iterable[TrackedRun]] = iter,
) -> RecordSet:
    """Fetch the measurements and imported results that match, their profiles, and all ceilings.

    With `traces`, the traces that match too, and the profiles that match but explain none of them.

    Ceilings and profiles are looked for in all experiments: a machine's roof is the same in each,
    and a profile belongs to a configuration. A run whose record cannot be read is named in
    `unreadable`, and the others are used. `refresh` is as in `pull_runs`; `watch` wraps the runs
    while their records come in. Raises `UserError` or `TrackingError` if the search itself fails.
    """
    from tracking.reading.incremental import KeptSearch  # takes MLflow along
    from tracking.reading.tracked_runs import download_records

    search = KeptSearch(tracking_uri, refresh=refresh)
    kinds = ("measurement", "imported", *(("trace", "profile") if traces else ()))
    wanted, imported, *traced = (
        search.runs(runs_filter(filter_string, campaign, kind=kind), experiments) for kind in kinds
    )
    found = RecordSet()
    if not wanted and not imported and not any(traced):
        return found
    profiles = _of_runs(wanted, search.runs(PROFILES_FILTER)) if wanted else []
    others = (*chain.from_iterable(traced), *search.runs(CEILINGS_FILTER), *profiles)
    runs = list({run.run_id: run for run in (*wanted, *imported, *others)}.values())
    records = download_records(runs, tracking_uri)
    for run, record in zip(watch(runs), records, strict=True):
        if isinstance(record, Exception):
            found.unreadable.append(f"{run.name} ({run.run_id}): {record}")
        elif record.record_id not in found.run_ids:  # uploaded twice: one measurement
            found.run_ids[record.record_id] = run.run_id
            found.add(record)
    return found


#: By what a profile may belong to a measurement; its record decides.
_LINKS = ((schema.STEP_ID,) * 2, (schema.CONFIG_ID,) * 2,
          (schema.TIMED_RECORD_ID, schema.RECORD_ID))  # fmt: skip


def _of_runs(measured: Iterable[TrackedRun], profiles: Iterable[TrackedRun]) -> list[TrackedRun]:
    """Those of `profiles` that may explain one of the measured runs."""
    runs = list(measured)
    known = {ours: {run.tags.get(theirs) for run in runs} - {None} for ours, theirs in _LINKS}
    return [run for run in profiles if any(run.tags.get(tag) in known[tag] for tag in known)]


def pull_runs(
    filter_string: str = "",
    *,
    experiments: Sequence[str] | None = None,
    campaign: str | None = None,
    tracking_uri: str | None = None,
    refresh: bool = False,
    roofs: bool = False,
    peaks: Sequence[Peaks] = (),
    watch: Callable[[Sequence[TrackedRun]], Iterable[TrackedRun]] = iter,
) -> pd.DataFrame:
    """Return one row per tracked or imported measurement, or trace, that matches, newest first.

    `docs/analysis.md` lists the columns. Those of a profile are of the newest that explains the
    run, in whatever experiment. `filter_string` is MLflow's (`params.arch = 'resnet50' and
    metrics.attained_gflops > 100`); `experiments` are names, all by default; `tracking_uri` is
    MLflow's own default if not given. Of a large selection only what is new since the last pull is
    read, unless `refresh`; runs that were renamed or tagged by hand since show only then. `roofs`
    adds where each run stands under its roof, for which the records of all of them and of the
    ceilings are fetched; `peaks` are datasheet figures of a user's own for those roofs; `watch`
    wraps the runs while these records come in. An empty table has the same columns. Raises
    `UserError` for an unknown experiment or a folder without a store, and `TrackingError` for what
    the server refuses, a malformed filter too.
    """
    # Pandas and MLflow take a second to import, which the rest of the package does without.
    from analysis.runs.tracked.run_table import runs_table

    chosen = _Chosen.search(filter_string, experiments, campaign, tracking_uri, refresh=refresh)
    places = chosen.places(peaks, watch) if roofs else None
    return runs_table(chosen.runs, chosen.profiles, places)


def pull_points(
    filter_string: str = "",
    *,
    experiments: Sequence[str] | None = None,
    campaign: str | None = None,
    tracking_uri: str | None = None,
    refresh: bool = False,
    peaks: Sequence[Peaks] = (),
    watch: Callable[[Sequence[TrackedRun]], Iterable[TrackedRun]] = iter,
) -> pd.DataFrame:
    """Return one row per tracked run that has a place under its roof, newest first.

    The columns are those of `pull_runs(roofs=True)`, with intensity and GFLOP/s as they were
    placed; `docs/analysis.md` lists them. `plot_roofline` draws the table, also after rows were
    chosen from it. The arguments, and what is raised, are those of `pull_runs`; its column
    `not_placed` says why a run has no row here.
    """
    from analysis.runs.tracked.point_table import points_table

    chosen = _Chosen.search(filter_string, experiments, campaign, tracking_uri, refresh=refresh)
    return points_table(chosen.runs, chosen.profiles, chosen.places(peaks, watch))


@dataclass(frozen=True)
class _Chosen:
    """The tracked runs of a selection, newest first, and what explains them on their server."""

    runs: RunColumns
    profiles: list[TrackedRun]
    ceilings: Callable[[], list[TrackedRun]]
    tracking_uri: str | None

    @classmethod
    def search(
        cls,
        filter_string: str,
        experiments: Sequence[str] | None,
        campaign: str | None,
        tracking_uri: str | None,
        *,
        refresh: bool,
    ) -> _Chosen:
        from tracking.reading.incremental import KeptSearch
        from tracking.reading.run_columns import RunColumns

        search = KeptSearch(tracking_uri, refresh=refresh)
        kinds = [
            search.columns(runs_filter(filter_string, campaign, kind=kind), experiments)
            for kind in ("measurement", "imported", "trace")
        ]
        runs = RunColumns.joined(kinds)
        if len(runs) > max(map(len, kinds)):
            runs = runs.newest_first()
        profiles = search.runs(PROFILES_FILTER) if len(runs) else []
        return cls(runs, profiles, partial(search.runs, CEILINGS_FILTER), tracking_uri)

    def places(
        self,
        peaks: Sequence[Peaks],
        watch: Callable[[Sequence[TrackedRun]], Iterable[TrackedRun]],
    ) -> dict[str, Run | str]:
        """Place each run, or say why it has no place."""
        others: list[TrackedRun] = []
        runs = list(self.runs)
        if runs:
            others = [*self.ceilings(), *_of_runs(runs, self.profiles)]
        return _places(runs, others, peaks, watch, self.tracking_uri)


def _places(
    runs: Sequence[TrackedRun],
    others: Sequence[TrackedRun],
    peaks: Sequence[Peaks],
    watch: Callable[[Sequence[TrackedRun]], Iterable[TrackedRun]],
    tracking_uri: str | None,
) -> dict[str, Run | str]:
    """Place each run under its roof, or say why it has none; `others` hold roofs and profiles."""
    from tracking.reading.tracked_runs import download_records

    asked = [*others, *runs]
    fetched = download_records(asked, tracking_uri)
    records = {run.run_id: record for run, record in zip(watch(asked), fetched, strict=True)}
    known = RecordSet.of(
        one for one in records.values() if not isinstance(one, Exception)
    ).with_unique_labels()
    labelled = {one.record_id: one for one in known.measurements}
    unread = [one for run in others if isinstance(one := records[run.run_id], Exception)]
    note = f"; of roofs and profiles {len(unread)} cannot be read: {unread[0]}" if unread else ""
    places: dict[str, Run | str] = {}
    for run in runs:
        record = records[run.run_id]
        if isinstance(record, RunRecord):
            own = labelled[record.record_id]
            placed = place(own, known.ceilings, known.profiles, run_id=run.run_id, peaks=peaks)
            refusal = placed.refusal and f"{placed.refusal}{note}"
            places[run.run_id] = replace(placed, refusal=refusal)
        elif isinstance(record, ImportedRecord):
            places[run.run_id] = imported_run(record, known.ceilings, peaks, run_id=run.run_id)
        elif isinstance(record, TraceRecord):
            places[run.run_id] = "a trace: mlproject trace places its ops"
        else:
            places[run.run_id] = f"no record: {record}"
    return places
