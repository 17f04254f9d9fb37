"""A row per run and a row per configuration: what every table of them takes its values from.

Rows are mappings by the keys of `columns.py`; metrics have their names in MLflow. What is not known
is None or absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.columns import Row as Row
from analysis.profiles import NO_COUNTERS, NOT_PROFILED
from analysis.runs.groups import Group, group_runs
from analysis.runs.points import RooflinePoint
from analysis.runs.run import TOKENS_PER_S, Run, recorded
from analysis.runs.settings import same_configuration
from analysis.table import RunList, grouped
from bench.config import THROUGHPUT
from bench.errors import Unknown, UserError
from bench.records import CLOCK_SETTING, POWER_LIMIT, RunRecord
from bench.records.metrics import PHASES
from bench.statistics.ratios import RatioEstimate
from bench.statistics.steady_state import window_class

if TYPE_CHECKING:
    import pandas as pd

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


def run_row(run: Run) -> Row:
    """Return everything that tables say of a run."""
    asked, record, one = run.asked_for("precision"), run.record, run.imported
    row = {
        **run.metrics,
        "run": run.name,
        "run_id": run.name if record is None else run.run_id,
        "record_id": run.record_id,
        "configuration": run.label,
        "device": run.settings.get("device"),
        **_identity(run),
        "precision_asked": None if asked == run.precision else asked,
        "repeats": run.count,
        "started": run.started,
        "outcome": run.outcome,
        "verdict": run.verdict,
        "problems": run.problems,
        "not_placed": run.refusal,
        **_sensors(run),
        **_phases(run),
    }
    if one is not None:
        row |= {"source_file": one.source_file, "source_line": one.source_line}
        row |= {"work": MODELLED, "assumed": tuple(one.assumed)}
        row["throughput_images_per_s_std"] = next(iter(run.deviations.values()), None)
    if record is not None:
        row |= _of_record(record)
    return row | point_row(run.point) if run.point else row


def run_facts(run: Run) -> Row:
    """Return what a script wants of a run, ready for JSON; None for what is not known."""
    row = run_row(run) | {"throughput_samples_per_s": run.metric(THROUGHPUT)}
    row |= {key: list(row[key]) for key in ("problems", "assumed") if key in row}
    return {key: row.get(key) for key in _FACTS + (_OF_IMPORTED if run.imported else ())}


def _identity(run: Run | Group) -> Row:
    return {
        "env": run.env,
        "arch": run.arch,
        "differs_in": run.distinction or None,
        "precision": run.precision,
        "precision_label": run.precision_label,
        "batch_size": run.batch_size,
    }


def _sensors(run: Run) -> Row:
    known, found = run.metrics, dict.fromkeys((*_SENSORS, "cores_busy"))
    for key, names in _SENSORS.items():
        unit = 100 if key.endswith("_cores") else 1
        means = (known[f"{name}_mean"] / unit for name in names if f"{name}_mean" in known)
        found[key] = next(means, None)
    if known.get("real_s") and {"user_s", "system_s"} <= known.keys():
        found["cores_busy"] = (known["user_s"] + known["system_s"]) / known["real_s"]
    return found


def _phases(run: Run) -> Row:
    """Mean times and shares of an iteration, all steps of gradient accumulation together.

    The device is synchronised at the end of each timed phase, so such an iteration may be slower.
    """
    names = {phase: f"{phase}_time_s" for phase in PHASES if f"{phase}_time_s" in run.metrics}
    times_ms = {phase: 1e3 * run.metrics[name] for phase, name in names.items()}
    iteration_ms = run.metrics.get("iteration_time_ms_mean")
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


def point_row(point: RooflinePoint) -> Row:
    """Return what a run's place under its roof says, of its iteration as it was placed."""

    def gigabytes(intensity: float | None) -> float | None:
        return point.step_flops / intensity / 1e9 if intensity and looked_at else None

    why = point.intensity_counted_missing
    looked_at = not why.startswith((NOT_PROFILED, NO_COUNTERS))
    return {
        **vars(point),
        "math_mode": point.ceiling.math_mode,
        "attained_gflops": point.attained_flops_per_s / 1e9,
        "attainable_gflops_min": point.attainable_min_flops_per_s / 1e9,
        "attainable_gflops_max": point.attainable_max_flops_per_s / 1e9,
        "ridge_flop_per_byte": point.roof.ridge_flop_per_byte,
        "peak_gflops": point.roof.peak_flops_per_s / 1e9,
        "peak_gb_per_s": point.roof.peak_bytes_per_s / 1e9,
        "ceiling_kind": point.ceiling.kind,
        "ceiling_date": point.ceiling.date,
        "ceiling_source": point.ceiling.source,
        "step_fused_gb": gigabytes(point.intensity_max),
        "step_eager_gb": gigabytes(point.intensity_min),
        "counted_dram_gb": gigabytes(point.intensity_counted),
        "not_counted_because": (why or None) if looked_at else None,
    }


