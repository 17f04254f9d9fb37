"""What a side of a comparison names: `campaign=`, `records=`, run ids, or a filter of MLflow's."""

from __future__ import annotations

import re
from pathlib import Path

from analysis.runs.placed import Run
from analysis.runs.record_set import RecordSet, pull_records
from bench.errors import UserError
from bench.records.folders import read_records

_RUN_ID = re.compile(r"[0-9a-f]{32}")


def read_sides(a: str, b: str) -> tuple[list[Run], list[Run]]:
    """Return the runs that each text names, in the order of their configurations.

    Different machines of one label are told apart, on one side or across both. Raises `UserError`
    where nothing matches or a named run is not there, and `TrackingError`.
    """
    one, other = _side(a), _side(b)
    return one.with_unique_labels(other).runs(), other.with_unique_labels(one).runs()


def _side(text: str) -> RecordSet:
    words = [word for word in re.split(r"[,\s]+", text.strip()) if word]
    if not words:
        raise UserError("a side is empty: give campaign=NAME, run ids or an MLflow filter")
    if all(_RUN_ID.fullmatch(word) for word in words):
        return _of_run_ids(words)
    gathered = _gathered(text.strip())
    if not gathered.runs():
        unreadable = f" ({gathered.unreadable[0]})" if gathered.unreadable else ""
        raise UserError(f"{text!r}: no measurement matches{unreadable}")
    return gathered


def _gathered(text: str) -> RecordSet:
    kind, equals, value = text.partition("=")
    if equals and kind == "campaign":
        return pull_records(campaign=value.strip("'\""))
    if equals and kind == "records":
        return RecordSet.of(read_records(Path(value)))
    return pull_records(text)


def _of_run_ids(run_ids: list[str]) -> RecordSet:
    quoted = ", ".join(f"'{run_id}'" for run_id in run_ids)
    gathered = pull_records(f"attributes.run_id IN ({quoted})")
    absent = sorted(set(run_ids) - {run.name for run in gathered.runs()})
    if absent:
        why = next((line for line in gathered.unreadable if absent[0] in line), None)
        raise UserError(f"run {absent[0]}: {why or 'no tracked measurement has this id'}")
    return gathered
