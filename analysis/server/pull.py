"""Records of all kinds, from folders or from tracked runs, and tracked runs as tables.

There is one road from the server: search, then records if they are wanted, then labels with their
numbers. Records are fetched once and then come from this user's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bench.config import Sample, cost_metric
from bench.errors import Unknown
from bench.records import (
    CeilingsRecord,
    Environment,
    ImportedRecord,
    ProfileRecord,
    RunRecord,
    TraceRecord,
)
from bench.records.environment import alike_devices
from bench.records.folders import (
    AnyRecord,
    RecordFolder,
    ceilings_of,
    read_all,
    record_folders,
)
from bench.records.metrics import PHASES
from tracking import schema
from tracking.schema import CEILINGS_FILTER, PROFILES_FILTER, runs_filter

if TYPE_CHECKING:
    import pandas as pd

    from analysis.roofs import Peaks
    from analysis.runs.groups import Runs
    from analysis.runs.run import Run
    from bench.records.folders import WholeRecord

#: Wraps the ids of runs while their records come in, to show how many there are still to come.
Watch = Callable[[Sequence[str]], Iterable[str]]
OfMachine = TypeVar("OfMachine", RunRecord, CeilingsRecord, ProfileRecord)
_OF_MACHINES = ("measurements", "ceilings", "profiles")
#: Parts of records that many runs have in common.
_SHARED = {"environment", "complexity", "resolved"}


@dataclass(frozen=True)
class RecordSet:
    """Records by kind, the tracked runs that hold them, and what could not be read."""

    measurements: list[RunRecord] = field(default_factory=list)
    ceilings: list[CeilingsRecord] = field(default_factory=list)
    profiles: list[ProfileRecord] = field(default_factory=list)
    run_ids: dict[str, str] = field(default_factory=dict)  # record id -> run id
    unreadable: list[str] = field(default_factory=list)
    imported: list[ImportedRecord] = field(default_factory=list)
    traces: list[TraceRecord] = field(default_factory=list)
    #: By record id, of what a server alone knows: who measured it, and who accepted its level.
    said: dict[str, dict[str, str | None]] = field(default_factory=dict)
    parts: dict[tuple[str, str], Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls, records: Iterable[WholeRecord | ImportedRecord], campaign: str | None = None
    ) -> RecordSet:
        """Sort records by kind: those of `campaign`, if given, with all ceilings.

        The profiles of its runs may be of another campaign.
        """
        from analysis.profiles import explains

        found = cls()
        for record in sorted(records, key=lambda one: isinstance(one, ProfileRecord)):
            explaining = isinstance(record, ProfileRecord) and any(
                explains(record, run) for run in found.measurements
            )
            filed = record.config if isinstance(record, RunRecord | ProfileRecord) else record
            # ceilings are of a machine and of no campaign
            if explaining or campaign in (None, getattr(filed, "campaign", campaign)):
                found.add(record)
        return found

    @classmethod
    def read(cls, folders: Iterable[Path], campaign: str | None = None) -> RecordSet:
        """Return the records of these folders, as `of` does; raises `UserError` for no folder."""
        records, unreadable = read_all(folders)
        return replace(cls.of(records, campaign), unreadable=unreadable)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report: ceilings alone are of no run."""
        return not (self.measurements or self.imported or self.traces or self.profiles)

    def add(self, record: WholeRecord | ImportedRecord) -> None:
        """Add a record to those of its kind; a part that equals an earlier one's becomes that one.

        Thousands of runs of a few machines then take half of the memory.
        """
        parts = {name: getattr(record, name, None) for name in _SHARED}
        shared = {
            name: self.parts.setdefault((name, part.model_dump_json()), part)
            for name, part in parts.items()
            if part is not None
        }
        record = record.model_copy(update=shared)
        fields = {"measurement": "measurements", "profile": "profiles", "trace": "traces"}
        getattr(self, fields.get(record.kind, record.kind)).append(record)

    def with_unique_labels(self, *others: RecordSet) -> RecordSet:
        """Return the same with `(1)`, `(2)` after a label that machines of several kinds carry.

        The machines of `others` are counted too: what is compared has one numbering. Cloud machines
        of one type are one kind. Kinds are numbered by age.
        """
        records = [
            record
            for one in (self, *others)
            for name in _OF_MACHINES
            for record in getattr(one, name)
            if record.environment is not None
        ]
        kinds: dict[str, list[Environment]] = {}
        for record in sorted(records, key=lambda one: (one.created, one.record_id)):
            known = kinds.setdefault(record.environment.label, [])
            if not any(alike_devices(kind, record.environment) for kind in known):
                known.append(record.environment)
        own: dict[str, Any] = {
            name: [_numbered(one, kinds) for one in getattr(self, name)] for name in _OF_MACHINES
        }
        return replace(self, **own)

    def runs(self, peaks: Sequence[Peaks] = ()) -> Runs:
        """Place every measurement, in report order, then every imported result.

        Machines of several kinds under one label have a number. `peaks` are a user's own figures.
        """
        from analysis.runs.place import place_runs

        own = self.with_unique_labels()
        return place_runs(
            [*own.measurements, *own.imported],
            own.ceilings,
            own.profiles,
            run_ids=self.run_ids,
            peaks=peaks,
            said=self.said,
            unplaced=self.unreadable,
        )

    def frame(self, peaks: Sequence[Peaks] = ()) -> pd.DataFrame:
        """Return the table that `pull_runs(roofs=True)` gives of such runs, with no server."""
        from analysis.server.frame import tracked_frame
        from tracking.tracked_runs import as_tracked, runs_table

        runs, ids = self.runs(peaks), self.run_ids
        held = runs_table(as_tracked(run.source, run.run_id) for run in runs if run.source)
        profiles = runs_table(as_tracked(one, ids.get(one.record_id)) for one in self.profiles)
        return tracked_frame(held, profiles, {run.name: run for run in runs})


