"""The roofline of runs: each under the roof of the machine that it ran on.

Colour is the model, the marker the math mode, its size the batch size. Without counters a run is a
horizontal interval of intensity with an open marker at each end; a counted run is one filled
marker. The line of an imported run is dashed: its FLOP are modelled too. Roofs are grey, solid if
measured and dashed if from a datasheet, and carry their names and rates. Where there are several
machines, their short names stand at their roofs and their runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from analysis.figures.rooflines.drawn_point import DrawnPoint, Limit, drawn_point
from analysis.figures.rooflines.scene import (
    ENTRY_IN,
    FlatRoof,
    Line,
    Mark,
    Scene,
    Slope,
    limits_of,
    roof_entries,
)
from analysis.figures.style import MARKERS, OTHER_MODELS, ROOF_GREYS, LegendEntry, model_colours
from analysis.profiles.kernel_places import shortened
from analysis.runs.points import RooflinePoint
from analysis.runs.quantities import (
    bytes_rate,
    flops_rate,
    three_digits,
)
from bench.records import Ceiling

#: More runs than this are drawn thinner and half transparent, so that a crowd shows its density.
_CROWD = 40
#: Diameters of markers: of a figure's smallest and largest batch, and of the only one.
_SMALLEST_PT, _LARGEST_PT, _ONLY_PT = 3.2, 7.6, 4.0
_CROWDED = 0.6
#: Of a machine's name in the legend, and what a letter of a name takes of an entry's width.
_MACHINE_LETTERS, _LETTER_IN = 28, 0.07
#: Batch sizes that the legend names, spread over those that are there.
_NAMED_SIZES = 4


class _Machines:
    """The machines of a figure: a grey for each, and a short name where there are several."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(dict.fromkeys(names))

    def grey(self, machine: str) -> str:
        return ROOF_GREYS[self._names.index(machine) % len(ROOF_GREYS)]

    def short(self, machine: str) -> str:
        several = len(self._names) > 1 and machine in self._names
        return f"M{self._names.index(machine) + 1}" if several else ""

    def group(self, limit: Limit) -> str:
        short = self.short(limit.machine)
        return f"{short}: {limit.machine}, {limit.kind} roof" if short else f"{limit.kind} roof"

    def entries(self) -> list[LegendEntry]:
        return [
            LegendEntry(
                f"{short}: {shortened(machine, _MACHINE_LETTERS)}", self.grey(machine), line_pt=1.2
            )
            for machine in self._names
            if (short := self.short(machine))
        ]


def run_scene(
    points: Sequence[RooflinePoint | DrawnPoint],
    *,
    ceilings: Iterable[Ceiling] = (),
    colours: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
) -> Scene:
    """Return the scene of `points` and their roofs; `ceilings` adds roofs that no point uses.

    `colours` maps models to colours, to keep them the same in several figures; `names` maps
    record ids to the names that hovering shows.
    """
    drawn = [
        point if isinstance(point, DrawnPoint) else drawn_point(point, names or {})
        for point in points
    ]
    modes = _limits(drawn, ceilings)
    machines = _Machines(limit.machine for limit in modes)
    by_height = sorted(modes, key=lambda limit: limit.flops_per_s)
    flat_roofs = tuple(_flat_roof(one, modes[one], machines) for one in by_height)
    slopes = _slopes(by_height, machines)
    palette = colours or model_colours(point.arch for point in drawn)
    crowded = len(drawn) > _CROWD
    diameters = _diameters_pt((point.batch_size for point in drawn), crowded=crowded)
    marks = [
        mark
        for point in drawn
        for mark in _marks(
            point,
            palette.get(point.arch, OTHER_MODELS),
            machines.short(point.limit.machine),
            diameters[point.batch_size] ** 2,
            crowded=crowded,
        )
    ]
    intensities = [end for point in drawn for end in point.intensities]
    rates = [point.attained_flops_per_s for point in drawn]
    named = machines.entries()
    long_labels = (*(one.label for one in named), *(point.arch for point in drawn))
    return Scene(
        rate="Attained",
        empty="no run has a place here",
        limits=limits_of(slopes, flat_roofs, intensities, rates),
        slopes=slopes,
        flat_roofs=flat_roofs,
        marks=tuple(marks),
        legend=(
            *_entries(drawn, palette, diameters),
            *roof_entries(flat_roofs),
            *named,
        ),
        legend_entry_in=max([ENTRY_IN, *(_LETTER_IN * len(label) for label in long_labels)]),
        name_pt=5.5,
    )


def _limits(points: Sequence[DrawnPoint], ceilings: Iterable[Ceiling]) -> dict[Limit, list[str]]:
    """The limits that `points` were held against and those of `ceilings`, with their math modes.

    A roof belongs to the machine whose label the points carry that stand under it; one that no
    point stands under, to the machine of its device.
    """
    machines = {point.device: point.limit.machine for point in points}
    owned = [(point.limit, point.math_mode) for point in points]
    for one in ceilings:
        if one.peak_flops_per_s is not None and one.peak_bytes_per_s is not None:
            machine = machines.get(one.device, one.device)
            limit = Limit(machine, one.peak_flops_per_s, one.peak_bytes_per_s, one.kind)
            owned.append((limit, one.math_mode))
    modes: dict[Limit, list[str]] = {}
    for limit, mode in owned:
        names = modes.setdefault(limit, [])
        if mode not in names:
            names.append(mode)
    return modes


def _flat_roof(limit: Limit, modes: Sequence[str], machines: _Machines) -> FlatRoof:
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


def _slopes(limits: Iterable[Limit], machines: _Machines) -> tuple[Slope, ...]:
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
    point: DrawnPoint, colour: str, short: str, area_pt2: float, *, crowded: bool
) -> list[Mark]:
    """A marker of counted bytes, or one at each end of an interval with a line between them."""
    ends = point.intensities
    opacity = 0.55 if crowded else 1.0
    line = Line(ends[-1], colour, 0.9 if crowded else 1.6, opacity, dashed=point.imported)
    origin = " imported" if point.imported else ""
    return [
        Mark(
            intensity_flop_per_byte=end,
            flops_per_s=point.attained_flops_per_s,
            shape=MARKERS[point.math_mode],
            colour=colour,
            filled=point.counted,
            area_pt2=area_pt2,
            opacity=opacity,
            edge_pt=0.6 if crowded else 1.0,
            line=line if place + 1 < len(ends) else None,
            group=f"{short} {point.arch} {point.math_mode}{origin}".lstrip(),
            hover=point.hover,
            name=short if place + 1 == len(ends) and not crowded else "",
            name_colour=colour,
        )
        for place, end in enumerate(ends)
    ]


def _entries(
    points: Sequence[DrawnPoint], palette: Mapping[str, str], diameters: Mapping[int, float]
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
    measured = [point for point in points if not point.imported]
    counted = {point.counted for point in measured}
    if True in counted:
        entries.append(LegendEntry("bytes counted", grey, circle))
    if counted == {True, False}:
        entries.append(LegendEntry("bytes modelled", grey, circle, "white", line_pt=1.6))
    if len(measured) < len(points):
        label = "imported, modelled"
        entries.append(LegendEntry(label, grey, circle, "white", line_pt=1.2, dashed=True))
    return entries


def _named_sizes(sizes: Sequence[int]) -> list[int]:
    """The smallest and the largest of ascending sizes, and as many between as the legend names."""
    if len(sizes) <= _NAMED_SIZES:
        return list(sizes)
    step = (len(sizes) - 1) / (_NAMED_SIZES - 1)
    return [sizes[round(place * step)] for place in range(_NAMED_SIZES)]
