"""The roofs of a roofline figure, merged where they coincide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.points import RooflinePoint
from analysis.quantities import bytes_rate, flops_rate
from bench.records import Ceiling


@dataclass(frozen=True)
class FlatRoof:
    """A compute limit: math modes of one device that share it, from its ridge on."""

    device: str
    modes: tuple[str, ...]
    flops_per_s: float
    bytes_per_s: float
    kind: str

    @property
    def rate(self) -> str:
        """The limit with its unit, such as `195 GFLOP/s`."""
        return flops_rate(self.flops_per_s)


@dataclass(frozen=True)
class SlopedRoof:
    """A memory limit of one device, up to its highest ridge."""

    device: str
    bytes_per_s: float
    flops_per_s: float
    kind: str

    @property
    def rate(self) -> str:
        """The limit with its unit, such as `52 GB/s`."""
        return bytes_rate(self.bytes_per_s)


@dataclass(frozen=True)
class Roofs:
    """All limits of a figure, and the devices in the order of their line styles."""

    devices: tuple[str, ...]
    flat: tuple[FlatRoof, ...]
    sloped: tuple[SlopedRoof, ...]


def collect_roofs(points: Sequence[RooflinePoint], ceilings: Iterable[Ceiling] = ()) -> Roofs:
    """Return the roofs that `points` were held against, and those of `ceilings`, each once."""
    modes: dict[tuple[str, float, float, str], list[str]] = {}
    for ceiling in (*(point.ceiling for point in points), *ceilings):
        if ceiling.peak_flops_per_s is None or ceiling.peak_bytes_per_s is None:
            continue
        key = (ceiling.device, ceiling.peak_flops_per_s, ceiling.peak_bytes_per_s, ceiling.kind)
        names = modes.setdefault(key, [])
        if ceiling.math_mode not in names:
            names.append(ceiling.math_mode)
    flat = [
        FlatRoof(device, tuple(names), flops, bandwidth, kind)
        for (device, flops, bandwidth, kind), names in modes.items()
    ]
    highest: dict[tuple[str, float, str], float] = {}
    for roof in flat:
        line = (roof.device, roof.bytes_per_s, roof.kind)
        highest[line] = max(highest.get(line, 0.0), roof.flops_per_s)
    sloped = [
        SlopedRoof(device, bandwidth, flops, kind)
        for (device, bandwidth, kind), flops in highest.items()
    ]
    return Roofs(
        tuple(dict.fromkeys(roof.device for roof in flat)),
        tuple(sorted(flat, key=lambda roof: roof.flops_per_s)),
        tuple(sorted(sloped, key=lambda roof: roof.bytes_per_s)),
    )
