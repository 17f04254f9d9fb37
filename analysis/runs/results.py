"""One run as a reader meets it: its numbers, its place under the roof, and whether to trust it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from analysis.runs.points import Refusal, RooflinePoint, roofline_point
from bench.records import CeilingsRecord, Finding, ProfileRecord, RunRecord, worst
from bench.records.verdict.figures import summary

Trust = Literal["clean", "suspect", "invalid", "not judged", "no result"]


@dataclass(frozen=True)
class RunResult:
    """A run's record, the tracked run that holds it, and its place under the roof.

    `number` is the run's in a report, counted from 1.
    """

    number: int
    record: RunRecord
    run_id: str | None  # None for a record that was read from disk
    place: RooflinePoint | Refusal

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The run's statistics by their names in the tracking schema."""
        return summary(self.record)

    @property
    def name(self) -> str:
        """The tracked run's id, else the record's."""
        return self.run_id or self.record.record_id

    @property
    def env(self) -> str:
        """The label of the machine."""
        record = self.record
        return record.environment.label if record.environment else record.config.env

    @property
    def batch_size(self) -> int | str:
        """The batch size that ran, else the one asked for."""
        record = self.record
        return record.resolved.batch_size if record.resolved else record.config.batch_size

    @property
    def iterations(self) -> int | None:
        """Iterations of the measured window."""
        measurement = self.record.measurement
        return len(measurement.iteration_times_s) if measurement else None

    @property
    def label(self) -> str:
        """What was measured where, for people."""
        config = self.record.config
        return f"{self.env} {config.arch} {config.precision} batch {self.batch_size}"

    @property
    def point(self) -> RooflinePoint | None:
        """The place under the roof, if there is one."""
        return self.place if isinstance(self.place, RooflinePoint) else None

    @property
    def refusal(self) -> str | None:
        """Why there is no place under the roof."""
        return self.place.reason if isinstance(self.place, Refusal) else None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the measurement found of itself, then what its place under the roof shows."""
        own = self.record.verdict.findings if self.record.verdict else ()
        return own + (self.point.findings if self.point else ())

    @property
    def verdict(self) -> Trust:
        """The worse of the record's own verdict and of what its place under the roof shows."""
        if self.record.outcome != "ok":
            return "no result"
        levels = {self.point.level if self.point else "clean"}
        if self.record.verdict is not None:
            levels.add(self.record.verdict.level)
        level = worst(levels)
        return "not judged" if level == "clean" and self.record.verdict is None else level

    @property
    def problems(self) -> tuple[str, ...]:
        """What a reader must know before using the run's numbers; empty for most runs."""
        found = tuple(f"{f.level}: {f.message}" for f in self.findings if f.level != "note")
        return found if self.refusal is None else (f"not placed: {self.refusal}", *found)

    def facts(self) -> dict[str, object]:
        """Return what a script wants of the run, ready for JSON; None for what is not known."""
        point = self.point
        return {
            "run_id": self.run_id,
            "record_id": self.record.record_id,
            "label": self.label,
            "images_per_s": self.metrics.get("throughput_images_per_s"),
            "attained_gflop_per_s": self.metrics.get("attained_gflops"),
            "intensity_counted_flop_per_byte": point.intensity_counted if point else None,
            "fraction_of_roof_min": point.fraction_of_roof_min if point else None,
            "fraction_of_roof_max": point.fraction_of_roof_max if point else None,
            "bound": point.bound if point else None,
            "bound_sure": point.bound_sure if point else None,
            "verdict": self.verdict,
            "problems": list(self.problems),
        }


def run_results(
    measurements: Sequence[RunRecord],
    ceilings: Sequence[CeilingsRecord],
    run_ids: Mapping[str, str] | None = None,
    profiles: Sequence[ProfileRecord] = (),
) -> list[RunResult]:
    """Place every run under its roof, with what `profiles` counted of it.

    `run_ids` maps record ids to tracked runs. Ordered by machine, model, precision and batch
    size, so that neighbours can be compared.
    """
    ids = run_ids or {}
    return [
        RunResult(
            number,
            record,
            ids.get(record.record_id),
            roofline_point(record, ceilings, profiles),
        )
        for number, record in enumerate(sorted(measurements, key=_order), start=1)
    ]


def _order(record: RunRecord) -> tuple[str, str, str, int, int, str]:
    config = record.config
    batch = record.resolved.batch_size if record.resolved else config.batch_size
    return (
        record.environment.label if record.environment else config.env,
        config.arch,
        config.precision,
        batch if isinstance(batch, int) else 0,
        config.repeat,
        record.record_id,
    )
