"""The roofline of runs: each under the roof of the machine that it ran on.

Colour is the model, the marker the math mode, its size the batch size. Without counters a run is a
horizontal interval of intensity with an open marker at each end; a counted run is one filled
marker. Roofs are grey, solid if measured and dashed if from a datasheet, and carry their names and
rates. Where there are several machines, their short names stand at their roofs and their runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from analysis.figures.rooflines.scene import (
    FlatRoof,
    Line,
    Mark,
    Scene,
    Slope,
    limits_of,
    roof_entries,
)
from analysis.figures.style import MARKERS, OTHER_MODELS, ROOF_GREYS, LegendEntry, model_colours
from analysis.runs.points import RooflinePoint
from analysis.runs.quantities import (
    bytes_rate,
    flops_rate,
    interval,
    percent_interval,
    three_digits,
)
from bench.records import Ceiling

#: More runs than this are drawn thinner and half transparent, so that a crowd shows its density.
_CROWD = 40
#: Diameters of markers: of a figure's smallest and largest batch, and of the only one.
_SMALLEST_PT, _LARGEST_PT, _ONLY_PT = 3.2, 7.6, 4.0
_CROWDED = 0.6
#: Batch sizes that the legend names, spread over those that are there.
_NAMED_SIZES = 4


class _Limit(NamedTuple):
    machine: str
    flops_per_s: float
    bytes_per_s: float
    kind: str


class _Machines:
    """The machines of a figure: a grey for each, and a short name where there are several."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(dict.fromkeys(names))

    def grey(self, machine: str) -> str:
        return ROOF_GREYS[self._names.index(machine) % len(ROOF_GREYS)]

    def short(self, machine: str) -> str:
        several = len(self._names) > 1 and machine in self._names
        return f"M{self._names.index(machine) + 1}" if several else ""

    def group(self, limit: _Limit) -> str:
        short = self.short(limit.machine)
        return f"{short}: {limit.machine}, {limit.kind} roof" if short else f"{limit.kind} roof"

    def entries(self) -> list[LegendEntry]:
        return [
            LegendEntry(f"{short}: {machine}", self.grey(machine), line_pt=1.2)
            for machine in self._names
            if (short := self.short(machine))
        ]


def run_scene(
    points: Sequence[RooflinePoint],
    *,
    ceilings: Iterable[Ceiling] = (),
    colours: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
) -> Scene:
    """Return the scene of `points` and their roofs; `ceilings` adds roofs that no point uses.

    `colours` maps models to colours, to keep them the same in several figures; `names` maps
    record ids to the names that hovering shows.
    """
    modes = _limits(points, ceilings)
    machines = _Machines(limit.machine for limit in modes)
    by_height = sorted(modes, key=lambda limit: limit.flops_per_s)
    flat_roofs = tuple(_flat_roof(one, modes[one], machines) for one in by_height)
    slopes = _slopes(by_height, machines)
    palette = colours or model_colours(point.arch for point in points)
    crowded = len(points) > _CROWD
    diameters = _diameters_pt((point.batch_size for point in points), crowded=crowded)
    marks = [
        mark
        for point in points
        for mark in _marks(
            point,
            palette.get(point.arch, OTHER_MODELS),
            machines.short(point.env),
            names or {},
            diameters[point.batch_size] ** 2,
            crowded=crowded,
        )
    ]
    intensities = [end for point in points for end in (point.intensity_min, point.intensity_max)]
    intensities += [p.intensity_counted for p in points if p.intensity_counted is not None]
    rates = [point.attained_flops_per_s for point in points]
    return Scene(
        rate="Attained",
        empty="no run has a place here",
        limits=limits_of(slopes, flat_roofs, intensities, rates),
        slopes=slopes,
        flat_roofs=flat_roofs,
        marks=tuple(marks),
        legend=(
            *_entries(points, palette, diameters),
            *roof_entries(flat_roofs),
            *machines.entries(),
        ),
        name_pt=5.5,
    )


