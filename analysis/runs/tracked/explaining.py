"""Which profile explains which tracked run."""

from __future__ import annotations

from collections.abc import Sequence

from tracking import schema
from tracking.reading.run_columns import RunColumns, TrackedRun

#: Equal on both: the step, and where it ran. Tags hold no UUID, so of two devices with one name in
#: one machine only the link by the record's id shows which was profiled.
_ALIKE = (schema.STEP_ID, schema.ENV, schema.DEVICE)


def profile_of_each(runs: RunColumns, profiles: Sequence[TrackedRun]) -> dict[str, TrackedRun]:
    """Return the profile of each measurement that has one, by the measurement's run id.

    Profiles are the newest first, as the search returns them. One whose numbers are impossible
    explains nothing. One that counted bytes goes before one that did not, then one made of this
    very measurement before one of its step. Runs of older versions have no id of their step: only
    profiles made of them explain them.
    """
    of_record: dict[str, list[TrackedRun]] = {}
    alike: dict[tuple[str, ...], list[TrackedRun]] = {}
    for one in profiles:
        if one.tags.get(schema.VERDICT) == "invalid":
            continue
        if timed := one.tags.get(schema.TIMED_RECORD_ID):
            of_record.setdefault(timed, []).append(one)
        if (key := _likeness(one)) is not None:
            alike.setdefault(key, []).append(one)
    found: dict[str, TrackedRun] = {}
    if not profiles:
        return found
    record_ids = runs.plain(f"tags.{schema.RECORD_ID}")
    keys = zip(*(runs.plain(f"tags.{tag}") for tag in _ALIKE), strict=True)
    for run_id, record_id, key in zip(runs.run_ids, record_ids, keys, strict=True):
        fitting = [*of_record.get(record_id, []), *alike.get(key, [])]
        if fitting:  # min takes the first of equals: own before alike, then the newest
            found[run_id] = min(fitting, key=lambda one: "counted_dram_gb" not in one.metrics)
    return found


def _likeness(run: TrackedRun) -> tuple[str, ...] | None:
    """What is equal on a profile and a measurement that belong together; None if not all known."""
    values = [run.tags.get(tag) for tag in _ALIKE]
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(_ALIKE) else None
