"""Records of all kinds, wherever they came from: those of a folder or of tracked runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from analysis.profiles.profiled_step import explains
from analysis.roofs.ceilings import alike_devices
from analysis.roofs.peaks import Peaks
from analysis.runs.imported import ImportedRun, imported_run
from analysis.runs.placed import place_runs
from analysis.runs.run import Run
from analysis.runs.what_ran import distinguished
from bench.records import (
    CeilingsRecord,
    Environment,
    ImportedRecord,
    ProfileRecord,
    RunRecord,
    TraceRecord,
)
from bench.records.folders import read_all

if TYPE_CHECKING:
    from bench.records.folders import WholeRecord

Record = TypeVar("Record", RunRecord, CeilingsRecord, ProfileRecord)


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

    @classmethod
    def of(
        cls,
        records: Iterable[WholeRecord | ImportedRecord],
        campaign: str | None = None,
    ) -> RecordSet:
        """Sort records from disk by kind; all of `campaign`, if given, but ceilings.

        The profiles of its runs may be of another campaign.
        """
        found, others = cls(), []
        for record in records:
            if campaign is None or _campaign(record) in (None, campaign):
                found.add(record)
            elif isinstance(record, ProfileRecord):
                others.append(record)
        for profile in others:
            if any(explains(profile, run) for run in found.measurements):
                found.add(profile)
        return found

    @classmethod
    def read(cls, places: Iterable[Path], campaign: str | None = None) -> RecordSet:
        """Return the records of the folders `places`, as `of` does.

        What cannot be read has its line in `unreadable`. Raises `UserError` for no folder.
        """
        records, unreadable = read_all(places)
        return replace(cls.of(records, campaign), unreadable=unreadable)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report: ceilings alone are of no run."""
        return not (self.measurements or self.imported or self.traces or self.profiles)

    def add(self, record: WholeRecord | ImportedRecord) -> None:
        """Add a record to those of its kind."""
        if isinstance(record, RunRecord):
            self.measurements.append(record)
        elif isinstance(record, ProfileRecord):
            self.profiles.append(record)
        elif isinstance(record, TraceRecord):
            self.traces.append(record)
        elif isinstance(record, ImportedRecord):
            self.imported.append(record)
        else:
            self.ceilings.append(record)

    def with_unique_labels(self, *beside: RecordSet) -> RecordSet:
        """Return the same with `(1)`, `(2)` after a label that machines of several kinds carry.

        The machines of `beside` are counted with them: what is compared has one numbering.
        """
        labels = _Labels(chain.from_iterable(one.records() for one in (self, *beside)))
        return replace(
            self,
            measurements=[labels.on(record) for record in self.measurements],
            ceilings=[labels.on(record) for record in self.ceilings],
            profiles=[labels.on(record) for record in self.profiles],
        )

    def records(self) -> list[RunRecord | CeilingsRecord | ProfileRecord]:
        """Return all records that have a machine, of whatever kind."""
        return [*self.measurements, *self.ceilings, *self.profiles]

    def runs(self, peaks: Sequence[Peaks] = ()) -> list[Run]:
        """Place every measurement, in report order; imported results come after them.

        Machines of several kinds under one label have a number. `peaks` are datasheet figures of a
        user's own.
        """
        own = self.with_unique_labels()
        placed = place_runs(
            own.measurements, own.ceilings, own.profiles, run_ids=self.run_ids, peaks=peaks
        )
        imported = [
            imported_run(one, own.ceilings, peaks, run_id=self.run_ids.get(one.record_id))
            for one in self.imported
        ]
        return distinguished([*placed, *sorted(imported, key=ImportedRun.order)])


def _campaign(record: WholeRecord | ImportedRecord) -> str | None:
    """The campaign of a record; None of ceilings, which belong to a machine."""
    if isinstance(record, CeilingsRecord):
        return None
    if isinstance(record, TraceRecord | ImportedRecord):
        return record.campaign
    return record.config.campaign


class _Labels:
    """The label of each kind of machine: its own, with `(1)`, `(2)` where several have the same.

    Cloud machines of one type are one kind, whichever of them ran. The first record of a kind
    stands for it, and kinds are numbered by age.
    """

    def __init__(self, records: Iterable[RunRecord | CeilingsRecord | ProfileRecord]) -> None:
        self._kinds: dict[str, list[Environment]] = {}
        for record in sorted(records, key=lambda one: (one.created, one.record_id)):
            if record.environment is not None:
                kinds = self._kinds.setdefault(record.environment.label, [])
                if not any(alike_devices(known, record.environment) for known in kinds):
                    kinds.append(record.environment)

    def on(self, record: Record) -> Record:
        """Return the record under its machine's label."""
        environment = record.environment
        if environment is None or len(kinds := self._kinds[environment.label]) == 1:
            return record
        number = next(n for n, kind in enumerate(kinds, 1) if alike_devices(kind, environment))
        own = environment.model_copy(update={"label": f"{environment.label} ({number})"})
        return record.model_copy(update={"environment": own})
