"""The roofs of a roofline figure, merged where they coincide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.profiles.kernel_places import MemoryLevel
from analysis.roofs.ceilings import UsedCeiling
from analysis.runs.points import RooflinePoint
from analysis.runs.quantities import bytes_rate, flops_rate
from bench.records import Ceiling


@dataclass(frozen=True)
class FlatRoof:
    """A compute limit: math modes of one machine that share it, from its ridge on."""

    machine: str
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
    """A memory limit of one machine, up to its highest ridge; `level` where there are several."""

    machine: str
    bytes_per_s: float
    flops_per_s: float
    kind: str
    level: str = ""
    colour: str | None = None  # None: the machine's grey

    @property
    def rate(self) -> str:
        """The limit with its unit, such as `52 GB/s` or `L2 5.5 TB/s`."""
        return f"{self.level} {bytes_rate(self.bytes_per_s)}".lstrip()


@dataclass(frozen=True)
class Roofs:
    """All limits of a figure, and the machines in the order of their greys."""

    machines: tuple[str, ...]
    flat: tuple[FlatRoof, ...]
    sloped: tuple[SlopedRoof, ...]

    @property
    def short_names(self) -> dict[str, str]:
        """A short name for each of several machines; one alone needs none."""
        if len(self.machines) < 2:
            return {}
        return {machine: f"M{number}" for number, machine in enumerate(self.machines, 1)}


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
    """Return the roofs that `points` were held against, and those of `ceilings`, each once.

    A roof belongs to the machine whose label the points carry that stand under it; one that no
    point stands under, to the machine of its device.
    """
    machines = {point.ceiling.device: point.env for point in points}
    owned = [(point.env, point.ceiling) for point in points]
    owned += [(machines.get(one.device, one.device), one) for one in ceilings]
    modes: dict[tuple[str, float, float, str], list[str]] = {}
    for machine, ceiling in owned:
        if ceiling.peak_flops_per_s is None or ceiling.peak_bytes_per_s is None:
            continue
        key = (machine, ceiling.peak_flops_per_s, ceiling.peak_bytes_per_s, ceiling.kind)
        names = modes.setdefault(key, [])
        if ceiling.math_mode not in names:
            names.append(ceiling.math_mode)
    flat = [
        FlatRoof(machine, tuple(names), flops, bandwidth, kind)
        for (machine, flops, bandwidth, kind), names in modes.items()
    ]
    highest: dict[tuple[str, float, str], float] = {}
    for roof in flat:
        line = (roof.machine, roof.bytes_per_s, roof.kind)
        highest[line] = max(highest.get(line, 0.0), roof.flops_per_s)
    sloped = [
        SlopedRoof(machine, bandwidth, flops, kind)
        for (machine, bandwidth, kind), flops in highest.items()
    ]
    return Roofs(
        tuple(dict.fromkeys(roof.machine for roof in flat)),
        tuple(sorted(flat, key=lambda roof: roof.flops_per_s)),
        tuple(sorted(sloped, key=lambda roof: roof.bytes_per_s)),
    )
