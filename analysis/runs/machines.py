"""Machines that carry one label though they differ, told apart by a number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from analysis.roofs.devices import alike_devices
from bench.records import CeilingsRecord, Environment, ProfileRecord, RunRecord

Record = TypeVar("Record", RunRecord, CeilingsRecord, ProfileRecord)


class Labels:
    """The label of each kind of machine: its own, with `(1)`, `(2)` where several have the same.

    Cloud machines of one type are one kind, whichever of them ran. The first record of a kind
    stands for it, and kinds are numbered by age.
    """

    def __init__(self, records: Iterable[RunRecord | CeilingsRecord | ProfileRecord]) -> None:
        self._kinds: dict[str, list[Environment]] = {}
        for record in sorted(records, key=lambda one: (one.created, one.record_id)):
            if record.environment is not None:
                kinds = self._kinds.setdefault(record.environment.label, [])
                if not any(alike_devices(known, record.environment) for known in kinds):
                    kinds.append(record.environment)

    def on(self, record: Record) -> Record:
        """Return the record under its machine's label."""
        environment = record.environment
        if environment is None or len(kinds := self._kinds[environment.label]) == 1:
            return record
        number = next(n for n, kind in enumerate(kinds, 1) if alike_devices(kind, environment))
        own = environment.model_copy(update={"label": f"{environment.label} ({number})"})
        return record.model_copy(update={"environment": own})
