"""The report's figures, as files and for its page; the rooflines of runs and of profiles.

A figure is named by what it shows, `throughput-lab.svg` say, and keeps its name when others appear.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import plotly.graph_objects as go
from matplotlib.figure import Figure

from analysis.figures import (
    Scene,
    draw_scene,
    figure_html,
    interactive_figure,
    kernel_scene,
    op_scene,
    run_scene,
    save_figure,
    single_axes,
)
from analysis.figures.charts.chart import Chart
from analysis.figures.charts.interactive_chart import interactive_chart
from analysis.figures.charts.static_chart import draw_chart
from analysis.figures.style import OTHER_MODELS
from analysis.report.report_folder import file_names
from analysis.runs.placed_profiles import PlacedProfile
from analysis.runs.points import RooflinePoint
from analysis.table import RunNumbers
from analysis.traces.placed import PlacedTrace

_ROOFLINE_CAPTION = (
    "Up is faster, right is more arithmetic per byte. Colour is the model, the marker the "
    "arithmetic, its size the batch size; a line between two open markers is a run whose traffic "
    "is known as an interval only, dashed if the run was imported and its work is modelled. Grey "
    "lines are the roofs: solid if measured, dashed if from a "
    "datasheet"
)
_OPS_CAPTION = (
    "Attained by the cost model's FLOP over the profiler's time of each op. A marker stands at the "
    "intensity of an op's eager bytes, its line ends at that of its fused bytes"
)
_TRACE_CAPTION = (
    "Attained by the FLOP of each kind of op over the own time of its kernels. A marker stands at "
    "the intensity of an op's eager bytes, its line ends at that of its fused bytes"
)
_KERNELS_CAPTION = (
    "Executed FLOP over each kernel's own duration and bytes. Durations are the profiler's, one "
    "kernel at a time with emptied caches, and not the training's; names are cut, the numbers are "
    "those of the table"
)


#: Figures narrower than this stand beside each other on a page.
_NARROW_IN = 5.0


@dataclass(frozen=True)
class FigureFile:
    """A figure with its number in the report; paths are relative to the report.

    `interactive` is trusted markup of the same figure; the first one of a report has Plotly's
    script in it. `data_uri` is the picture, for paper and for browsers that run no scripts. `runs`
    are the numbers of the runs that it shows.
    """

    number: int
    title: str
    caption: str
    png: str
    svg: str
    data_uri: str
    interactive: str
    runs: str
    narrow: bool


class FigureFolder:
    """Saves figures and numbers them from 1; `colours` are those of models in all of them.

    `machines` maps the labels of machines to what file names have of them.
    """

    def __init__(
        self,
        folder: Path,
        colours: Mapping[str, str],
        run_numbers: RunNumbers,
        machines: Iterable[str],
    ) -> None:
        labels = list(dict.fromkeys(machines))
        self.colours = colours
        self.machines = dict(zip(labels, file_names(labels), strict=True))
        self._folder = folder
        self._run_numbers = run_numbers
        self._names: list[str] = []

    def add_chart(
        self, chart: Chart, name: str, title: str, caption: str, runs: Iterable[str]
    ) -> FigureFile:
        """Save a chart of these runs; return what the report shows of it."""
        return self._add(draw_chart(chart), interactive_chart(chart), name, title, caption, runs)

    def _add(
        self,
        figure: Figure,
        interactive: go.Figure,
        name: str,
        title: str,
        caption: str,
        runs: Iterable[str],
    ) -> FigureFile:
        """Save a drawn figure as PNG and SVG, with its drawing for a page beside them.

        A name that another figure has gets a number.
        """
        self._names.append(name)
        name = file_names(self._names)[-1]
        png, svg = save_figure(figure, self._folder, name)
        shown = min(png, svg, key=lambda path: path.stat().st_size)
        kind = "png" if shown is png else "svg+xml"
        encoded = base64.b64encode(shown.read_bytes()).decode("ascii")
        return FigureFile(
            number=len(self._names),
            title=title,
            caption=caption,
            png=f"{self._folder.name}/{png.name}",
            svg=f"{self._folder.name}/{svg.name}",
            data_uri=f"data:image/{kind};base64,{encoded}",
            interactive=figure_html(interactive, name, with_script=len(self._names) == 1),
            runs=self._run_numbers.words(runs),
            narrow=figure.get_size_inches()[0] < _NARROW_IN,
        )

    def draw_roofline(
        self, points: Sequence[RooflinePoint], names: Mapping[str, str]
    ) -> FigureFile:
        """Draw the roofline of all machines; `names` maps record ids to names on hovering."""
        several = len({point.env for point in points}) > 1
        title = "Roofline, all machines" if several else "Roofline"
        return self._roofline("roofline", title, points, names, _ROOFLINE_CAPTION)

    def draw_machines(
        self, points: Sequence[RooflinePoint], names: Mapping[str, str]
    ) -> list[FigureFile]:
        """Draw the roofline of each of several machines; none of a single one."""
        groups: dict[str, list[RooflinePoint]] = {}
        for point in points:
            groups.setdefault(point.env, []).append(point)
        if len(groups) < 2:
            return []
        return [
            self._roofline(f"roofline-{self.machines[env]}", f"Roofline of {env}", group, names)
            for env, group in groups.items()
        ]

    def _roofline(
        self,
        name: str,
        title: str,
        points: Sequence[RooflinePoint],
        names: Mapping[str, str],
        caption: str = "",
    ) -> FigureFile:
        scene = run_scene(points, colours=self.colours, names=names)
        runs = [names.get(point.record_id, point.record_id) for point in points]
        return self._add_scene(scene, name, title, caption, runs)

    def _add_scene(
        self, scene: Scene, name: str, title: str, caption: str = "", runs: Iterable[str] = ()
    ) -> FigureFile:
        figure, axes = single_axes()
        draw_scene(axes, scene)
        return self._add(figure, interactive_figure(scene), name, title, caption, runs)

    def draw_profile(self, profile: PlacedProfile, file_name: str) -> list[FigureFile]:
        """Draw the ops and the kernels of a profile, as far as it has them."""
        used, record = profile.used, profile.record
        scenes: list[tuple[str, Scene, str]] = []
        if profile.ops is not None:
            colour = self.colours.get(record.config.arch, OTHER_MODELS)
            scenes.append(("Ops", op_scene(profile.ops, used, colour=colour), _OPS_CAPTION))
        if profile.kernels is not None and record.resolved is not None:
            scene = kernel_scene(profile.kernels, used, math_mode=record.resolved.math_mode)
            scenes.append(("Kernels", scene, _KERNELS_CAPTION))
        return [
            self._add_scene(
                scene, f"{what.lower()}-{file_name}", f"{what} of {profile.label}", caption
            )
            for what, scene, caption in scenes
        ]

    def draw_trace(self, trace: PlacedTrace, file_name: str) -> list[FigureFile]:
        """Draw the kinds of ops of a trace; none where none of them has a place."""
        if not trace.kinds.placed:
            return []
        colour = self.colours.get(trace.record.arch or "", OTHER_MODELS)
        scene = op_scene(trace.kinds, trace.used, colour=colour)
        title = f"Ops of trace {trace.number}, {trace.label}"
        return [self._add_scene(scene, f"ops-{file_name}", title, _TRACE_CAPTION)]
