"""The one shape of a profile from its record to the report: what it saw of which runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from analysis.profiles.kernel_places import KernelPlaces, place_kernels
from analysis.profiles.op_places import OpPlaces, check_ops, place_ops
from analysis.profiles.profiled_step import check_counters, explains
from analysis.roofs.ceilings import NoCeiling, UsedCeiling, choose_ceiling
from analysis.roofs.peaks import Peaks
from analysis.runs.placed import PlacedRun, trust
from analysis.runs.run import Trust
from analysis.runs.what_ran import precision_label
from bench.records import CeilingsRecord, Finding, ProfileRecord
from bench.records.verdict.record_metrics import profile_summary
from bench.records.verdict.step_settings import precision_of


@dataclass(frozen=True)
class PlacedProfile:
    """A profile's record, the tracked run that holds it, its device's roof and its timed runs.

    `number` is the profile's in a report, counted from 1. `runs` are those of the report that it
    explains, the one that it was made of first.
    """

    number: int
    record: ProfileRecord
    run_id: str | None  # None for a record that was read from disk
    ceiling: UsedCeiling | NoCeiling
    runs: tuple[PlacedRun, ...]

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The profile's statistics by their names in the tracking schema."""
        return profile_summary(self.record)

    @property
    def used(self) -> UsedCeiling | None:
        """The roof of its device, if there is one."""
        return self.ceiling if isinstance(self.ceiling, UsedCeiling) else None

    @property
    def name(self) -> str:
        """The tracked run's id, else the record's."""
        return self.run_id or self.record.record_id

    @property
    def label(self) -> str:
        """What was profiled where, for people."""
        record = self.record
        env = record.environment.label if record.environment else record.config.env
        config, resolved = record.config, record.resolved
        if resolved is None:
            return f"{env} {config.arch} {config.precision} batch {config.batch_size}"
        precision = precision_label(precision_of(resolved), (config.precision,))
        return f"{env} {config.arch} {precision} batch {resolved.batch_size}"

    @cached_property
    def ops(self) -> OpPlaces | None:
        """Its ops under the roof, if PyTorch's profiler looked."""
        roof = self.used.roof if self.used else None
        return None if self.record.ops is None else place_ops(self.record.ops, roof)

    @cached_property
    def kernels(self) -> KernelPlaces | None:
        """Its kernels under the roofs, if counters were read."""
        return None if self.record.counters is None else place_kernels(self.record.counters)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What the profile found of itself, then what the roof shows."""
        found = list(self.record.verdict.findings if self.record.verdict else ())
        used = self.used
        if used is not None and self.record.counters is not None:
            step_s = _step_s(self.runs[0]) if self.runs else None
            found += check_counters(self.record.counters, used.roof, used.cache_roofs, step_s)
        if used is not None and self.ops is not None:
            found += check_ops(self.ops, used.roof)
        return tuple(found)

    @property
    def verdict(self) -> Trust:
        """The gravest of the findings; `no result` if the profile did not end well."""
        return trust(self.record, self.findings)

    @property
    def problems(self) -> tuple[str, ...]:
        """What a reader must know before using its numbers; empty for most profiles."""
        found = tuple(f"{f.level}: {f.message}" for f in self.findings if f.level != "note")
        if isinstance(self.ceiling, NoCeiling):
            return (f"not held against a roof: {self.ceiling.reason}", *found)
        return found

    def facts(self) -> dict[str, object]:
        """Return what a script wants of the profile, ready for JSON."""
        return {
            "run_id": self.run_id,
            "record_id": self.record.record_id,
            "label": self.label,
            "explains": [run.record.record_id for run in self.runs],
            **self.metrics,
            "verdict": self.verdict,
            "problems": list(self.problems),
        }


def place_profiles(
    profiles: Sequence[ProfileRecord],
    runs: Sequence[PlacedRun],
    ceilings: Sequence[CeilingsRecord],
    *,
    run_ids: Mapping[str, str] | None = None,
    peaks: Sequence[Peaks] = (),
) -> list[PlacedProfile]:
    """Hold every profile against its device's roof and find those of `runs` that it explains.

    `run_ids` maps record ids to tracked runs, `peaks` are datasheet figures of a user's own.
    Ordered by the first run that each explains, then by time; those that explain none come last.
    """
    ids = run_ids or {}
    found = [(record, _explained(record, runs)) for record in profiles]
    found.sort(key=lambda one: (one[0].created, one[0].record_id))
    found.sort(key=lambda one: one[1][0].number if one[1] else math.inf)
    return [
        PlacedProfile(
            number,
            record,
            ids.get(record.record_id),
            choose_ceiling(record, ceilings, peaks),
            explained,
        )
        for number, (record, explained) in enumerate(found, start=1)
    ]


def _explained(record: ProfileRecord, runs: Sequence[PlacedRun]) -> tuple[PlacedRun, ...]:
    fitting = [run for run in runs if explains(record, run.record)]
    own = record.timed_record_id
    return tuple(sorted(fitting, key=lambda run: run.record.record_id != own))


def _step_s(run: PlacedRun) -> float | None:
    measurement = run.record.measurement
    if measurement is None:
        return None
    return measurement.window_s / len(measurement.iteration_times_s)