def _numbered(record: OfMachine, kinds: Mapping[str, Sequence[Environment]]) -> OfMachine:
    """The record with its kind's number after the label, where several kinds have that label."""
    environment = record.environment
    if environment is None or len(of_label := kinds[environment.label]) == 1:
        return record
    number = next(n for n, kind in enumerate(of_label, 1) if alike_devices(kind, environment))
    own = environment.model_copy(update={"label": f"{environment.label} ({number})"})
    return record.model_copy(update={"environment": own})


def pull_records(
    filter_string: str = "",
    *,
    experiments: Sequence[str] | None = None,
    campaign: str | None = None,
    tracking_uri: str | None = None,
    refresh: bool = False,
    traces: bool = False,
    watch: Watch = iter,
) -> RecordSet:
    """Fetch the measurements and imported results that match, their profiles, and all ceilings.

    With `traces`, the traces that match too, and the profiles that match but explain none of them.
    Ceilings and profiles are looked for in all experiments: a machine's roof is the same in each,
    and a profile belongs to a configuration. A run whose record cannot be read is named in
    `unreadable`. `refresh`, `watch` and what is raised are as in `pull_runs`.
    """
    kinds = ("measurement", "imported", *(("trace", "profile") if traces else ()))
    asked = (filter_string, experiments, campaign, tracking_uri)
    return Pulled.search(kinds, *asked, refresh=refresh, watch=watch).records


def pull_runs(
    filter_string: str = "",
    *,
    experiments: Sequence[str] | None = None,
    campaign: str | None = None,
    tracking_uri: str | None = None,
    refresh: bool = False,
    roofs: bool = False,
    peaks: Sequence[Peaks] = (),
    watch: Watch = iter,
) -> pd.DataFrame:
    """Return one row per tracked or imported measurement, or trace, that matches, newest first.

    `docs/report.md` lists the columns. Those of a profile are of the newest that explains the
    run, in whatever experiment. `filter_string` is MLflow's (`params.arch = 'resnet50' and
    metrics.attained_gflops > 100`); `experiments` are names, all by default; `tracking_uri` is
    MLflow's own default if not given. Of a large selection only what is new since the last pull is
    read, unless `refresh`; runs that were renamed or tagged by hand since show only then. `roofs`
    adds where each run stands under its roof, for which all records are fetched; `peaks` are
    datasheet figures of a user's own for those roofs; `watch` wraps the runs while their records
    come in. An empty table has the same columns. Raises `UserError` for an unknown experiment or a
    folder without a store, and `TrackingError` for what the server refuses.
    """
    from analysis.server.frame import tracked_frame

    asked = (filter_string, experiments, campaign, tracking_uri)
    kinds = ("measurement", "imported", "trace")
    found = Pulled.search(kinds, *asked, refresh=refresh, watch=watch if roofs else None)
    return tracked_frame(found.runs, found.profiles, found.placed(peaks) if roofs else None)


