"""What a sweep needs to know of a run that was measured before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.config import RunConfig
from bench.launcher.recover import recover
from bench.machine.repository import has_changed
from bench.records import Outcome, RunRecord
from bench.records.environment import environment_id
from bench.records.folders import RecordFolder, record_folders


@dataclass(frozen=True)
class PastRun:
    """How one run of a campaign ended."""

    config: RunConfig
    environment_id: str | None  # None where it ended before a device was opened
    outcome: Outcome
    reason: str | None
    record_id: str
    device: str | None = None  # its name; None where it is not known
    code: str | None = None  # the digest of a user's own model; None where it is not known

    @classmethod
    def of(cls, record: RunRecord) -> PastRun:
        """Return what a sweep needs to know of `record`."""
        environment = record.environment
        return cls(
            record.config,
            environment_id(environment) if environment else None,
            record.outcome,
            record.reason,
            record.record_id,
            environment.device.name if environment else None,
            environment.code if environment else None,
        )


_POLL_S = 0.2


@dataclass
class PastRuns:
    """The runs of a campaign on one environment, or on any where `environment` is None.

    Of a configuration and repeat one that went well counts, else the last. A run of a user's own
    model counts only while its source is the same. `elsewhere` are runs
    that only the tracking server knows, their records folder being another.
    """

    records: Path
    campaign: str
    environment: str | None
    elsewhere: Iterable[PastRun] = ()
    retry_failed: bool = False  # what failed before the first `refresh` is measured again

    def __post_init__(self) -> None:
        self._retried: frozenset[str] | None = None
        self._read: set[str] = set()
        self._last: dict[tuple[str, int], PastRun] = {}
        self._has_changed = cache(has_changed)
        for past in self.elsewhere:
            self.add(past)

    def refresh(self) -> None:
        """Read the records that came since the last call; each is read once."""
        for folder in record_folders(self.records, missing_ok=True):
            if folder.record_id in self._read or not folder.record.is_file():
                continue
            self._read.add(folder.record_id)
            record = folder.readable_record()
            if isinstance(record, RunRecord) and record.config.campaign == self.campaign:
                self.add(PastRun.of(record))
        if self._retried is None:
            known = self._last.values() if self.retry_failed else ()
            self._retried = frozenset(past.record_id for past in known)

    def add(self, past: PastRun) -> None:
        """Note one run; one of another environment, or of changed source, is left out."""
        if self.environment is not None and past.environment_id not in (self.environment, None):
            return
        if self._has_changed(past.config.arch, past.code):
            return
        key = (past.config.config_id, past.config.repeat)
        known = self._last.get(key)
        # A record that arrives late, from a machine that was lost, is older than its replacement.
        if known is None or _rank(known) <= _rank(past):
            self._last[key] = past

    def of(self, config: RunConfig) -> PastRun | None:
        """Return the run of this configuration and repeat that counts."""
        return self._last.get((config.config_id, config.repeat))

    def too_large(self, config: RunConfig, device: str | None = None) -> PastRun | None:
        """Return a run that ran out of memory with a smaller batch of the same configuration.

        One that is to be measured again does not count, nor does one whose batch, or a larger one,
        has gone well in another run.
        Where the runs are those of many machines, `device` names whose memory is meant.
        """
        there = [
            past
            for past in self._last.values()
            if past.environment_id is not None and device in (None, past.device)
        ]
        smaller = [
            past
            for past in there
            if past.outcome == "oom"
            and past.record_id not in (self._retried or ())
            and _batch(past.config) < _batch(config)
        ]
        if not smaller:
            return None
        family = _family(config)
        fits = [
            _batch(past.config)
            for past in there
            if past.outcome == "ok" and _family(past.config) == family
        ]
        too_large = (past for past in smaller if _family(past.config) == family)
        return next((p for p in too_large if _batch(p.config) > max(fits, default=-1)), None)


def take_over(records: Path, waiting: Callable[[str], None]) -> list[RecordFolder]:
    """Complete the records of a killed sweep, and return the folders that this changed.

    A worker whose launcher was killed measures on; it is waited for, since it keeps the device
    busy and its measurement is as good as any. `waiting` receives its identifier.
    """
    changed = []
    for folder in record_folders(records, missing_ok=True):
        if folder.record.is_file():
            continue
        if folder.orphaned():
            waiting(folder.record_id)
            while folder.orphaned():
                time.sleep(_POLL_S)
        if not folder.in_use() and recover(folder) is not None:
            changed.append(folder)
    return changed


def _rank(past: PastRun) -> tuple[bool, str]:
    return past.outcome == "ok", past.record_id


def _family(config: RunConfig) -> str:
    return config.model_copy(update={"batch_size": 1, "seed": 0}).config_id


def _batch(config: RunConfig) -> int:
    """`auto` is never larger than a number: its batch is not known before it runs."""
    return 0 if config.batch_size == "auto" else config.batch_size
