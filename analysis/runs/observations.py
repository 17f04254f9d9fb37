"""One run as comparisons and findings see it, whether recorded here or imported from a ledger.

A recorded run has its iterations, its record and its place under the roof. An imported one has what
was written down: often a throughput alone, sometimes with the deviation of so many repeats. What it
lacks stays unknown; nothing is made up for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.runs.quantities import whole_number
from analysis.runs.results import RunResult
from analysis.statistics.repeats import Repeats, summarised_repeats
from bench.config import FILING_FIELDS, RunConfig
from tracking import schema

if TYPE_CHECKING:
    from tracking.reading.search import TrackedRun

THROUGHPUT = "throughput_images_per_s"
#: Settings of how long was measured, not of what: runs that differ in them alone are repeats.
WINDOW_FIELDS = frozenset({"iters", "warmup_iters", "max_seconds"})
_NO_SETTINGS = FILING_FIELDS | WINDOW_FIELDS
#: What an imported run's ledger may say of its throughput: deviation and number of repeats.
DEVIATION = "throughput_images_per_s_std"
REPEATS = "repeats"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One run. `settings` are what was asked for as text, and the machine; `metrics` its numbers.

    `count` is of repeats behind the numbers (1 but for imported summaries), `deviations` those
    between them by metric. `software` is what may differ without being a setting.
    """

    name: str  # the tracked run's id, else the record's
    settings: Mapping[str, str]
    outcome: str
    reason: str | None
    metrics: Mapping[str, float]
    campaign: str | None
    software: Mapping[str, str]
    iteration_times_s: tuple[float, ...] = ()
    count: int = 1
    deviations: Mapping[str, float]
    imported_from: str | None = None
    result: RunResult | None = None

    @property
    def arch(self) -> str:
        """The model."""
        return self.settings.get("arch", "unknown")

    @property
    def precision(self) -> str:
        """The precision asked for."""
        return self.settings.get("precision", "unknown")

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
        """Images per forward pass and device, None where that is not a number."""
        return whole_number(self.settings.get("batch_size"))

    @property
    def throughput_images_per_s(self) -> float | None:
        """Images per second of a run that ended well."""
        return self.usable(THROUGHPUT)

    @property
    def label(self) -> str:
        """What was measured where, for people."""
        return f"{self.env} {self.arch} {self.precision} batch {self.settings.get('batch_size')}"

    def order(self) -> tuple[str, str, str, int, str]:
        """Return what sorts runs as a report does: machine, model, precision, batch size."""
        return self.env, self.arch, self.precision, self.batch_size or 0, self.name

    def usable(self, metric: str) -> float | None:
        """Return a run's number that a ratio can be taken of: of a good end, finite, above 0."""
        value = self.metrics.get(metric)
        usable = self.outcome == "ok" and value is not None and math.isfinite(value) and value > 0
        return value if usable else None

    def repeats(self, metric: str = THROUGHPUT) -> Repeats:
        """Return the metric as repeats: one, or those that its ledger summed up.

        Raises `ValueError` where it is not usable.
        """
        value = self.usable(metric)
        if value is None:
            raise ValueError(f"run {self.name} has no {metric} above 0")
        return summarised_repeats(value, self.deviations.get(metric), self.count)


def observe_result(result: RunResult) -> Observation:
    """Return a recorded run as an observation."""
    record = result.record
    given = record.config.model_dump(exclude=set(_NO_SETTINGS))
    settings = {name: f"{value}" for name, value in given.items()}
    settings["batch_size"] = f"{result.batch_size}"
    settings["env"] = result.env
    environment = record.environment
    if environment is not None:
        settings["device"] = environment.device.name
    software = {
        "torch": environment and environment.torch,
        "CUDA": environment and environment.cuda,
        "driver": environment and environment.device.driver,
        "variables": environment and environment.variables_set,
        "commit": environment and environment.git_commit and environment.git_commit[:12],
    }
    return Observation(
        name=result.name,
        settings=settings,
        outcome=record.outcome,
        reason=record.reason,
        metrics=result.metrics,
        campaign=record.config.campaign,
        software={name: value for name, value in software.items() if value},
        iteration_times_s=record.measurement.iteration_times_s if record.measurement else (),
        deviations={},
        result=result,
    )


def observe_imported(run: TrackedRun) -> Observation:
    """Return an imported run as an observation of what its tags, parameters and metrics say."""
    known = {
        name: value
        for name, value in run.params.items()
        if name in RunConfig.model_fields and name not in _NO_SETTINGS
    }
    batch = whole_number(run.params.get("resolved_batch_size") or known.get("batch_size"))
    if batch is not None:
        known["batch_size"] = f"{batch}"
    for setting, tag in (("env", schema.ENV), ("device", schema.DEVICE)):
        if run.tags.get(tag):
            known[setting] = run.tags[tag]
    deviation = run.metrics.get(DEVIATION)
    return Observation(
        name=run.run_id,
        settings=known,
        outcome=run.tags.get(schema.OUTCOME, "ok"),
        reason=run.tags.get(schema.REASON),
        metrics=run.metrics,
        campaign=run.tags.get(schema.CAMPAIGN),
        software={},
        count=max(whole_number(run.params.get(REPEATS)) or 1, 1),
        deviations={} if deviation is None else {THROUGHPUT: deviation},
        imported_from=run.tags.get(schema.SOURCE_FILE, "unknown"),
    )
