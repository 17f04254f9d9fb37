"""Which tracked profile explains which tracked measurement, by their tags alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracking import schema

if TYPE_CHECKING:
    from tracking.search import TrackedRun

#: Equal on both: the configuration, and where it ran. Tags tell no UUID, so of two devices with
#: one name in one machine only the link by the record's id tells which was profiled.
_ALIKE = (schema.CONFIG_ID, schema.ENV, schema.DEVICE)


def profile_of_each(
    runs: Sequence[TrackedRun], profiles: Sequence[TrackedRun]
) -> dict[str, TrackedRun]:
    """Return the profile of each measurement that has one, by the measurement's run id.

    Profiles are the newest first, as the search returns them. One whose numbers are impossible
    explains nothing. One that counted bytes goes before one that did not, then one made of this
    very measurement before one of its configuration.
    """
    possible = [one for one in profiles if one.tags.get(schema.VERDICT) != "invalid"]
    found = {}
    for run in runs:
        fitting = [one for one in possible if _is_of(one, run) or _is_like(one, run)]
        fitting.sort(key=lambda one: ("counted_dram_gb" not in one.metrics, not _is_of(one, run)))
        if fitting:
            found[run.run_id] = fitting[0]
    return found


def _is_of(profile: TrackedRun, run: TrackedRun) -> bool:
    record_id = run.tags.get(schema.RECORD_ID)
    return record_id is not None and profile.tags.get(schema.TIMED_RECORD_ID) == record_id


def _is_like(profile: TrackedRun, run: TrackedRun) -> bool:
    return all(tag in run.tags and profile.tags.get(tag) == run.tags[tag] for tag in _ALIKE)