def ratio_row(estimate: RatioEstimate | None) -> Row:
    """Return a ratio with the ends of its interval."""
    if estimate is None:
        return {}
    low, high = estimate.interval or (None, None)
    return {"ratio": estimate.ratio, "ratio_low": low, "ratio_high": high}


# Configurations


def configurations(runs: Sequence[Run]) -> list[Group]:
    """Return every configuration that was asked for a throughput, those without one last."""
    measured = group_runs(runs)
    failed = [
        run
        for run in runs
        if run.outcome != "ok"
        and not any(same_configuration(run.identity, one.identity, by="asked") for one in measured)
    ]
    alike = grouped(failed, lambda run: run.identity.key()).values()
    return [*measured, *(Group(tuple(members)) for members in alike)]


def group_row(group: Group, rate: str) -> Row:
    """Return the settings of repeats with the mean of their rate, its SD and their number.

    `rate` is the rate's key, which all rows of a table share.
    """
    repeats = group.repeats()
    deviation = repeats.relative_deviation
    return {
        **_identity(group),
        "repeats": repeats.count,
        "runs": RunList(group.names),
        rate: repeats.centre,
        f"{rate}_sd": None if deviation is None else deviation * repeats.centre,
    }


def configuration_row(group: Group, rate: str) -> Row:
    """Return a configuration's rate over its repeats, and its place under the roof.

    Its intensity is counted where a profile counted one of the runs, else the modelled interval.
    """
    first, points = group.first, group.points
    found = {**_identity(group), "repeats": 0, "runs": RunList(group.names)}
    if first.outcome == "ok":
        low, high = group.repeats().interval or (None, None)
        found = group_row(group, rate) | {f"{rate}_low": low, f"{rate}_high": high}
    lower, upper = group.of_the_roof or (None, None)
    counted = [p.intensity_counted for p in points if p.intensity_counted is not None]
    modelled = [first.metrics.get(name) for name in ("intensity_min", "intensity_max")]
    bounds = (f"{point.bound}{'' if point.bound_sure else '?'}" for point in points)
    return found | {
        TOKENS_PER_S: group.mean(TOKENS_PER_S),
        "attained_gflops": group.mean("attained_gflops"),
        "intensity_min": min(counted) if counted else modelled[0],
        "intensity_max": max(counted) if counted else modelled[1],
        "fraction_of_roof_min": lower,
        "fraction_of_roof_max": upper,
        "bound": ", ".join(dict.fromkeys(bounds)) or None,
        "verdict": _verdict(group),
    }


def _verdict(group: Group) -> str:
    """The worst of its runs' verdicts, or how they ended; of imported ones that they are."""
    if group.first.outcome != "ok":
        return ", ".join(sorted({run.outcome for run in group.runs}))
    worst_first = ("invalid", "suspect", "not judged", "clean")
    worst = min((run.verdict for run in group.runs), key=worst_first.index)
    if recorded(group.runs):
        return worst
    words = MODELLED if group.points else "imported"
    return words if worst == "not judged" else f"{worst}; {words}"


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
