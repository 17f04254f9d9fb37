"""The table of tracked runs: one row per run, typed columns, named as the tracked metrics are."""

from __future__ import annotations

import shlex
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel

from analysis.columns import metric_columns
from analysis.runs.frame import Row, point_row
from bench.config import RunConfig
from bench.errors import Unknown
from bench.records import ResolvedConfig, findings_text
from bench.records.metrics import MEAN_SERIES, PHASES
from tracking import schema
from tracking.reading.tracked_runs import TrackedRun, plain, runs_table

if TYPE_CHECKING:
    from analysis.runs.run import Run

#: Columns of the tags `mlproject.<column>`.
_TAGS = (
    *("kind", "record_id", "config_id", "code", "code_commit", "campaign", "env", "device"),
    *("verdict", "findings", "outcome", "reason", "ended_early", "warmup_ended_early"),
    *("window_class", "price"),
    *schema.MACHINE_FACTS,
)
_WHOLE_METRICS = ("iterations", "parameters", "first_steady_iteration")
#: Columns of metrics, by their names: those that can be compared, and these.
_METRICS = (
    *(*metric_columns(), *_WHOLE_METRICS, "loader_images_per_s", "window_s"),
    "pace_half_width",
    *(f"{phase}_time_s" for phase in PHASES),
    *("throughput_images_per_s_std", "throughput_images_per_s_max", "claimed_gflops"),  # imported
    *("step_gflop", "step_gb_compulsory", "step_gb_fused", "step_gb_eager", "forward_gmac"),
    *("intensity_min", "intensity_max"),
    *("weights_mb", "gradients_mb", "optimizer_mb", "activations_mb", "communication_share"),
    *("computation_share", "exposed_communication_share", "exposed_copies_share", "idle_share"),
    *(f"{series}_mean" for series in MEAN_SERIES),
    *("cost_per_million_images", "cost_per_million_samples"),  # of the last report's price
)
#: The metrics of the profile that explains a run.
_PROFILE_METRICS = (
    *("counted_dram_gb", "executed_gflop", "intensity_counted", "traffic_amplification", "ipc"),
    *("cpi", "device_busy_share", "ops_matched_share", "cache_miss_share", "branch_miss_share"),
)
#: What a place says otherwise than the run's own metrics: it is of the iteration as it was placed.
#: Several batches of an iteration move fewer bytes than as many alone, and a profile counts only if
#: it passes every check against this run.
_OF_ITERATION = (
    *("attained_gflops", "intensity_min", "intensity_max", "intensity_counted"),
    "traffic_amplification",
)
#: What a run with its place says, by the names in `_roof_row`.
_ROOF_TEXTS = (
    *("env", "bound", "bound_because", "precision_ran", "math_mode_ran", "not_placed"),
    *("ceiling_kind", "ceiling_source", "ceiling_date", "ceiling_record_id"),
    *("verdict_under_roof", "findings_under_roof"),
)
_ROOF_NUMBERS = (
    *("ridge_flop_per_byte", "attainable_gflops_min", "attainable_gflops_max", "peak_gflops"),
    *("peak_gb_per_s", "fraction_of_roof_min", "fraction_of_roof_max", "fraction_of_peak"),
    *_OF_ITERATION,
)


