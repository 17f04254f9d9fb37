"""The columns of a pulled table: one row per run, typed, named as the tracked metrics are."""

from __future__ import annotations

import math
import shlex
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel

from analysis.runs.tracked.explaining import profile_of_each
from bench.config import RunConfig
from bench.records import ResolvedConfig, findings_text
from bench.records.verdict.record_metrics import MEAN_SERIES, PHASES
from tracking import schema
from tracking.reading.run_columns import RunColumns

if TYPE_CHECKING:
    from analysis.runs.points import RooflinePoint
    from analysis.runs.run import Run
    from tracking.reading.run_columns import TrackedRun

Values = list[Any] | npt.NDArray[Any]
Converter = Callable[[list[Any]], "pd.Series[Any]"]

#: Column -> tag.
_TAG_COLUMNS = {
    "kind": schema.KIND,
    "record_id": schema.RECORD_ID,
    "config_id": schema.CONFIG_ID,
    "code": schema.CODE,
    "code_commit": schema.CODE_COMMIT,
    "campaign": schema.CAMPAIGN,
    "env": schema.ENV,
    "device": schema.DEVICE,
    "verdict": schema.VERDICT,
    "findings": schema.FINDINGS,
    "outcome": schema.OUTCOME,
    "reason": schema.REASON,
    "ended_early": schema.ENDED_EARLY,
    "warmup_ended_early": schema.WARMUP_ENDED_EARLY,
    "git_commit": schema.GIT_COMMIT,
    "price": schema.PRICE,
    **{fact: schema.machine_tag(fact) for fact in schema.MACHINE_FACTS},
}
#: Tags whose columns are numbers.
_NUMBER_TAGS = ("device_memory_gb",)

#: Columns of these metrics, by the metrics' own names.
_METRICS = (
    "throughput_images_per_s",
    "throughput_images_per_s_std",  # of an imported ledger that sums up repeats
    "throughput_images_per_s_max",  # of the fastest part that an imported file states
    "throughput_samples_per_s",  # of what is no image: sequences, or a user's own samples
    "throughput_tokens_per_s",
    "claimed_gflops",  # GFLOP/s by an imported file's own count
    "loader_images_per_s",
    "iteration_time_ms_mean",
    "iteration_time_ms_std",
    "iteration_time_ms_p50",
    "iteration_time_ms_p95",
    "iteration_time_ms_p99",
    *(f"{phase}_time_s" for phase in PHASES),
    "window_s",
    "compile_time_s",
    "iterations",
    "attained_gflops",
    "step_gflop",
    "step_gb_compulsory",
    "step_gb_fused",
    "step_gb_eager",
    "intensity_min",
    "intensity_max",
    "parameters",
    "forward_gmac",
    "weights_mb",
    "gradients_mb",
    "optimizer_mb",
    "activations_mb",
    "peak_memory_mb",
    "data_wait_share",
    "communication_share",
    "computation_share",  # these four are of traces
    "exposed_communication_share",
    "exposed_copies_share",
    "idle_share",
    *(f"{series}_mean" for series in MEAN_SERIES),
    "energy_j",
    "energy_j_per_image",
    "energy_j_per_sample",
    "cost_per_million_images",  # of the price that a report was given last
    "cost_per_million_samples",
    "real_s",
    "user_s",
    "system_s",
    "max_rss_mb",
)
_WHOLE_METRICS = ("iterations", "parameters")

#: The same, of the profile that explains the run.
_PROFILE_METRICS = (
    "counted_dram_gb",
    "executed_gflop",
    "intensity_counted",
    "traffic_amplification",
    "device_busy_share",
    "ops_matched_share",
    "ipc",
    "cpi",
    "cache_miss_share",
    "branch_miss_share",
)


