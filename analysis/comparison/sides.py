"""What a side of a comparison names: `campaign=`, `records=`, run ids, or a filter of MLflow's."""

from __future__ import annotations

import re
from pathlib import Path

from analysis.gather import Gathered, gather_records, split_records
from analysis.observations import Observation
from bench.errors import UserError
from bench.folders import read_records

_RUN_ID = re.compile(r"[0-9a-f]{32}")


def read_side(text: str) -> list[Observation]:
    """Return the runs that `text` names, in the order of their configurations.

    Raises `UserError` where nothing matches or a named run is not there, and `TrackingError`.
    """
    words = [word for word in re.split(r"[,\s]+", text.strip()) if word]
    if not words:
        raise UserError("a side is empty: give campaign=NAME, run ids or an MLflow filter")
    if all(_RUN_ID.fullmatch(word) for word in words):
        return _of_run_ids(words)
    gathered = _gathered(text.strip())
    runs = gathered.observations()
    if not runs:
        unreadable = f" ({gathered.unreadable[0]})" if gathered.unreadable else ""
        raise UserError(f"{text!r}: no measurement matches{unreadable}")
    return runs


def _gathered(text: str) -> Gathered:
    kind, equals, value = text.partition("=")
    if equals and kind == "campaign":
        return gather_records(campaign=value.strip("'\""))
    if equals and kind == "records":
        return split_records(read_records(Path(value)))
    return gather_records(text)


def _of_run_ids(run_ids: list[str]) -> list[Observation]:
    quoted = ", ".join(f"'{run_id}'" for run_id in run_ids)
    gathered = gather_records(f"attributes.run_id IN ({quoted})")
    runs = gathered.observations()
    absent = sorted(set(run_ids) - {run.name for run in runs})
    if absent:
        why = next((line for line in gathered.unreadable if absent[0] in line), None)
        raise UserError(f"run {absent[0]}: {why or 'no tracked measurement has this id'}")
    return runs
