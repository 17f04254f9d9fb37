"""The report's figures as files: rooflines of runs, then of each profile's ops and kernels."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
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


def draw_rooflines(
    points: Sequence[RooflinePoint],
    folder: Path,
    numbers: Iterator[int],
    names: Mapping[str, str],
    colours: Mapping[str, str],
    run_numbers: RunNumbers,
) -> list[FigureFile]:
    """Draw one roofline for all machines, which is interactive too, and one for each of several.

    `names` maps record ids to the names that hovering shows, `colours` models to theirs.
    """
    groups: dict[str, list[RooflinePoint]] = {}
    for point in points:
        groups.setdefault(point.env, []).append(point)
    drawings = [("Roofline", list(points))]
    if len(groups) > 1:
        drawings = [("Roofline, all machines", list(points))]
        drawings += [(f"Roofline of {env}", group) for env, group in groups.items()]
    figures: list[FigureFile] = []
    for place, (title, group) in enumerate(drawings, start=1):
        scene = run_scene(group, colours=colours, names=names)
        page = "" if figures else _page(scene, "roofline", with_script=True)
        runs = run_numbers.words(names.get(p.record_id, p.record_id) for p in group)
        number = next(numbers)
        figures.append(_file(scene, folder, f"roofline-{place}", number, title, page, runs=runs))
    return figures


def draw_profile(
    profile: PlacedProfile,
    folder: Path,
    numbers: Iterator[int],
    colours: Mapping[str, str],
) -> list[FigureFile]:
    """Draw the ops and the kernels of a profile, as far as it has them; models by `colours`."""
    used, record = profile.used, profile.record
    scenes: list[tuple[str, Scene, str]] = []
    if profile.ops is not None:
        colour = colours.get(record.config.arch, OTHER_MODELS)
        scenes.append(("Ops", op_scene(profile.ops, used, colour=colour), _OPS_CAPTION))
    if profile.kernels is not None and record.resolved is not None:
        scene = kernel_scene(profile.kernels, used, math_mode=record.resolved.math_mode)
        scenes.append(("Kernels", scene, _KERNELS_CAPTION))
    figures = []
    for what, scene, caption in scenes:
        name, title = f"{what.lower()}-{profile.number}", f"{what} of {profile.label}"
        page = _page(scene, name, with_script=False)
        figures.append(_file(scene, folder, name, next(numbers), title, page, caption))
    return figures


def _page(scene: Scene, name: str, *, with_script: bool) -> str:
    return figure_html(interactive_figure(scene), name, with_script=with_script)


def _file(
    scene: Scene,
    folder: Path,
    name: str,
    number: int,
    title: str,
    interactive: str,
    caption: str = "",
    runs: str = "",
) -> FigureFile:
    figure, axes = single_axes()
    draw_scene(axes, scene)
    return saved_figure(figure, folder, name, number, title, caption, interactive, runs)


def saved_figure(
    figure: Figure,
    folder: Path,
    name: str,
    number: int,
    title: str,
    caption: str,
    interactive: str = "",
    runs: str = "",
) -> FigureFile:
    """Save a drawn figure as PNG and SVG, and return what the report shows of it."""
    png, svg = save_figure(figure, folder, name)
    encoded = base64.b64encode(svg.read_bytes()).decode("ascii")
    return FigureFile(
        number=number,
        title=title,
        caption=caption,
        png=f"{folder.name}/{png.name}",
        svg=f"{folder.name}/{svg.name}",
        data_uri=f"data:image/svg+xml;base64,{encoded}",
        interactive=interactive,
        runs=runs,
    )
