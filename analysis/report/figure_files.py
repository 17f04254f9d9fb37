"""The report's figures as files: rooflines of runs, then of each profile's ops and kernels."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from analysis.figures.style import OTHER_MODELS
from analysis.report.tables.numbered_table import RunNumbers
from analysis.runs.placed_profiles import PlacedProfile
from analysis.runs.points import RooflinePoint

#: What an earlier report may have left that this one does not replace.
NAMES = ("roofline-*", "ops-*", "kernels-*", "runs-*")

_OPS_CAPTION = (
    "Attained by the cost model's FLOP over the profiler's time of each op. A marker stands at the "
    "intensity of an op's eager bytes, its line ends at that of its fused bytes"
)
_KERNELS_CAPTION = (
    "Executed FLOP over each kernel's own duration and bytes. Durations are the profiler's, one "
    "kernel at a time with emptied caches, and not the training's; names are cut, the numbers are "
    "those of the table"
)


@dataclass(frozen=True)
class FigureFile:
    """A figure with its number in the report; paths are relative to the report.

    `interactive` is trusted markup of the same figure, empty where there is none; the first one
    of a report carries Plotly's script. `runs` are the numbers of the runs that it shows.
    """

    number: int
    title: str
    caption: str
    png: str
    svg: str
    data_uri: str
    interactive: str
    runs: str = ""


class FigureFolder:
    """Saves figures and numbers them from 1; `colours` are those of models in all of them."""

    def __init__(self, folder: Path, colours: Mapping[str, str], run_numbers: RunNumbers) -> None:
        self.colours = colours
        self._folder = folder
        self._run_numbers = run_numbers
        self._saved = 0

    def add(
        self,
        figure: Figure,
        name: str,
        title: str,
        caption: str = "",
        interactive: str = "",
        runs: Iterable[str] = (),
    ) -> FigureFile:
        """Save a drawn figure of these runs as PNG and SVG; return what the report shows of it."""
        png, svg = save_figure(figure, self._folder, name)
        encoded = base64.b64encode(svg.read_bytes()).decode("ascii")
        self._saved += 1
        return FigureFile(
            number=self._saved,
            title=title,
            caption=caption,
            png=f"{self._folder.name}/{png.name}",
            svg=f"{self._folder.name}/{svg.name}",
            data_uri=f"data:image/svg+xml;base64,{encoded}",
            interactive=interactive,
            runs=self._run_numbers.words(runs),
        )

    def draw_rooflines(
        self, points: Sequence[RooflinePoint], names: Mapping[str, str]
    ) -> list[FigureFile]:
        """Draw one roofline for all machines, interactive too, and one for each of several.

        `names` maps record ids to the names that hovering shows.
        """
        groups: dict[str, list[RooflinePoint]] = {}
        for point in points:
            groups.setdefault(point.env, []).append(point)
        drawings = [("Roofline", points)]
        if len(groups) > 1:
            drawings = [("Roofline, all machines", points)]
            drawings += [(f"Roofline of {env}", group) for env, group in groups.items()]
        figures: list[FigureFile] = []
        for place, (title, group) in enumerate(drawings, start=1):
            scene = run_scene(group, colours=self.colours, names=names)
            page = "" if figures else _page(scene, "roofline", with_script=True)
            runs = [names.get(point.record_id, point.record_id) for point in group]
            drawn = _drawn(scene)
            figures.append(self.add(drawn, f"roofline-{place}", title, interactive=page, runs=runs))
        return figures

    def draw_profile(self, profile: PlacedProfile) -> list[FigureFile]:
        """Draw the ops and the kernels of a profile, as far as it has them."""
        used, record = profile.used, profile.record
        scenes: list[tuple[str, Scene, str]] = []
        if profile.ops is not None:
            colour = self.colours.get(record.config.arch, OTHER_MODELS)
            scenes.append(("Ops", op_scene(profile.ops, used, colour=colour), _OPS_CAPTION))
        if profile.kernels is not None and record.resolved is not None:
            scene = kernel_scene(profile.kernels, used, math_mode=record.resolved.math_mode)
            scenes.append(("Kernels", scene, _KERNELS_CAPTION))
        figures = []
        for what, scene, caption in scenes:
            name, title = f"{what.lower()}-{profile.number}", f"{what} of {profile.label}"
            page = _page(scene, name, with_script=False)
            figures.append(self.add(_drawn(scene), name, title, caption, page))
        return figures


def _drawn(scene: Scene) -> Figure:
    figure, axes = single_axes()
    draw_scene(axes, scene)
    return figure


def _page(scene: Scene, name: str, *, with_script: bool) -> str:
    return figure_html(interactive_figure(scene), name, with_script=with_script)