def tracked_frame(
    runs: pd.DataFrame | Iterable[TrackedRun],
    profiles: Sequence[TrackedRun] = (),
    placed: Mapping[str, Run | Unknown] | None = None,
) -> pd.DataFrame:
    """Return one row per run, in the order given, with what its profile found.

    With `placed`, the run with its place or why there is none by run id, also where it stands under
    its roof. Machines of one label then have their numbers.

    A field that the device resolves (`batch_size`, `backend`, ...) has the value used in its own
    column and the one asked for in `<field>_given`. Tags that a user gave are columns `tags.<key>`,
    as in MLflow's own tables. What a run does not have is missing (NA).
    """
    held = runs if isinstance(runs, pd.DataFrame) else runs_table(runs)
    imported = _each(held, f"tags.{schema.IMPORTED}", "boolean").fillna(False)
    traces = (_each(held, f"tags.{schema.KIND}") == "trace").fillna(False)
    columns = {
        "run_id": _column("string", held["run_id"].to_numpy()),
        "name": _column("string", held["name"].to_numpy()),
        "status": _each(held, "status"),
        "started": held["start_time"].dt.as_unit("ns").reset_index(drop=True),
        "imported": imported,
        "git_commit": _each(held, f"tags.{schema.GIT_COMMIT}"),
        "user": _each(held, f"tags.{schema.USER}"),
    }
    for tag in _TAGS:
        kind = "float64" if tag == "device_memory_gb" else "string"
        columns[tag] = _each(held, f"tags.mlproject.{tag}", kind)
    columns |= _settings(held, imported | traces, known=set(columns))
    for metric in _METRICS:
        kind = "Int64" if metric in _WHOLE_METRICS else "float64"
        columns[metric] = _number(held, metric, kind)
    explaining = profile_of_each(held, profiles)
    profiled = [explaining.get(run_id) for run_id in held["run_id"]]
    columns["profile_run_id"] = _column("string", [one and one.run_id for one in profiled])
    for metric in _PROFILE_METRICS:  # a trace says them of itself
        of_profiles = _column("float64", [one and one.metrics.get(metric) for one in profiled])
        columns[metric] = of_profiles.mask(traces, _number(held, metric))
    if placed is not None:
        columns |= _roof_columns([placed[run_id] for run_id in held["run_id"]], columns)
    not_a_users = ("tags.mlproject.", "tags.mlflow.")
    for name in sorted(held.columns):
        if (
            name.startswith("tags.")
            and not name.startswith(not_a_users)
            and held[name].notna().any()
        ):
            columns[name] = _each(held, name)
    table: pd.DataFrame = pd.DataFrame(columns)
    return table


def _settings(
    runs: pd.DataFrame, elsewhere: pd.Series[Any], known: Collection[str]
) -> dict[str, pd.Series[Any]]:
    """Of what ran `elsewhere`, nothing was asked for here and nothing resolved."""

    def param(name: str, kind: str) -> pd.Series[Any]:
        return _each(runs, f"params.{name}", kind, _unquoted)

    found, resolved = {"repeats": param("repeats", "Int64")}, ResolvedConfig.model_fields
    for field in RunConfig.model_fields:
        if field in resolved:
            found[f"{field}_given"] = param(field, "string").mask(elsewhere)
        elif field not in known:  # a tag has the label that was used
            found[field] = param(field, _kind(RunConfig, field))
    for field in resolved:
        kind = _kind(ResolvedConfig, field)
        found[field] = param(f"resolved_{field}", kind).mask(elsewhere, param(field, kind))
    return found


#: Equal on both: the step, and where it ran. Tags hold no UUID, so of two devices with one name in
#: one machine only the link by the record's id shows which was profiled.
_ALIKE = (schema.STEP_ID, schema.ENV, schema.DEVICE)


def profile_of_each(runs: pd.DataFrame, profiles: Sequence[TrackedRun]) -> dict[str, TrackedRun]:
    """Return the profile of each measurement that has one, by the measurement's run id.

    Profiles are the newest first, as the search returns them. One whose numbers are impossible
    explains nothing. One that counted bytes goes before one that did not, then one made of this
    very measurement before one of its step. Runs of older versions have no id of their step: only
    profiles made of them explain them.
    """
    best: dict[tuple[str | None, ...], TrackedRun] = {}
    for one in sorted(profiles, key=_without_bytes):
        if one.tags.get(schema.VERDICT) != "invalid":
            best.setdefault((one.tags.get(schema.TIMED_RECORD_ID),), one)
            best.setdefault(tuple(map(one.tags.get, _ALIKE)), one)
    found: dict[str, TrackedRun] = {}
    tags = [plain(runs, f"tags.{tag}") for tag in (schema.RECORD_ID, *_ALIKE)] if best else []
    for run_id, record_id, *step in zip(runs["run_id"], *tags, strict=True) if best else ():
        keys = ((record_id,), tuple(step))
        if fitting := [best[key] for key in keys if None not in key and key in best]:
            found[run_id] = min(fitting, key=_without_bytes)  # of equals its own, the first
    return found


