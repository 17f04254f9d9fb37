"""The table of tracked runs: one row per run, typed columns, named as the tracked metrics are."""

from __future__ import annotations

import shlex
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel

from bench.config import RunConfig
from bench.errors import Unknown
from bench.records import ResolvedConfig, findings_text
from tracking import schema
from tracking.tracked_runs import plain

if TYPE_CHECKING:
    from analysis.presentation.columns import Row
    from analysis.runs.run import Run


def tracked_frame(
    runs: pd.DataFrame,
    profiles: pd.DataFrame | None = None,
    placed: Mapping[str, Run | Unknown] | None = None,
) -> pd.DataFrame:
    """Return one row per run of a search, in the order given, with what its profile found.

    The columns are those of `tracking.schema` and the settings. With `placed`, the run with its
    place or why there is none by run id, also where it stands under its roof; machines of one label
    then have their numbers.

    A field that the device resolves (`batch_size`, `backend`, ...) has the value used in its own
    column and the one asked for in `<field>_given`. Tags that a user gave are columns `tags.<key>`,
    as in MLflow's own tables. What a run does not have is missing (NA).
    """
    imported = _texts(runs, f"tags.{schema.IMPORTED}", "boolean").fillna(False)
    traces = (_texts(runs, f"tags.{schema.KIND}") == "trace").fillna(False)
    columns = {
        "run_id": _column("string", runs["run_id"].to_numpy()),
        "name": _column("string", runs["name"].to_numpy()),
        "status": _texts(runs, "status"),
        "started": runs["start_time"].dt.as_unit("ns").reset_index(drop=True),
        "imported": imported,
        "git_commit": _texts(runs, f"tags.{schema.GIT_COMMIT}"),
        "user": _texts(runs, f"tags.{schema.USER}"),
    }
    for name, (dtype, _) in schema.columns_of("tag"):
        columns[name] = _texts(runs, f"tags.mlproject.{name}", dtype)
    columns |= _settings(runs, imported | traces, known=set(columns))
    of_metrics = {name: _number(runs, name, c.dtype) for name, c in schema.columns_of("metric")}
    of_profiles, profile_run_id = _profiled(runs, profiles)
    columns |= of_metrics | {"profile_run_id": profile_run_id}
    for name, (dtype, _) in schema.columns_of("profile"):  # a trace says them of itself
        columns[name] = _number(runs, name).where(traces, _number(of_profiles, name, dtype))
    if placed is not None:
        columns |= _places([placed[run_id] for run_id in runs["run_id"]], columns)
    not_a_users = ("tags.mlproject.", "tags.mlflow.")
    for name in sorted(name for name in runs.columns if name.startswith("tags.")):
        if not name.startswith(not_a_users) and runs[name].notna().any():
            columns[name] = _texts(runs, name)
    table: pd.DataFrame = pd.DataFrame(columns)
    return table


def _settings(
    runs: pd.DataFrame, elsewhere: pd.Series[Any], known: Collection[str]
) -> dict[str, pd.Series[Any]]:
    """Of what ran `elsewhere`, nothing was asked for here and nothing resolved."""

    def param(name: str, kind: str) -> pd.Series[Any]:
        return _texts(runs, f"params.{name}", kind, _unquoted)

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


def _profiled(
    runs: pd.DataFrame, profiles: pd.DataFrame | None
) -> tuple[pd.DataFrame, pd.Series[Any]]:
    """The row of the profile that explains each run, empty where there is none, and its run id.

    Profiles are the newest first, as the search returns them. One whose numbers are impossible
    explains nothing. One that counted bytes goes before one that did not, then one made of this
    very measurement before one of its step. Runs of older versions have no id of their step: only
    profiles made of them explain them.
    """
    if profiles is None:
        profiles = runs.iloc[:0]
    verdicts, counted = plain(profiles, f"tags.{schema.VERDICT}"), "metrics.counted_dram_gb"
    bytes_of = plain(profiles, counted)
    order = sorted(range(len(profiles)), key=lambda at: bytes_of[at] is None)
    timed = plain(profiles, f"tags.{schema.TIMED_RECORD_ID}")
    best: dict[tuple[str | None, ...], int] = {}
    steps = list(zip(*(plain(profiles, f"tags.{tag}") for tag in _ALIKE), strict=True))
    for at in order:
        if verdicts[at] != "invalid":
            best.setdefault((timed[at],), at)
            best.setdefault(steps[at], at)
    found = []
    tags = (plain(runs, f"tags.{tag}") for tag in (schema.RECORD_ID, *_ALIKE))
    for record_id, *step in zip(*tags, strict=True):
        keys = ((record_id,), tuple(step))
        fitting = [best[key] for key in keys if None not in key and key in best]
        found.append(min(fitting, key=lambda at: bytes_of[at] is None, default=-1))
    explaining = profiles.reset_index(drop=True).reindex(found).reset_index(drop=True)
    return explaining, _column("string", explaining["run_id"].to_numpy())


def _places(
    runs: Sequence[Run | Unknown], columns: Mapping[str, pd.Series[Any]]
) -> dict[str, pd.Series[Any]]:
    rows = [_place_row(run) for run in runs]
    types: dict[str, str] = {name: column.dtype for name, column in schema.columns_of("place")}
    types |= {"env": "string", **dict.fromkeys(schema.OF_ITERATION, "float64")}
    found = {key: _column(dtype, [row.get(key) for row in rows]) for key, dtype in types.items()}
    for key in schema.OF_ITERATION:
        found[key] = found[key].mask(found["bound"].isna(), columns[key])
    found["env"] = found["env"].fillna(columns["env"])
    found["math_mode"] = columns["math_mode"].fillna(found["math_mode_ran"])  # of imported runs
    return found


def _place_row(run: Run | Unknown) -> Row:
    """`verdict_under_roof` is the run's own verdict, or a worse one that the roof shows."""
    if isinstance(run, Unknown):
        return {"not_placed": run.reason}
    found: Row = {"verdict_under_roof": run.verdict, "not_placed": run.refusal}
    if run.record is not None and run.record.environment is not None:
        found["env"] = run.record.environment.label  # which has its number
    if run.point is not None:
        found |= {**run.point.row, "findings_under_roof": findings_text(run.point.findings)}
        found["precision_ran"] = run.precision
    return found


def _texts(
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
