"""The one shape of a run, recorded here or imported, to figures, tables and findings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from analysis.account import StepAccount, account_of
from analysis.gains import gains_of
from analysis.presentation.columns import Row
from analysis.runs.points import RooflinePoint
from analysis.runs.settings import Identified, Identity
from bench.config import THROUGHPUT, RunConfig, Sample, own_metric, rate_unit
from bench.errors import Unknown, UserError
from bench.records import (
    CLOCK_SETTING,
    POWER_LIMIT,
    Finding,
    ImportedRecord,
    ProfileRecord,
    RunRecord,
    worst,
)
from bench.records.metrics import PHASES
from bench.records.step_settings import LIMITED
from bench.statistics.ratios import Repeats, summarised_repeats
from bench.statistics.steady_state import window_class

if TYPE_CHECKING:
    import pandas as pd

TOKENS_PER_S = "throughput_tokens_per_s"

Trust = Literal["clean", "suspect", "invalid", "not judged", "no result"]


def trust(record: RunRecord | ProfileRecord | None, findings: Iterable[Finding]) -> Trust:
    """Return how far a record's numbers can be trusted: the worst of its verdict and `findings`."""
    if record is not None and record.outcome != "ok":
        return "no result"
    own = record.verdict if record else None
    level = worst([own.level if own else "clean", *(finding.level for finding in findings)])
    return "not judged" if level == "clean" and own is None else level


def problem_lines(findings: Iterable[Finding], roof: object, words: str) -> tuple[str, ...]:
    """Return what a reader must know before using numbers; `words` where the `roof` is unknown."""
    why = roof.reason if isinstance(roof, Unknown) else ""
    grave = (one for one in findings if one.level != "note" and not why.endswith(one.sentence))
    found = tuple(f"{one.level}: {one.sentence}" for one in grave)
    return (f"{words}: {why}", *found) if why else found