def _without_bytes(profile: TrackedRun) -> bool:
    return "counted_dram_gb" not in profile.metrics


def _roof_columns(
    runs: Sequence[Run | Unknown], columns: Mapping[str, pd.Series[Any]]
) -> dict[str, pd.Series[Any]]:
    rows = [_roof_row(run) for run in runs]
    types = dict.fromkeys(_ROOF_TEXTS, "string") | dict.fromkeys(_ROOF_NUMBERS, "float64")
    types["bound_sure"] = "boolean"
    found = {key: _column(kind, [row.get(key) for row in rows]) for key, kind in types.items()}
    for key in _OF_ITERATION:
        found[key] = found[key].mask(found["bound"].isna(), columns[key])
    found["env"] = found["env"].fillna(columns["env"])
    found["math_mode"] = columns["math_mode"].fillna(found["math_mode_ran"])  # of imported runs
    return found


def _roof_row(run: Run | Unknown) -> Row:
    """`verdict_under_roof` is the run's own verdict, or a worse one that the roof shows."""
    if isinstance(run, Unknown):
        return {"not_placed": run.reason}
    found: Row = {"verdict_under_roof": run.verdict, "not_placed": run.refusal}
    if run.record is not None and run.record.environment is not None:
        found["env"] = run.record.environment.label  # which has its number
    if run.point is not None:
        found |= {**point_row(run.point), "findings_under_roof": findings_text(run.point.findings)}
        found |= {"precision_ran": run.precision, "math_mode_ran": run.point.ceiling.math_mode}
    return found


def _each(
    runs: pd.DataFrame, column: str, kind: str = "string", read: Callable[[str], str] = str
) -> pd.Series[Any]:
    """Convert a column of texts; each distinct one is converted once."""
    if column not in runs:
        return _column(kind, [None] * len(runs))
    texts = runs[column].cat
    converted = _column(
        kind, [*map(read, texts.categories), None]
    )  # -1 takes the last: it has none
    taken: pd.Series[Any] = converted.take(texts.codes.to_numpy()).reset_index(drop=True)
    return taken


def _number(runs: pd.DataFrame, metric: str, kind: str = "float64") -> pd.Series[Any]:
    name = f"metrics.{metric}"
    return _column(kind, runs[name].to_numpy() if name in runs else [None] * len(runs))


def _unquoted(text: str) -> str:
    """Undo the shell quotes that `mlflow run` leaves around the parameters it logs."""
    if len(text) < 2 or not (text[0] == text[-1] == "'"):
        return text
    try:
        return "".join(shlex.split(text))
    except ValueError:
        return text


def _kind(model: type[BaseModel], field: str) -> str:
    """Whole numbers, switches and real numbers by a field's annotation; all else is text."""
    annotation = model.model_fields[field].annotation
    kinds = tuple(k for k in typing.get_args(annotation) or (annotation,) if k is not type(None))
    if float in kinds:
        return "float64"
    if any(typing.get_args(kind)[:1] == (int,) for kind in kinds):  # a number or `auto`
        return "Int64"
    return {(int,): "Int64", (bool,): "boolean"}.get(kinds, "string")


def _column(kind: Any, values: list[Any] | npt.NDArray[Any]) -> pd.Series[Any]:
    """Values as one of pandas' types; of numbers `none`, `auto` and what is absent are missing."""
    if kind == "boolean":
        switches = {"true": True, "false": False}
        values = [switches.get(f"{value}".lower()) for value in values]
    elif kind != "string":
        texts = "object" if isinstance(values, list) else None
        numbers = pd.to_numeric(pd.Series(values, dtype=texts), errors="coerce").astype("float64")
        values = (numbers.round() if kind == "Int64" else numbers).to_numpy()
    column: pd.Series[Any] = pd.Series(values).astype(kind)
    return column