def runs_table(
    runs: RunColumns | Iterable[TrackedRun],
    profiles: Sequence[TrackedRun] = (),
    places: Mapping[str, Run | str] | None = None,
) -> pd.DataFrame:
    """Return one row per run, in the order given, with what its profile found.

    With `places`, a placed run or why there is none by run id, also where it stands under its roof.

    A field that the device resolves (`batch_size`, `backend`, ...) has the value used in its own
    column and the one asked for in `<field>_given`. Tags that a user gave are columns `tags.<key>`,
    as in MLflow's own tables. What a run does not have is missing (NA).
    """
    held = runs if isinstance(runs, RunColumns) else RunColumns.of(runs)
    imported = held.has_text(f"tags.{schema.IMPORTED}", "true")
    traces = held.has_text(f"tags.{schema.KIND}", "trace")
    #: What another program ran: nothing was asked for here, and nothing resolved.
    elsewhere = imported | traces
    columns = {
        "run_id": _text(held.run_ids),
        "name": _text(held.plain("name")),
        "status": _each(held, "status", _text),
        "started": _time(held.start_times()),
        "imported": pd.Series(imported, dtype="boolean"),
    }
    for column, tag in _TAG_COLUMNS.items():
        columns[column] = _each(held, f"tags.{tag}", _real if column in _NUMBER_TAGS else _text)
    resolved = ResolvedConfig.model_fields
    for field in RunConfig.model_fields:
        if field in columns:  # env and campaign: the tag holds the label that was used
            continue
        if field in resolved:  # what was asked for is unknown of an imported run
            given = _param(held, field, _text)
            columns[f"{field}_given"] = given.mask(elsewhere)
        else:
            columns[field] = _param(held, field, _converter(RunConfig, field))
    for field in resolved:
        convert = _converter(ResolvedConfig, field)
        used = _param(held, f"resolved_{field}", convert)
        if elsewhere.any():
            used = used.mask(elsewhere, _param(held, field, convert))
        columns[field] = used
    columns["repeats"] = _each(held, "params.repeats", _whole)  # likewise
    for metric in _METRICS:
        convert = _whole if metric in _WHOLE_METRICS else _real
        columns[metric] = convert(held.numbers(metric))
    columns |= _profile_columns(held, traces, profiles)
    if places is not None:
        placed = [places[run_id] for run_id in held.run_ids]
        columns |= _roof_columns(placed)
        modes = [
            None if isinstance(one, str) else one.point and one.point.math_mode for one in placed
        ]
        columns["math_mode"] = columns["math_mode"].fillna(_text(modes))  # of imported runs
    for tag in sorted(tag for tag in held.tag_keys() if not _is_ours(tag)):
        columns[f"tags.{tag}"] = _each(held, f"tags.{tag}", _text)
    table: pd.DataFrame = pd.DataFrame(columns)
    return table


def _profile_columns(
    runs: RunColumns, traces: npt.NDArray[np.bool_], profiles: Sequence[TrackedRun]
) -> dict[str, pd.Series[Any]]:
    """Of the profile that explains each run; a trace says these things of itself."""
    explained = profile_of_each(runs, profiles)
    profiled = [explained.get(run_id) for run_id in runs.run_ids]
    found = {"profile_run_id": _text([one and one.run_id for one in profiled])}
    for metric in _PROFILE_METRICS:
        of_profiles = [math.nan if one is None else one.metrics.get(metric) for one in profiled]
        found[metric] = _real(of_profiles).mask(traces, _real(runs.numbers(metric)))
    return found


def _each(runs: RunColumns, column: str, convert: Converter) -> pd.Series[Any]:
    """Convert a column of texts; each distinct one is converted once."""
    texts, which = runs.distinct(column)
    converted = convert([*texts, None])  # the last, which -1 takes, stands for none
    taken: pd.Series[Any] = converted.take(which).reset_index(drop=True)
    return taken


def _param(runs: RunColumns, param: str, convert: Converter) -> pd.Series[Any]:
    return _each(runs, f"params.{param}", lambda texts: convert(_unquoted(texts)))


def _is_ours(tag: str) -> bool:
    """Whether a tag is this project's or MLflow's, not one that a user gave the run."""
    return tag.startswith(("mlproject.", "mlflow."))


