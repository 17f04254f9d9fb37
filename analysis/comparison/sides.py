"""What a side of a comparison names: `campaign=`, `records=`, run ids, or a filter of MLflow's."""

from __future__ import annotations

import re
from pathlib import Path

from analysis.runs.gather import Gathered, gather_records, split_records
from analysis.runs.observations import Observation
from bench.errors import UserError
from bench.records.folders import read_records

_RUN_ID = re.compile(r"[0-9a-f]{32}")


def read_sides(a: str, b: str) -> tuple[list[Observation], list[Observation]]:
    """Return the runs that each text names, in the order of their configurations.

    Different machines of one label are told apart, on one side or across both. Raises `UserError`
    where nothing matches or a named run is not there, and `TrackingError`.
    """
    one, other = _side(a), _side(b)
    return one.told_apart(other).observations(), other.told_apart(one).observations()


def _side(text: str) -> Gathered:
    words = [word for word in re.split(r"[,\s]+", text.strip()) if word]
    if not words:
        raise UserError("a side is empty: give campaign=NAME, run ids or an MLflow filter")
    if all(_RUN_ID.fullmatch(word) for word in words):
        return _of_run_ids(words)
    gathered = _gathered(text.strip())
    if not gathered.observations():
        unreadable = f" ({gathered.unreadable[0]})" if gathered.unreadable else ""
        raise UserError(f"{text!r}: no measurement matches{unreadable}")
    return gathered


def _gathered(text: str) -> Gathered:
    kind, equals, value = text.partition("=")
    if equals and kind == "campaign":
        return gather_records(campaign=value.strip("'\""))
    if equals and kind == "records":
        return split_records(read_records(Path(value)))
    return gather_records(text)


def _of_run_ids(run_ids: list[str]) -> Gathered:
    quoted = ", ".join(f"'{run_id}'" for run_id in run_ids)
    gathered = gather_records(f"attributes.run_id IN ({quoted})")
    absent = sorted(set(run_ids) - {run.name for run in gathered.observations()})
    if absent:
        why = next((line for line in gathered.unreadable if absent[0] in line), None)
        raise UserError(f"run {absent[0]}: {why or 'no tracked measurement has this id'}")
    return gathered
