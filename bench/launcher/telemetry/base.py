"""What the sampler asks of a source; the base case measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench.machine.probes import reason_of

Gauge = Callable[[], float]

#: What the record says of the device besides its series.
DEVICE_FACTS = ("energy_j", "throttle_share", "slowed_share", "foreign_processes")


@dataclass(frozen=True)
class Reading:
    """What a source saw at one instant.

    `energy_j` counts up from any zero, and so do `slowed_s`, the seconds for which power or heat
    held the device below its application clocks; `throttle_reasons` is None where they cannot be
    read.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    energy_j: float | None = None
    throttle_reasons: frozenset[str] | None = None
    slowed_s: Mapping[str, float] | None = None


class Source:
    """Something to sample. `missing` names what it cannot read, with the reason.

    The one source that `measures_device` gives the record its energy, throttling and foreign
    processes.
    """

    name = "none"
    measures_device = False

    def __init__(self, missing: Mapping[str, str] | None = None) -> None:
        self.missing: dict[str, str] = dict(missing or {})

    def read(self) -> Reading:
        """Return the values of this instant."""
        return Reading()

    def foreign_processes(self) -> tuple[str, ...] | None:
        """Return the processes on the device that are not ours, or None if they are unknown."""
        return None

    def _read_gauges(self, gauges: Mapping[str, Gauge]) -> dict[str, float]:
        """Read every gauge; one that fails is left out, its reason kept in `missing`."""
        values = {}
        for name, gauge in gauges.items():
            try:
                values[name] = float(gauge())
            except Exception as error:
                self.missing[name] = reason_of(error)
            else:
                self.missing.pop(name, None)
        return values


class AbsentDevice(Source):
    """A device of which nothing can be sampled: every fact carries the one reason."""

    measures_device = True

    def __init__(self, reason: str, series: tuple[str, ...] = ()) -> None:
        super().__init__(dict.fromkeys((*DEVICE_FACTS, *series), reason))