def pull_points(filter_string: str = "", **chosen: Any) -> pd.DataFrame:
    """Return the rows of `pull_runs(roofs=True)` that have a place under their roof, newest first.

    `plot_roofline` draws the table, also after rows were chosen from it. The arguments are those of
    `pull_runs`, whose column `not_placed` says why a run has no row here.
    """
    table = pull_runs(filter_string, roofs=True, **chosen)
    unplaced = table.index[table["not_placed"].notna()]
    placed: pd.DataFrame = table.drop(index=unplaced, columns="not_placed").reset_index(drop=True)
    return placed


@dataclass(frozen=True)
class Pulled:
    """Tracked runs of a selection, newest first, and the profiles of their server.

    `records` are those of the runs, of the profiles that may explain them and of all ceilings, if
    they were wanted. `record_ids` has the record's id by run id, or why there is no record.
    """

    runs: pd.DataFrame
    profiles: pd.DataFrame
    records: RecordSet = field(default_factory=RecordSet)
    record_ids: dict[str, str | Unknown] = field(default_factory=dict)

    @classmethod
    def search(
        cls,
        kinds: Sequence[str],
        filter_string: str,
        experiments: Sequence[str] | None,
        campaign: str | None,
        tracking_uri: str | None,
        *,
        refresh: bool,
        watch: Watch | None,
    ) -> Pulled:
        """Return the runs of these kinds that match, with their records if `watch` is given."""
        from tracking.connection import Server
        from tracking.tracked_runs import (
            download_records,
            joined,
            newest_first,
            plain,
            search_table,
        )

        server = Server(tracking_uri, must_exist=True)
        search = partial(search_table, server, refresh=refresh)
        of_kinds = [
            search(runs_filter(filter_string, campaign, kind=kind), experiments) for kind in kinds
        ]
        runs = newest_first(joined(of_kinds))
        profiles = search(PROFILES_FILTER) if len(of_kinds[0]) else runs.iloc[:0]
        pulled = cls(runs, profiles)
        if watch is None or not len(runs):
            return pulled
        explaining = profiles.loc[_may_explain(profiles, runs)]
        wanted = joined([runs, search(CEILINGS_FILTER), explaining]).drop_duplicates("run_id")
        records, said = pulled.records, (schema.USER, schema.ACCEPTED)
        columns = ("run_id", "name", *(f"tags.{tag}" for tag in said))
        told = zip(*(plain(wanted, column) for column in columns), strict=True)
        coming = download_records(wanted, tracking_uri)
        for run_id, (_, name, user, accepted), record in zip(
            watch(wanted["run_id"].tolist()), told, coming, strict=True
        ):
            if isinstance(record, Exception):
                pulled.record_ids[run_id] = Unknown(f"{record}")
                records.unreadable.append(f"{name} ({run_id}): {record}")
                continue
            pulled.record_ids[run_id] = record.record_id
            if record.record_id not in records.run_ids:  # uploaded twice: one measurement
                records.run_ids[record.record_id] = run_id
                records.said[record.record_id] = {"user": user, "accepted": accepted}
                records.add(record)
        return pulled

    def placed(self, peaks: Sequence[Peaks] = ()) -> dict[str, Run | Unknown]:
        """Return each run with its place, or why its record gives none, by run id."""
        known = {run.record_id: run for run in self.records.runs(peaks)}
        unread = {id_: why for id_, why in self.record_ids.items() if isinstance(why, Unknown)}
        others = [unread[run_id].reason for run_id in unread.keys() - set(self.runs["run_id"])]
        note = f"; of roofs and profiles {len(others)} cannot be read: " if others else ""
        note += "".join(sorted(others)[:1])
        found: dict[str, Run | Unknown] = {}
        for run_id in self.runs["run_id"]:
            run = known.get(f"{self.record_ids[run_id]}")
            if run_id in unread:
                found[run_id] = Unknown(f"no record: {unread[run_id].reason}")
            elif run is None:
                found[run_id] = Unknown("a trace: mlproject trace places its ops")
            elif run.record is None or run.point is not None:
                found[run_id] = run
            else:
                found[run_id] = replace(run, place=Unknown(f"{run.refusal}{note}"))
        return found


#: Tags by which a profile may belong to a measurement, and that one's; the records decide.
_LINKS = {
    schema.STEP_ID: schema.STEP_ID,
    schema.CONFIG_ID: schema.CONFIG_ID,
    schema.TIMED_RECORD_ID: schema.RECORD_ID,
}


def _may_explain(profiles: pd.DataFrame, runs: pd.DataFrame) -> list[bool]:
    """Whether each of `profiles` may explain one of the runs."""
    from tracking.tracked_runs import plain

    ours = [{*plain(runs, f"tags.{of}")} - {None} for of in _LINKS.values()]
    theirs = (plain(profiles, f"tags.{tag}") for tag in _LINKS)
    return [
        any(text in known for text, known in zip(texts, ours, strict=True))
        for texts in zip(*theirs, strict=True)
    ]


