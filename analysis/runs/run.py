"""The one shape of a run from its record, or its ledger, to figures, tables and findings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Literal

from analysis.runs.points import RooflinePoint
from analysis.runs.quantities import whole_number
from analysis.runs.what_ran import precision_label
from analysis.statistics.repeats import Repeats, summarised_repeats
from bench.config import THROUGHPUT, Sample, own_metric, rate_metric, rate_unit
from bench.records import Finding, RunRecord, worst
from bench.records.verdict.drift import Drift, window_drift

TOKENS_PER_S = "throughput_tokens_per_s"

Trust = Literal["clean", "suspect", "invalid", "not judged", "no result"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is known of one run, recorded here (a `PlacedRun`) or imported from a ledger.

    `settings` are what ran, as text, with machine and device: resolved values where the run has
    them, else those asked for. `asked` are those that read otherwise when they were asked for
    (`auto`). `distinction` is what distinguishes the run from others of the same machine, model and
    precision. `metrics` are named as in the tracking schema, where images have names of their own;
    what takes a metric's name takes that of samples in general too. `count` is of the repeats
    behind the numbers (1 but for imported summaries), `deviations` those between them by metric.
    `software` is what may differ without being a setting. What an imported run lacks stays unknown.
    """

    name: str  # the tracked run's id, else the record's
    settings: Mapping[str, str]
    asked: Mapping[str, str] = field(default_factory=dict)
    distinction: str = ""
    outcome: str = "ok"
    reason: str | None = None
    metrics: Mapping[str, float]
    sample: Sample = "image"  # what a batch has `batch_size` of
    campaign: str | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    started: datetime | None = None  # UTC; None where its source does not say
    machine: str | None = None  # tells it from others of its kind; None where that is not known
    iteration_times_s: tuple[float, ...] = ()
    count: int = 1
    deviations: Mapping[str, float] = field(default_factory=dict)
    imported_from: str | None = None
    record: RunRecord | None = None
    point: RooflinePoint | None = None  # the place under the roof, if there is one
    refusal: str | None = None  # why it has no place
    findings: tuple[Finding, ...] = ()  # of the measurement itself, then of its place

    @cached_property
    def sorted_settings(self) -> tuple[tuple[str, str], ...]:
        """The settings by name: equal where two runs had the same ones."""
        return tuple(sorted(self.settings.items()))

    @property
    def record_id(self) -> str | None:
        """The id of its record, which is its name where it was read from disk; None without one."""
        return self.record.record_id if self.record else None

    @property
    def arch(self) -> str:
        """The model."""
        return self.settings.get("arch", "unknown")

    @property
    def precision(self) -> str:
        """The precision that ran, such as amp-bf16; the one asked for where that is not known."""
        return self.settings.get("precision", "unknown")

    @property
    def precision_label(self) -> str:
        """The precision for people, with the one asked for where amp became fp32."""
        return precision_label(self.precision, (self.asked_for("precision"),))

    @property
    def model_label(self) -> str:
        """The model, with what distinguishes the run from others of its label."""
        return f"{self.arch} ({self.distinction})" if self.distinction else self.arch

    @property
    def env(self) -> str:
        """The machine's label."""
        return self.settings.get("env", "unknown")

    @property
    def device(self) -> str:
        """The device's name."""
        return self.settings.get("device", "unknown")

    @property
    def batch_size(self) -> int | None:
        """Samples per forward pass and device, None where that is not a number."""
        return whole_number(self.settings.get("batch_size"))

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second of a run that ended well: images, or what it trained on."""
        return self.usable(THROUGHPUT)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of a run that ended well, where its samples have tokens."""
        return self.usable(TOKENS_PER_S)

    @property
    def rate_unit(self) -> str:
        """The unit of its samples per second, such as images/s."""
        return rate_unit(self.sample)

    @property
    def label(self) -> str:
        """What was measured where, for people."""
        batch = self.settings.get("batch_size")
        return f"{self.env} {self.model_label} {self.precision_label} batch {batch}"

    def asked_for(self, name: str) -> str | None:
        """Return a setting as it was asked for, such as `auto`."""
        return self.asked.get(name, self.settings.get(name))

    @property
    def drift(self) -> Drift | None:
        """How the window changed, where the run's verdict says that it drifted."""
        if not any(finding.code == "drift" for finding in self.findings):
            return None
        return window_drift(self.iteration_times_s)

    @property
    def verdict(self) -> Trust:
        """The gravest of the findings; a run without any was judged by no rule."""
        level = worst(finding.level for finding in self.findings)
        return "not judged" if level == "clean" else level

    @property
    def problems(self) -> tuple[str, ...]:
        """What a reader must know before using the run's numbers; empty for most runs."""
        found = tuple(f"{f.level}: {f.message}" for f in self.findings if f.level != "note")
        return found if self.refusal is None else (f"not placed: {self.refusal}", *found)

    def facts(self) -> dict[str, object]:
        """Return what a script wants of the run, ready for JSON; None for what is not known."""
        point = self.point
        return {
            "run_id": self.name,
            "label": self.label,
            "env": self.env,
            "arch": self.arch,
            "precision": self.precision,
            "batch_size": self.batch_size,
            "math_mode": point.math_mode if point else None,
            "images_per_s": self.metrics.get(rate_metric("image")),
            "samples_per_s": self.metrics.get(rate_metric(self.sample)),
            "tokens_per_s": self.metrics.get(TOKENS_PER_S),
            "attained_gflop_per_s": self.metrics.get("attained_gflops"),
            "intensity_min_flop_per_byte": self.metrics.get("intensity_min"),
            "intensity_max_flop_per_byte": self.metrics.get("intensity_max"),
            "intensity_counted_flop_per_byte": point.intensity_counted if point else None,
            "ridge_flop_per_byte": point.roof.ridge_flop_per_byte if point else None,
            "fraction_of_roof_min": point.fraction_of_roof_min if point else None,
            "fraction_of_roof_max": point.fraction_of_roof_max if point else None,
            "bound": point.bound if point else None,
            "bound_sure": point.bound_sure if point else None,
            "verdict": self.verdict,
            "problems": list(self.problems),
        }

    def order(self) -> tuple[str, str, str, int, int, str]:
        """Return what sorts runs as a report does: machine, model, precision, batch size."""
        repeat, name = 0, self.name
        if self.record is not None:
            repeat, name = self.record.config.repeat, self.record.record_id
        return self.env, self.arch, self.precision, self.batch_size or 0, repeat, name

    def metric(self, name: str) -> float | None:
        """Return a metric by its name; of those of samples in general, that of its own samples."""
        return self.metrics.get(own_metric(name, self.sample))

    def usable(self, metric: str) -> float | None:
        """Return a run's number that a ratio can be taken of: of a good end, finite, above 0."""
        value = self.metric(metric)
        usable = self.outcome == "ok" and value is not None and math.isfinite(value) and value > 0
        return value if usable else None

    def repeats(self, metric: str = THROUGHPUT) -> Repeats:
        """Return the metric as repeats: one, or those that its ledger summed up.

        Raises `ValueError` where it is not usable.
        """
        value = self.usable(metric)
        if value is None:
            raise ValueError(f"run {self.name} has no {metric} above 0")
        deviation = self.deviations.get(own_metric(metric, self.sample))
        return summarised_repeats(value, deviation, self.count)
