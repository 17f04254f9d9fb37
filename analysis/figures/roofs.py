"""The roofs of a roofline figure, merged where they coincide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.ceilings import UsedCeiling
from analysis.kernel_places import MemoryLevel
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
    """A memory limit of one device, up to its highest ridge; `level` where there are several."""

    device: str
    bytes_per_s: float
    flops_per_s: float
    kind: str
    level: str = ""
    colour: str | None = None  # None: the device's grey

    @property
    def rate(self) -> str:
        """The limit with its unit, such as `52 GB/s` or `L2 5.5 TB/s`."""
        return f"{self.level} {bytes_rate(self.bytes_per_s)}".lstrip()


@dataclass(frozen=True)
class Roofs:
    """All limits of a figure, and the devices in the order of their line styles."""

    devices: tuple[str, ...]
    flat: tuple[FlatRoof, ...]
    sloped: tuple[SlopedRoof, ...]


def device_roofs(
    used: UsedCeiling,
    levels: Sequence[MemoryLevel],
    colours: Mapping[MemoryLevel, str] | None = None,
) -> Roofs:
    """Return one device's compute limit and the slopes of those `levels` that were measured.

    `DRAM` is among the levels that can be asked for; `colours` maps levels to colours.
    """
    peak, kind = used.roof.peak_flops_per_s, used.ceiling.kind
    rates: dict[MemoryLevel, float] = {"DRAM": used.roof.peak_bytes_per_s}
    rates |= {
        cache.level: cache.peak_bytes_per_s
        for cache in used.cache_roofs
        if cache.peak_bytes_per_s is not None
    }
    device, shades = used.ceiling.device, colours or {}
    sloped = [
        SlopedRoof(device, rates[level], peak, kind, level, shades.get(level))
        for level in levels
        if level in rates
    ]
    flat_from = max(roof.bytes_per_s for roof in sloped)
    return Roofs(
        (device,),
        (FlatRoof(device, (used.ceiling.math_mode,), peak, flat_from, kind),),
        tuple(sorted(sloped, key=lambda roof: roof.bytes_per_s)),
    )


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