def pull_record(run_id: str, tracking_uri: str | None = None) -> WholeRecord:
    """Return the whole record of a tracked run, fetched once and then from this user's cache.

    Raises `UserError` where there is none of this version or no store, and `TrackingError`.
    """
    from tracking.tracked_runs import download_record

    return download_record(run_id, tracking_uri)


def pull_iterations(run_ids: Iterable[str], tracking_uri: str | None = None) -> pd.DataFrame:
    """Return one row per measured iteration of each run, in the order given.

    Columns: `run_id`, `iteration` (from 0), `iteration_time_ms`, `data_wait_ms`, and the times of
    the phases, `forward_time_ms` and so on, missing where they were not timed. A run without a
    measurement, such as a failed or an imported one, has no rows. Raises as `pull_record`.
    """
    import pandas as pd

    from tracking.tracked_runs import download_any

    rows: list[tuple[str | float, ...]] = []
    for run_id in run_ids:
        record = download_any(run_id, tracking_uri)
        if isinstance(record, RunRecord) and (measured := record.measurement) is not None:
            untimed = [math.nan] * len(measured.iteration_times_s)
            waits_s = untimed if measured.data_wait_s is None else measured.data_wait_s
            phases = [(measured.phase_times_s or {}).get(name, untimed) for name in PHASES]
            times = zip(measured.iteration_times_s, waits_s, *phases, strict=True)
            for iteration, times_s in enumerate(times):
                rows.append((run_id, iteration, *(1e3 * time_s for time_s in times_s)))
    times_ms = ("iteration_time_ms", "data_wait_ms", *(f"{phase}_time_ms" for phase in PHASES))
    types = {"run_id": "string", "iteration": "Int64", **dict.fromkeys(times_ms, "float64")}
    table: pd.DataFrame = pd.DataFrame(rows, columns=list(types)).astype(types)
    return table


# What MLflow's pages show of a run's place and cost, beside its record


def addition_of(run: Run) -> schema.Addition | None:
    """Return the bound and the shares of the roof as metrics and tags; None without a place.

    The metrics are named as the columns of `pull_runs(roofs=True)`. The bound has a question mark
    where the interval of traffic does not decide it.
    """
    from analysis.account import StepAccount
    from analysis.runs.points import SHARES_OF_PEAK

    if (point := run.point) is None:
        return None
    tags = {
        schema.BOUND: f"{point.bound}{'' if point.bound_sure else '?'}",
        schema.VERDICT_UNDER_ROOF: run.verdict,
        schema.ROOF: f"{point.ceiling.kind}, {point.ceiling.date}: {point.ceiling.source}",
        schema.ROOF_RECORD_ID: point.ceiling_record_id or "none: datasheet",
    }
    names = ("fraction_of_roof_min", "fraction_of_roof_max", *SHARES_OF_PEAK)
    shares = {name: share for name in names
              if (share := getattr(point, name)) is not None and math.isfinite(share)}  # fmt: skip
    account = run.account
    return schema.Addition(
        shares | (account.metrics() if isinstance(account, StepAccount) else {}),
        {name: text[: schema.TAG_CHARACTERS] for name, text in tags.items()},
    )


def with_cost(
    addition: schema.Addition | None, per_million_samples: float, price: str, sample: Sample
) -> schema.Addition:
    """Return the same with what a million samples cost, and the price that it follows from."""
    known = addition or schema.Addition({}, {})
    return schema.Addition(
        known.metrics | {cost_metric(sample): per_million_samples},
        known.tags | {schema.PRICE: price[: schema.TAG_CHARACTERS]},
    )


class LocalRoofs:
    """Places a run, for an upload, under the roofs whose records lie in the same folder as its own.

    Each record is looked at once: a sweep does not read all of them again after each of its runs.
    """

    def __init__(self) -> None:
        self._found: dict[str, CeilingsRecord | None] = {}

    def run_of(self, folder: RecordFolder, record: AnyRecord) -> Run | None:
        """Return the placed run of a measurement's `record`; None of another kind."""
        from analysis.runs.place import place

        if not isinstance(record, RunRecord) or record.measurement is None:
            return None
        for other in record_folders(folder.path.parent, missing_ok=True):
            if other.record_id not in self._found and other.record.is_file():
                self._found[other.record_id] = ceilings_of(other)
        return place(record, [one for one in self._found.values() if one])
