"""Recorded runs under the roofs of their machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.roofs.peaks import Peaks
from analysis.runs.points import DOUBTFUL_ROOF, Refusal, RooflinePoint, roofline_point
from analysis.runs.run import Run, Trust
from analysis.runs.what_ran import distinguished
from bench.records import CeilingsRecord, Environment, Finding, ProfileRecord, RunRecord, worst
from bench.records.verdict.record_metrics import summary
from bench.records.verdict.step_settings import settings_of


@dataclass(frozen=True, kw_only=True)
class PlacedRun(Run):
    """A run's record, with its point under the roof or the reason why it has none.

    `number` is the run's in a report, counted from 1; `run_id` is the tracked run's, None for a
    record that was read from disk.
    """

    record: RunRecord
    run_id: str | None = None
    number: int = 1

    @property
    def verdict(self) -> Trust:
        """The worse of the record's own verdict and of what its place under the roof shows."""
        return trust(self.record, self.findings)

    def facts(self) -> dict[str, object]:
        """Return what a script wants of the run, ready for JSON; None for what is not known."""
        resolved = self.record.resolved
        math_mode = resolved.math_mode if resolved else None
        return super().facts() | {
            "run_id": self.run_id,
            "record_id": self.record.record_id,
            "math_mode": math_mode,
        }


def trust(record: RunRecord | ProfileRecord, findings: Iterable[Finding]) -> Trust:
    """Return how far a record's numbers can be trusted: the worst of its verdict and `findings`."""
    if record.outcome != "ok":
        return "no result"
    stored = record.verdict.level if record.verdict else "clean"
    level = worst([stored, *(finding.level for finding in findings)])
    return "not judged" if level == "clean" and record.verdict is None else level


def place(
    record: RunRecord,
    ceilings: Sequence[CeilingsRecord],
    profiles: Sequence[ProfileRecord] = (),
    *,
    run_id: str | None = None,
    peaks: Sequence[Peaks] = (),
) -> PlacedRun:
    """Place one run under its roof, with what `profiles` counted of it.

    `peaks` are datasheet figures of a user's own.
    """
    placed = roofline_point(record, ceilings, profiles, peaks)
    point = placed if isinstance(placed, RooflinePoint) else None
    own = record.verdict.findings if record.verdict else ()
    settings, asked = settings_of(record)
    return PlacedRun(
        name=run_id or record.record_id,
        settings=settings,
        asked=asked,
        outcome=record.outcome,
        reason=record.reason,
        metrics=summary(record),
        sample=record.resolved.sample if record.resolved else "sample",
        campaign=record.config.campaign,
        software=_software(record.environment) if record.environment else {},
        started=record.created,
        machine=_machine(record.environment) if record.environment else None,
        iteration_times_s=record.measurement.iteration_times_s if record.measurement else (),
        record=record,
        point=point,
        findings=own + (point.findings if point else ()),
        refusal=placed.reason if isinstance(placed, Refusal) else None,
        run_id=run_id,
    )


def place_runs(
    measurements: Sequence[RunRecord],
    ceilings: Sequence[CeilingsRecord],
    profiles: Sequence[ProfileRecord] = (),
    *,
    run_ids: Mapping[str, str] | None = None,
    peaks: Sequence[Peaks] = (),
) -> list[PlacedRun]:
    """Place every run under its roof, with what `profiles` counted of it.

    `run_ids` maps record ids to tracked runs, `peaks` are datasheet figures of a user's own.
    Ordered by machine, model, precision and batch size, so that neighbours can be compared.
    """
    ids = run_ids or {}
    placed = [
        place(record, ceilings, profiles, run_id=ids.get(record.record_id), peaks=peaks)
        for record in measurements
    ]
    ordered = sorted(distinguished(placed), key=PlacedRun.order)
    return [replace(run, number=number) for number, run in enumerate(ordered, start=1)]


def doubtful_roofs(runs: Iterable[Run]) -> Iterator[tuple[list[PlacedRun], str]]:
    """Yield the runs under each roof whose measurement was disturbed, with what that means."""
    found: dict[str | None, list[PlacedRun]] = {}
    for run in recorded(runs):
        if any(finding.code == DOUBTFUL_ROOF for finding in run.findings):
            record_id = run.point.ceiling_record_id if run.point else None
            found.setdefault(record_id, []).append(run)
    for under in found.values():
        messages = (f.message for f in under[0].findings if f.code == DOUBTFUL_ROOF)
        doubts = [message.removeprefix("its roof: ") for message in messages]
        yield (
            under,
            f"suspect: {'; '.join(doubts)}: it may be too low, and so the shares of it too high; "
            "measure it again while the machine rests: mlproject ceilings",
        )


def recorded(runs: Iterable[Run]) -> list[PlacedRun]:
    """Return those of `runs` that have a record."""
    return [run for run in runs if isinstance(run, PlacedRun)]


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


def _machine(environment: Environment) -> str | None:
    """A GPU by its UUID, wherever it stands; else the machine by what it calls itself."""
    return environment.device.uuid or environment.host
