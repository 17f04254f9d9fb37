"""The devices of one measurement on several, sampled as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from bench.launcher.telemetry.base import Reading, Source

T = TypeVar("T")

#: Facts of all devices together.
_OF_ALL = frozenset({"energy_j", "throttle_share", "foreign_processes"})


class SeveralDevices(Source):
    """Energy is the devices' sum, throttle reasons and foreign processes are those of any.

    The lowest rank's quantities keep their names, the others' begin with `rank1_`, `rank2_`...
    """

    name = "devices"
    measures_device = True

    def __init__(self) -> None:
        super().__init__()
        self._sources: dict[int, Source] = {}

    def join(self, rank: int, source: Source) -> None:
        """Sample the device of `rank` too, from the next reading on."""
        self._sources[rank] = source
        self._sources = dict(sorted(self._sources.items()))
        self.name = source.name

    def read(self) -> Reading:
        """Read every device; a fact of all is unknown where it is unknown of one."""
        values: dict[str, float] = {}
        readings: list[Reading] = []
        for rank, source in self._sources.items():
            prefix = f"rank{rank}_" if readings else ""
            reading = source.read()
            readings.append(reading)
            values |= {f"{prefix}{name}": value for name, value in reading.values.items()}
            self._note("", source, _OF_ALL)
            self._note(prefix, source, source.missing.keys() - _OF_ALL)
        energy = self._all(readings, lambda reading: reading.energy_j)
        reasons = self._all(readings, lambda reading: reading.throttle_reasons)
        return Reading(
            values,
            None if energy is None else sum(energy),
            None if reasons is None else frozenset().union(*reasons),
        )

    def foreign_processes(self) -> tuple[str, ...] | None:
        """Return the foreign processes of any device, or None if they are unknown of one."""
        found: set[str] = set()
        for source in self._sources.values():
            processes = source.foreign_processes()
            if processes is None:
                self._note("", source, ("foreign_processes",))
                return None
            found.update(processes)
        return tuple(sorted(found))

    def _note(self, prefix: str, source: Source, names: Iterable[str]) -> None:
        """Keep the reasons why `source` lacks the facts `names`."""
        for name in names:
            if name in source.missing:
                self.missing[f"{prefix}{name}"] = source.missing[name]

    @staticmethod
    def _all(readings: list[Reading], of: Callable[[Reading], T | None]) -> list[T] | None:
        found = [of(reading) for reading in readings]
        known = [each for each in found if each is not None]
        return known if known and len(known) == len(found) else None