def _limits(
    points: Sequence[RooflinePoint], ceilings: Iterable[Ceiling]
) -> dict[_Limit, list[str]]:
    """The limits that `points` were held against and those of `ceilings`, with their math modes.

    A roof belongs to the machine whose label the points carry that stand under it; one that no
    point stands under, to the machine of its device.
    """
    machines = {point.ceiling.device: point.env for point in points}
    owned = [(point.env, point.ceiling) for point in points]
    owned += [(machines.get(one.device, one.device), one) for one in ceilings]
    modes: dict[_Limit, list[str]] = {}
    for machine, roof in owned:
        if roof.peak_flops_per_s is None or roof.peak_bytes_per_s is None:
            continue
        limit = _Limit(machine, roof.peak_flops_per_s, roof.peak_bytes_per_s, roof.kind)
        names = modes.setdefault(limit, [])
        if roof.math_mode not in names:
            names.append(roof.math_mode)
    return modes


def _flat_roof(limit: _Limit, modes: Sequence[str], machines: _Machines) -> FlatRoof:
    ridge = limit.flops_per_s / limit.bytes_per_s
    shared, rate = "/".join(modes), flops_rate(limit.flops_per_s)
    return FlatRoof(
        limit.flops_per_s,
        ridge,
        machines.grey(limit.machine),
        limit.kind == "datasheet",
        (f"{machines.short(limit.machine)} {shared}".lstrip(), rate),
        machines.group(limit),
        (
            f"{limit.machine} {shared} {rate}",
            f"{bytes_rate(limit.bytes_per_s)} ({limit.kind})",
            f"ridge at {three_digits(ridge)} FLOP/byte",
        ),
    )


def _slopes(limits: Iterable[_Limit], machines: _Machines) -> tuple[Slope, ...]:
    """A slope per machine, bandwidth and kind, up to the highest, the last, of its flat roofs."""
    highest = {(limit.machine, limit.bytes_per_s, limit.kind): limit for limit in limits}
    found = [
        Slope(
            one.bytes_per_s,
            one.flops_per_s,
            machines.grey(one.machine),
            one.kind == "datasheet",
            bytes_rate(one.bytes_per_s),
            machines.group(one),
            (f"{one.machine} {bytes_rate(one.bytes_per_s)} ({one.kind})",),
        )
        for one in highest.values()
    ]
    return tuple(sorted(found, key=lambda slope: slope.bytes_per_s))


def _diameters_pt(batch_sizes: Iterable[int], *, crowded: bool) -> dict[int, float]:
    """Diameter of a marker by its batch size, in points: each doubling adds the same."""
    sizes = sorted(set(batch_sizes))
    scale = _CROWDED if crowded else 1.0
    if len(sizes) < 2:
        return dict.fromkeys(sizes, scale * _ONLY_PT)
    smallest, doublings = sizes[0], math.log2(sizes[-1] / sizes[0])
    grown = (_LARGEST_PT - _SMALLEST_PT) / doublings
    return {size: scale * (_SMALLEST_PT + grown * math.log2(size / smallest)) for size in sizes}


def _marks(
    point: RooflinePoint,
    colour: str,
    short: str,
    names: Mapping[str, str],
    area_pt2: float,
    *,
    crowded: bool,
) -> list[Mark]:
    """A marker of counted bytes, or one at each end of an interval with a line between them."""
    counted = point.intensity_counted
    ends = (point.intensity_min, point.intensity_max) if counted is None else (counted,)
    opacity = 0.55 if crowded else 1.0
    line = Line(ends[-1], colour, 0.9 if crowded else 1.6, opacity)
    return [
        Mark(
            intensity_flop_per_byte=end,
            flops_per_s=point.attained_flops_per_s,
            shape=MARKERS[point.math_mode],
            colour=colour,
            filled=counted is not None,
            area_pt2=area_pt2,
            opacity=opacity,
            edge_pt=0.6 if crowded else 1.0,
            line=line if place + 1 < len(ends) else None,
            group=f"{short} {point.arch} {point.math_mode}".lstrip(),
            hover=_hover(point, names),
            name=short if place + 1 == len(ends) and not crowded else "",
            name_colour=colour,
        )
        for place, end in enumerate(ends)
    ]


