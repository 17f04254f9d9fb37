"""Runs and profiles under the roofs of their machines: each record becomes what a report shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from analysis.profiles.places import KernelPlaces, OpPlaces, check_ops, place_kernels, place_ops
from analysis.profiles.profiled_step import check_counters, explains
from analysis.roofs.ceilings import UsedCeiling, choose_ceiling
from analysis.roofs.roof import Peaks
from analysis.runs.imported import imported_run
from analysis.runs.points import roofline_point
from analysis.runs.run import Run, Trust, distinguished, problem_lines, trust
from analysis.runs.settings import Configured, Identity
from bench.errors import Unknown
from bench.records import (
    CeilingsRecord,
    Environment,
    Finding,
    ImportedRecord,
    ProfileRecord,
    RunRecord,
)
from bench.records.metrics import profile_summary, summary
from bench.records.step_settings import settings_of


def place(
    source: RunRecord | ImportedRecord,
    ceilings: Sequence[CeilingsRecord] = (),
    profiles: Sequence[ProfileRecord] = (),
    *,
    run_id: str | None = None,
    peaks: Sequence[Peaks] = (),
) -> Run:
    """Place one run under its roof, with what `profiles` counted of it.

    An imported result has the roof of a device of its name. `peaks` are datasheet figures of a
    user's own.
    """
    if isinstance(source, ImportedRecord):
        return imported_run(source, ceilings, peaks, run_id)
    found = roofline_point(source, ceilings, profiles, peaks)
    own = source.verdict.findings if source.verdict else ()
    settings, asked = settings_of(source)
    environment, measurement = source.environment, source.measurement
    return Run(
        name=run_id or source.record_id,
        source=source,
        run_id=run_id,
        place=found,
        settings=settings,
        asked=asked,
        outcome=source.outcome,
        reason=source.reason,
        metrics=summary(source),
        sample=source.resolved.sample if source.resolved else "sample",
        campaign=source.config.campaign,
        software=_software(environment) if environment else {},
        started=source.created,
        # a GPU by its UUID, wherever it stands; else the machine by what it calls itself
        machine=(environment.device.uuid or environment.host) if environment else None,
        iteration_times_s=measurement.iteration_times_s if measurement else (),
        findings=own + (found.findings if found else ()),
    )


def place_runs(
    measurements: Sequence[RunRecord],
    ceilings: Sequence[CeilingsRecord],
    profiles: Sequence[ProfileRecord] = (),
    *,
    run_ids: Mapping[str, str] | None = None,
    peaks: Sequence[Peaks] = (),
) -> list[Run]:
    """Place every run under its roof, with what `profiles` counted of it.

    `run_ids` maps record ids to tracked runs, `peaks` are datasheet figures of a user's own.
    Ordered by machine, model, precision and batch size, so that neighbours can be compared.
    """
    ids = run_ids or {}
    placed = [
        place(record, ceilings, profiles, run_id=ids.get(record.record_id), peaks=peaks)
        for record in measurements
    ]
    ordered = sorted(distinguished(placed), key=Run.order)
    return [replace(run, number=number) for number, run in enumerate(ordered, start=1)]


def _software(environment: Environment) -> dict[str, str]:
    found = {
        "torch": environment.torch,
        "CUDA": environment.cuda,
        "driver": environment.device.driver,
        "variables": environment.variables_set,
        "commit": environment.git_commit and environment.git_commit[:12],
        "model's commit": environment.model_code and environment.model_code.commit,
    }
    return {name: value for name, value in found.items() if value}


@dataclass(frozen=True)
class PlacedProfile(Configured):
    """A profile's record, the tracked run that holds it, its device's roof and its timed runs.

    `number` is the profile's in a report, counted from 1. `runs` are those of the report that it
    explains, the one that it was made of first.
    """

    number: int
    record: ProfileRecord
    run_id: str | None  # None for a record that was read from disk
    ceiling: UsedCeiling | Unknown
    runs: tuple[Run, ...]

    @cached_property
    def identity(self) -> Identity:
        """The settings of the step that was profiled."""
        settings, asked = settings_of(self.record)
        return Identity(settings, (asked,))

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

    @cached_property
    def ops(self) -> OpPlaces | None:
        """Its ops under the roof, if PyTorch's profiler looked."""
        roof = self.used.roof if self.used else None
        return None if self.record.ops is None else place_ops(self.record.ops.ops, roof)

    @cached_property
    def kernels(self) -> KernelPlaces | None:
        """Its kernels under the roofs, if counters were read."""
        return None if self.record.counters is None else place_kernels(self.record.counters)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What the profile found of itself, then what the roof shows."""
        found = list(self.record.verdict.findings if self.record.verdict else ())
        used, timed = self.used, self.runs[0].record if self.runs else None
        if used is not None and self.record.counters is not None:
            window = timed.measurement if timed else None
            step_s = window.window_s / len(window.iteration_times_s) if window else None
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
        return problem_lines(self.findings, self.ceiling, "not held against a roof")

    def facts(self) -> dict[str, object]:
        """Return what a script wants of the profile, ready for JSON."""
        return {
            "run_id": self.run_id,
            "record_id": self.record.record_id,
            "configuration": self.label,
            "explains": [run.record_id for run in self.runs],
            **self.metrics,
            "verdict": self.verdict,
            "problems": list(self.problems),
        }


def place_profiles(
    profiles: Sequence[ProfileRecord],
    runs: Sequence[Run],
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


def _explained(record: ProfileRecord, runs: Sequence[Run]) -> tuple[Run, ...]:
    fitting = [run for run in runs if run.record and explains(record, run.record)]
    return tuple(sorted(fitting, key=lambda run: run.record_id != record.timed_record_id))