@dataclass(frozen=True, kw_only=True)
class Run(Identified):
    """What is known of one run, recorded here or imported from a file.

    `settings` are what ran, as text, with machine and device: resolved values where the run has
    them, else those asked for. `asked` are those that read otherwise when they were asked for
    (`auto`). `metrics` are named as in the tracking schema, where images have names of their own.
    A method that is given a metric's name also takes that of samples. `count` is of the repeats
    behind the numbers (1 but for imported summaries), `deviations` those between them by metric.
    """

    name: str  # the tracked run's id, else the record's
    settings: Mapping[str, str]
    asked: Mapping[str, str] = field(default_factory=dict)
    distinction: str = ""  # from others of its machine, model and precision
    outcome: str = "ok"
    reason: str | None = None
    metrics: Mapping[str, float]
    sample: Sample = "image"  # what a batch has `batch_size` of
    campaign: str | None = None
    accepted: str | None = None  # who meant its level, though worse than before, and why
    user: str | None = None  # who measured or uploaded it; a server alone knows
    software: Mapping[str, str] = field(default_factory=dict)  # may differ, and is no setting
    started: datetime | None = None  # UTC; None where its source does not say
    machine: str | None = None  # tells it from others of its kind; None where that is not known
    iteration_times_s: tuple[float, ...] = ()
    count: int = 1
    deviations: Mapping[str, float] = field(default_factory=dict)
    source: RunRecord | ImportedRecord | None = None  # None where tags alone are known
    run_id: str | None = None  # the tracked run's, None for what was read from disk
    number: int = 1  # in a report
    place: RooflinePoint | Unknown | None = None  # under its roof; None where nobody looked
    findings: tuple[Finding, ...] = ()  # of the measurement itself, then of its place

    @property
    def record(self) -> RunRecord | None:
        """The record of a run that was measured here."""
        return self.source if isinstance(self.source, RunRecord) else None

    @property
    def imported(self) -> ImportedRecord | None:
        """The record of a result that was imported."""
        return self.source if isinstance(self.source, ImportedRecord) else None

    @property
    def record_id(self) -> str | None:
        """The id of its record, which is its name where it was read from disk; None without one."""
        return self.source.record_id if self.source else None

    @property
    def config(self) -> RunConfig:
        """What was asked for; raises `ValueError` for a run without a record of ours."""
        if self.record is None:
            raise ValueError(f"run {self.name} was not measured here")
        return self.record.config

    @property
    def point(self) -> RooflinePoint | None:
        """The place under its roof, if it has one."""
        return self.place or None

    @property
    def refusal(self) -> str | None:
        """Why it has no place, where one was looked for."""
        return self.place.reason if isinstance(self.place, Unknown) else None

    @cached_property
    def identity(self) -> Identity:
        """The settings by which it is told from other runs."""
        unknown: tuple[str, ...] = ()
        if self.record is not None and self.record.environment is None:
            # It ended before its device was known; a label asked for is its own.
            unknown = ("device", LIMITED, *(["env"] if self.settings.get("env") == "auto" else []))
        return Identity(self.settings, (self.asked,), frozenset(unknown))

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second of a run that ended well: images, or what it trained on."""
        return self.usable(THROUGHPUT)

    @property
    def rate_unit(self) -> str:
        """The unit of its samples per second, such as images/s."""
        return rate_unit(self.sample)

    def asked_for(self, name: str) -> str | None:
        """Return a setting as it was asked for, such as `auto`."""
        return self.identity.asked_for(name)[0]

    @property
    def is_disturbed(self) -> bool:
        """Whether its rate is far below its pace."""
        measured = self.record.measurement if self.record else None
        return measured is not None and measured.is_disturbed

    @property
    def verdict(self) -> Trust:
        """The worst of the record's own verdict and of the findings; else `not judged`."""
        return trust(self.record, self.findings)

    @property
    def problems(self) -> tuple[str, ...]:
        """What a reader must know before using the run's numbers; empty for most runs."""
        return problem_lines(self.findings, self.place, "not placed")

    @property
    def account(self) -> StepAccount | Unknown:
        """Where the time of its step goes, under the roof of its place, or why nobody knows."""
        if self.point is not None and self.point.account is not None:
            return self.point.account
        if self.record is None:
            return Unknown("another program measured it")
        return account_of(self.record, None, self.record.measurement)

    @property
    def gains(self) -> list[Row]:
        """What its step gains without what was taken out of it, beside its account."""
        return [] if self.record is None else [*gains_of(self.record, self.account or None)]

    def order(self) -> tuple[str, str, str, int, int, str]:
        """Return what sorts runs by machine, model, precision and batch size."""
        repeat, name, imported = 0, self.name, self.imported
        if self.record is not None:
            repeat, name = self.record.config.repeat, self.record.record_id
        elif imported is not None:  # repeats come as in their file
            repeat = imported.repeat or 0
            name = f"{imported.source_file} {imported.source_line or 0:09} {imported.record_id}"
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

    @cached_property
    def row(self) -> Row:
        """Everything that tables say of it, by the names of columns; metrics as in MLflow.

        What is not known is None or absent.
        """
        asked, record, imported = self.asked_for("precision"), self.record, self.imported
        row = {
            **self.metrics,
            "run": self.name,
            "number": self.number,
            "run_id": self.name if record is None else self.run_id,
            "record_id": self.record_id,
            "configuration": self.label,
            "device": self.settings.get("device"),
            **self.identity_row,
            "imported": imported is not None,
            "precision_ran": self.precision,
            "precision_asked": None if asked == self.precision else asked,
            "repeats": self.count,
            "started": self.started,
            "outcome": self.outcome,
            "verdict": self.verdict,
            "problems": self.problems,
            "not_placed": self.refusal,
            **_sensors(self.metrics),
            **_phases(self.metrics),
        }
        if imported is not None:
            row |= {"source_file": imported.source_file, "source_line": imported.source_line}
            row |= {"work": MODELLED, "assumed": tuple(imported.assumed)}
            row["throughput_images_per_s_std"] = next(iter(self.deviations.values()), None)
        if record is not None:
            row |= _of_record(record)
        return row | self.point.row if self.point else row

    def facts(self) -> Row:
        """Return what a script wants of a run, ready for JSON; None for what is not known."""
        row = self.row | {"throughput_samples_per_s": self.metric(THROUGHPUT)}
        row |= {key: list(row[key]) for key in ("problems", "assumed") if key in row}
        return {key: row.get(key) for key in _FACTS + (_OF_IMPORTED if self.imported else ())}


def recorded(runs: Iterable[Run]) -> list[Run]:
    """Return those of `runs` that were measured here."""
    return [run for run in runs if run.record is not None]


def distinguished(runs: Sequence[Run]) -> list[Run]:
    """Return `runs`, each with its settings that differ from others of its label.

    A label has machine, model, precision and batch size, which are therefore left out, as is a
    setting that the run lacks. Runs that did not end well count for nothing.
    """
    values: dict[tuple[str, str, str], dict[str, set[str]]] = {}
    known: list[tuple[dict[str, str], dict[str, set[str]]]] = []
    for run in runs:
        source = {"source": "imported" if run.imported else "measured"}
        settings = {**run.settings, **source} if run.outcome == "ok" else {}
        of_label = values.setdefault((run.env, run.arch, run.precision), {})
        for name, value in settings.items():
            of_label.setdefault(name, set()).add(value)
        known.append((settings, of_label))
    found = []
    for run, (settings, of_label) in zip(runs, known, strict=True):
        differing = (name for name, own in of_label.items() if len(own) > 1 or name == LIMITED)
        names = sorted(settings.keys() & set(differing) - {"batch_size"})
        distinction = ", ".join(f"{name} {settings[name]}" for name in names)
        found.append(replace(run, distinction=distinction))
    return found