def _entries(
    points: Sequence[RooflinePoint], palette: Mapping[str, str], diameters: Mapping[int, float]
) -> list[LegendEntry]:
    archs = {point.arch for point in points}
    modes = {point.math_mode for point in points}
    grey, circle = "#555555", MARKERS["fp32"]
    entries = [
        LegendEntry(arch, colour, line_pt=2.5) for arch, colour in palette.items() if arch in archs
    ]
    entries += [
        LegendEntry(mode, grey, shape, "white") for mode, shape in MARKERS.items() if mode in modes
    ]
    entries += [
        LegendEntry(f"batch {size}", grey, circle, "white", diameters[size])
        for size in _named_sizes(list(diameters))
    ]
    counted = {point.intensity_counted is not None for point in points}
    if True in counted:
        entries.append(LegendEntry("bytes counted", grey, circle))
    if counted == {True, False}:
        entries.append(LegendEntry("bytes modelled", grey, circle, "white", line_pt=1.6))
    return entries


def _named_sizes(sizes: Sequence[int]) -> list[int]:
    """The smallest and the largest of ascending sizes, and as many between as the legend names."""
    if len(sizes) <= _NAMED_SIZES:
        return list(sizes)
    step = (len(sizes) - 1) / (_NAMED_SIZES - 1)
    return [sizes[round(place * step)] for place in range(_NAMED_SIZES)]


def _hover(point: RooflinePoint, names: Mapping[str, str]) -> tuple[str, ...]:
    """Every number of a run."""
    times, counted = point.times, point.intensity_counted
    attainable = (point.attainable_min_flops_per_s / 1e9, point.attainable_max_flops_per_s / 1e9)
    intensity = f"{interval(point.intensity_min, point.intensity_max)} (eager to fused bytes)"
    if counted is not None:
        intensity = f"{three_digits(counted)} counted, {intensity}"
    return (
        f"{point.env} {point.arch} {point.precision} ({point.math_mode}) batch {point.batch_size}",
        f"run {names.get(point.record_id, point.record_id)}",
        f"attained {flops_rate(point.attained_flops_per_s)}",
        f"intensity {intensity} FLOP/byte",
        _counters_line(point),
        f"attainable {interval(*attainable)} GFLOP/s",
        f"{percent_interval(point.fraction_of_roof_min, point.fraction_of_roof_max)} of the roof, "
        f"{100 * point.fraction_of_peak:.0f} % of the compute peak",
        f"step {three_digits(1e3 * times.measured_s)} ms: arithmetic at the roof "
        f"{three_digits(1e3 * times.compute_s)} ms, traffic "
        f"{interval(1e3 * times.memory_min_s, 1e3 * times.memory_max_s)} ms, "
        f"data wait {100 * point.data_wait_share:.1f} %",
        f"bound: {point.bound}{'' if point.bound_sure else ' (unsure)'}; {point.bound_because}",
        f"roof: {point.device}, {point.ceiling.kind}, {point.ceiling.source}",
        *(f"{finding.level}: {finding.message}" for finding in point.findings),
    )


def _counters_line(point: RooflinePoint) -> str:
    if point.traffic_amplification is None:
        return f"bytes not counted: {point.intensity_counted_missing}"
    words = f"counted bytes are {three_digits(point.traffic_amplification)} times the fused ones"
    executed = point.executed_per_algorithmic
    if executed is None:
        return words
    return f"{words}, executed FLOP {three_digits(executed)} times the algorithmic ones"