def _unquoted(values: list[str | None]) -> list[str | None]:
    """Undo the shell quotes that `mlflow run` leaves around the parameters it logs."""
    return [_without_quotes(text) if text and text[0] == "'" else text for text in values]


def _without_quotes(text: str) -> str:
    if not (text.endswith("'") and len(text) > 1):
        return text
    try:
        return "".join(shlex.split(text))
    except ValueError:
        return text


def _converter(model: type[BaseModel], field: str) -> Converter:
    """Whole numbers, switches and real numbers by a field's annotation; all else is text."""
    annotation = model.model_fields[field].annotation
    kinds = tuple(k for k in typing.get_args(annotation) or (annotation,) if k is not type(None))
    if float in kinds:
        return _real
    return {(int,): _whole, (bool,): _switch}.get(kinds, _text)


def _text(values: list[Any]) -> pd.Series[Any]:
    column: pd.Series[Any] = pd.Series(values, dtype="string")
    return column


def _real(values: Values) -> pd.Series[Any]:
    """Numbers; `none`, `auto` and what is absent are missing."""
    texts = isinstance(values, list)
    numbers = pd.to_numeric(pd.Series(values, dtype="object" if texts else None), errors="coerce")
    column: pd.Series[Any] = pd.Series(numbers, dtype="float64")
    return column


def _whole(values: Values) -> pd.Series[Any]:
    return _real(values).round().astype("Int64")


def _switch(values: list[Any]) -> pd.Series[Any]:
    known = {"true": True, "false": False}
    return pd.Series([known.get(str(value).lower()) for value in values], dtype="boolean")


def _time(values: npt.NDArray[np.datetime64]) -> pd.Series[Any]:
    column: pd.Series[Any] = pd.Series(values.astype("datetime64[ns]")).dt.tz_localize("UTC")
    return column


#: What a run's point says, by column; rates in GFLOP/s and GB/s as in the metrics.
_OF_POINT: dict[str, tuple[Converter, Callable[[RooflinePoint], Any]]] = {
    "ridge_flop_per_byte": (_real, lambda point: point.roof.ridge_flop_per_byte),
    "attainable_gflops_min": (_real, lambda point: point.attainable_min_flops_per_s / 1e9),
    "attainable_gflops_max": (_real, lambda point: point.attainable_max_flops_per_s / 1e9),
    "fraction_of_roof_min": (_real, lambda point: point.fraction_of_roof_min),
    "fraction_of_roof_max": (_real, lambda point: point.fraction_of_roof_max),
    "fraction_of_peak": (_real, lambda point: point.fraction_of_peak),
    "bound": (_text, lambda point: point.bound),
    "bound_sure": (_switch, lambda point: point.bound_sure),
    "bound_because": (_text, lambda point: point.bound_because),
    "precision_ran": (_text, lambda point: point.precision),
    "math_mode_ran": (_text, lambda point: point.math_mode),
    "peak_gflops": (_real, lambda point: point.roof.peak_flops_per_s / 1e9),
    "peak_gb_per_s": (_real, lambda point: point.roof.peak_bytes_per_s / 1e9),
    "ceiling_kind": (_text, lambda point: point.ceiling.kind),
    "ceiling_source": (_text, lambda point: point.ceiling.source),
    "ceiling_date": (_text, lambda point: point.ceiling.date),
    "ceiling_record_id": (_text, lambda point: point.ceiling_record_id),
    "findings_under_roof": (_text, lambda point: findings_text(point.findings)),
}


def _roof_columns(places: Sequence[Run | str]) -> dict[str, pd.Series[Any]]:
    """`verdict_under_roof` is the run's own verdict, or a worse one that the roof shows."""
    points = [None if isinstance(one, str) else one.point for one in places]
    found = {
        column: convert([None if point is None else value(point) for point in points])
        for column, (convert, value) in _OF_POINT.items()
    }
    found["verdict_under_roof"] = _text(
        [None if isinstance(one, str) else one.verdict for one in places]
    )
    found["not_placed"] = _text([one if isinstance(one, str) else one.refusal for one in places])
    return found