# What its row has

#: What stands beside the place of an imported run: FLOP and bytes are of the step its file names.
MODELLED = "imported, modelled"

#: What a script wants of a run, in this order.
_FACTS = (
    *("run_id", "record_id", "configuration", "env", "arch", "precision", "batch_size"),
    *("math_mode", "throughput_images_per_s", "throughput_samples_per_s"),
    *("throughput_tokens_per_s", "attained_gflops", "intensity_min", "intensity_max"),
    *("intensity_counted", "ridge_flop_per_byte", "fraction_of_roof_min", "fraction_of_roof_max"),
    *("bound", "bound_sure", "verdict", "problems"),
)
_OF_IMPORTED = ("source_file", "source_line", "assumed")
#: Telemetry whose mean a run may have: the GPU's before the processor's. Percent give cores.
_SENSORS = {
    "power_w": ("gpu_power_w", "cpu_package_power_w"),
    "clock_mhz": ("gpu_sm_clock_mhz", "cpu_frequency_mhz"),
    "temperature_c": ("gpu_temperature_c", "cpu_temperature_c"),
    "utilisation_percent": ("gpu_utilization_percent", "cpu_utilization_percent"),
    "other_processes_cores": ("other_cpu_percent",),
    "stolen_cores": ("stolen_cpu_percent",),
}
#: Of a run's configuration and of its measurement.
_ASKED, _ENDED = ("data", "warmup_iters", "iters", "repeat"), ("warmup_ended_early", "ended_early")


def _sensors(known: Mapping[str, float]) -> Row:
    found: Row = dict.fromkeys((*_SENSORS, "cores_busy"))
    for key, names in _SENSORS.items():
        unit = 100 if key.endswith("_cores") else 1
        means = (known[f"{name}_mean"] / unit for name in names if f"{name}_mean" in known)
        found[key] = next(means, None)
    if known.get("real_s") and {"user_s", "system_s"} <= known.keys():
        found["cores_busy"] = (known["user_s"] + known["system_s"]) / known["real_s"]
    return found


def _phases(metrics: Mapping[str, float]) -> Row:
    """Mean times and shares of an iteration, all steps of gradient accumulation together.

    The device is synchronised at the end of each timed phase, so such an iteration may be slower.
    """
    names = {phase: f"{phase}_time_s" for phase in PHASES if f"{phase}_time_s" in metrics}
    times_ms = {phase: 1e3 * metrics[name] for phase, name in names.items()}
    iteration_ms = metrics.get("iteration_time_ms_mean")
    if not times_ms or not iteration_ms:
        return {}
    # not below 0, though clocks differ by microseconds
    times_ms["other"] = max(0.0, iteration_ms - sum(times_ms.values()))
    whole_ms, row = sum(times_ms.values()), {"iteration_ms": iteration_ms}
    for name, time_ms in times_ms.items():
        row |= {f"{name}_ms": time_ms, f"{name}_share": time_ms / whole_ms}
    return row


def _of_record(record: RunRecord) -> Row:
    measured, environment = record.measurement, record.environment
    code = environment.model_code if environment else None
    shares = record.telemetry.throttle_share if record.telemetry else None
    # what a user chose of a device's clock is no throttling
    chosen = (POWER_LIMIT, CLOCK_SETTING)
    others = [share for name, share in (shares or {}).items() if name not in chosen]
    row = {
        **{name: getattr(record.config, name) for name in _ASKED},
        "math_mode": record.resolved.math_mode if record.resolved else None,
        "code": code and code.digest,
        "code_commit": code and code.commit,
        "power_limited_share": (shares or {}).get(POWER_LIMIT),
        # the most frequent reason; 0 where there was none
        "throttled_share": None if shares is None else max(others, default=0.0),
    }
    if measured is not None:
        row |= {name: getattr(measured, name) for name in _ENDED}
        row["warmup_iterations_done"] = len(measured.warmup_times_s)
        row["iterations"] = len(measured.iteration_times_s)
        row["window_class"] = window_class(measured.iteration_times_s).kind
    return row


def step_account(run: Run) -> pd.DataFrame:
    """Return the account of a run's step: a row per part, the roof first, then the largest.

    Columns are `name`, `class`, `seconds`, `share` of the step, `of_its_roof`, and the ends of its
    interval, `low_s` and `high_s`. `run` is of `pull_records(...).runs()` or `place`. Raises
    `UserError` where no op of its step was timed.
    """
    import pandas as pd

    account = run.account
    if isinstance(account, Unknown):
        raise UserError(f"run {run.name}: {account.reason}")
    table: pd.DataFrame = pd.DataFrame(account.rows())
    return table
