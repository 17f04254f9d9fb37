"""What the rooflines of one step share: the roofs of its device, and the key of a marker's area."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from analysis.figures.rooflines.scene import FlatRoof, Slope
from analysis.figures.style import ROOF_GREYS, LegendEntry, Marker, area_pt2
from analysis.profiles.kernel_places import MemoryLevel
from analysis.roofs.ceilings import UsedCeiling
from analysis.runs.quantities import bytes_rate, flops_rate, percent, three_digits

#: Ops and kernels with less of the time than this may lie outside: a counter's increment would
#: stretch the axes by decades.
MIN_SHARE_FOR_LIMITS = 0.005
#: Those with less of the time have no name.
MIN_NAMED_SHARE = 0.01
LEGEND_ENTRY_IN = 1.7
#: Shares of time that the legend shows as examples of the area.
_EXAMPLE_SHARES = (0.01, 0.1)


def device_roofs(
    used: UsedCeiling | None,
    levels: Sequence[MemoryLevel],
    colours: Mapping[MemoryLevel, str] | None = None,
) -> tuple[tuple[Slope, ...], tuple[FlatRoof, ...]]:
    """Return one device's compute limit and a slope for those of `levels` that were measured.

    `DRAM` must be among the levels. A slope has its colour of `colours` instead of a label.
    """
    if used is None:
        return (), ()
    peak, kind, mode = used.roof.peak_flops_per_s, used.ceiling.kind, used.ceiling.math_mode
    rates, dashed = level_rates(used), used.ceiling.kind == "datasheet"
    slopes = []
    for level in sorted((one for one in levels if one in rates), key=lambda one: rates[one]):
        rate = bytes_rate(rates[level])
        group = f"{level} roof {rate} ({kind})"
        ridge = f"ridge at {three_digits(peak / rates[level])} FLOP/byte"
        colour, name = ROOF_GREYS[0], f"{level} {rate}"
        if colours:
            colour, name = colours[level], ""
        slopes.append(Slope(rates[level], peak, colour, dashed, name, group, (group, ridge)))
    words = f"{used.ceiling.device} {mode} {flops_rate(peak)} ({kind})"
    corner = slopes[-1].ridge_flop_per_byte  # where the steepest slope meets it
    label = (mode, flops_rate(peak))
    return tuple(slopes), (FlatRoof(peak, corner, ROOF_GREYS[0], dashed, label, words, (words,)),)


def level_rates(used: UsedCeiling) -> dict[MemoryLevel, float]:
    """Return the bytes/s of each memory level that is known."""
    rates: dict[MemoryLevel, float] = {"DRAM": used.roof.peak_bytes_per_s}
    caches = ((cache.level, cache.peak_bytes_per_s) for cache in used.cache_roofs)
    return rates | {level: rate for level, rate in caches if rate is not None}


def area_entries(shape: Marker, edge: str, whose: str) -> Iterable[LegendEntry]:
    """Yield the legend's examples of a marker's area; `whose` time it is a share of."""
    for share in _EXAMPLE_SHARES:
        label = f"{percent(share)} of the {whose}' time"
        yield LegendEntry(label, edge, shape, "#CCCCCC", area_pt2(share) ** 0.5)


def missing_levels(used: UsedCeiling | None) -> list[str]:
    """Return why a memory level has no slope in the scene of kernels, level by level."""
    caches = {cache.level: cache for cache in used.cache_roofs} if used else {}
    reasons = []
    for level in ("L1", "L2") if used else ():
        if level not in caches:
            reasons.append(f"{level}: its bandwidth was not measured")
        elif caches[level].peak_bytes_per_s is None:
            reasons.append(f"{level}: {caches[level].missing['peak_bytes_per_s']}")
    return reasons
