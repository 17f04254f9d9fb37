"""What the campaign has measured before, handed out again in the same company.

Two settings are compared by runs that follow each other. A run of an earlier session is therefore
used again only together with the runs that it was measured beside, and only once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path

from bench.config import RunConfig
from bench.machine.identity import environment_id
from bench.records import Environment, RunRecord
from bench.records.folders import readable_records

#: Runs of one session start at most this long after the one before has ended.
_NEIGHBOURS_S = 60.0

Stop = Callable[[RunRecord], bool]


def campaign_records(records: Path, campaign: str, environment: Environment) -> list[RunRecord]:
    """Return the measurements of a campaign on one environment that lie below `records`."""
    here = environment_id(environment)
    return [
        record
        for _, record in readable_records(records)
        if isinstance(record, RunRecord)
        and record.config.campaign == campaign
        and (record.environment is None or environment_id(record.environment) == here)
    ]


class Archive:
    """Records of one campaign on one environment, in the order in which they were measured."""

    def __init__(self, records: Iterable[RunRecord] = ()) -> None:
        known = sorted(records, key=lambda record: record.record_id)
        self._tape = [record for record in known if record.outcome != "interrupted"]
        self._used: set[str] = set()
        self._repeats: dict[str, int] = {}
        for record in known:
            self._note_repeat(record.config)

    def numbered(self, config: RunConfig) -> RunConfig:
        """Return `config` as the next repeat of itself."""
        repeat = self._repeats.get(config.config_id, 0) + 1
        numbered = config.model_copy(update={"repeat": repeat})
        self._note_repeat(numbered)
        return numbered

    def together(self, configs: Sequence[RunConfig], stop: Stop) -> list[RunRecord] | None:
        """Return runs of `configs` that were measured one after the other, or None.

        A run of the first of them alone suffices where `stop` says so.
        """
        wanted = [config.config_id for config in configs]
        for first in range(len(self._tape) - len(wanted) + 1):
            window = self._tape[first : first + len(wanted)]
            if self._fits(window, wanted):
                return self._take(sorted(window, key=lambda one: wanted.index(one.config_id)))
        for record in self._tape:
            if record.config_id == wanted[0] and self._is_free(record) and stop(record):
                return self._take([record])
        return None

    def _fits(self, window: Sequence[RunRecord], wanted: Sequence[str]) -> bool:
        return (
            all(map(self._is_free, window))
            and Counter(record.config_id for record in window) == Counter(wanted)
            and all(map(_neighbours, window, window[1:]))
        )

    def _is_free(self, record: RunRecord) -> bool:
        return record.record_id not in self._used

    def _take(self, records: list[RunRecord]) -> list[RunRecord]:
        self._used.update(record.record_id for record in records)
        return records

    def _note_repeat(self, config: RunConfig) -> None:
        known = self._repeats.get(config.config_id, 0)
        self._repeats[config.config_id] = max(known, config.repeat)


def _neighbours(before: RunRecord, after: RunRecord) -> bool:
    took_s = before.process.real_s if before.process else 0.0
    pause = after.created - before.created - timedelta(seconds=took_s)
    return pause.total_seconds() < _NEIGHBOURS_S
