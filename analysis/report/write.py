"""Writes a report: figures and tables as files, Markdown beside one self-contained HTML file."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from analysis.figures import (
    draw_roofline,
    interactive_roofline,
    interactive_roofline_html,
    model_colours,
    save_figure,
    single_axes,
)
from analysis.points import RooflinePoint
from analysis.report.content import Content, make_content
from analysis.report.templates import render_html, render_markdown
from analysis.results import run_results
from bench.errors import UserError
from bench.records import CeilingsRecord, RunRecord

#: What a report's folder holds.
_OURS = frozenset({"report.html", "report.md", "figures", "tables", ".DS_Store"})


@dataclass(frozen=True)
class FigureFile:
    """A static figure with its number in the report; paths are relative to the report."""

    number: int
    title: str
    png: str
    svg: str
    data_uri: str


def write_report(
    measurements: Sequence[RunRecord],
    ceilings: Sequence[CeilingsRecord],
    folder: Path,
    *,
    run_ids: Mapping[str, str] | None = None,
    unreadable: Sequence[str] = (),
    written: datetime | None = None,
) -> Path:
    """Write the report of `measurements` into `folder` and return the path of `report.html`.

    Beside it: `report.md`, `figures/*.png` and `.svg`, `tables/*.csv`. `run_ids` maps record ids
    to tracked runs; `unreadable` names runs that could not be read. An earlier report in the
    folder is replaced. Raises `UserError` without a measurement, for a folder that holds
    anything else, or where nothing can be written.
    """
    if not measurements:
        raise UserError("no measurements to report: run mlproject run first")
    results = run_results(measurements, ceilings, run_ids)
    ids = run_ids or {}
    content = make_content(results, ids, unreadable, written or datetime.now(timezone.utc))
    points = [result.point for result in results if result.point]
    try:
        _clear(folder)
        figures = _draw_figures(points, folder)
        _write_tables(content, folder)
        _write_text(folder / "report.md", render_markdown(content, figures))
        interactive = interactive_roofline_html(interactive_roofline(points, names=ids))
        path = folder / "report.html"
        _write_text(path, render_html(content, figures, len(figures) + 1, interactive))
    except OSError as error:
        raise UserError(
            f"out={str(folder)!r}: cannot write the report there ({error.strerror or error}); "
            "choose another folder with --out"
        ) from None
    return path


def _clear(folder: Path) -> None:
    """Make the folders, and remove an earlier report's figures, which may be more than ours.

    Whatever is in the folder is uploaded with the report, so it must hold nothing else.
    """
    if folder.is_dir():
        foreign = sorted({path.name for path in folder.iterdir()} - _OURS)
        if foreign:
            raise UserError(
                f"out={str(folder)!r}: holds other files ({foreign[0]}); "
                "give a new folder, or that of an earlier report"
            )
    for name in ("figures", "tables"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for path in (folder / "figures").glob("roofline*.*"):
        path.unlink()


def _draw_figures(points: Sequence[RooflinePoint], folder: Path) -> list[FigureFile]:
    """One roofline for all machines and, if there are several, one for each."""
    colours = model_colours(point.arch for point in points)
    groups: dict[str, list[RooflinePoint]] = {}
    for point in points:
        groups.setdefault(point.env, []).append(point)
    drawings = [("Roofline", list(points))]
    if len(groups) > 1:
        drawings = [("Roofline, all machines", list(points))]
        drawings += [(f"Roofline of {env}", group) for env, group in groups.items()]
    figures = []
    for number, (title, group) in enumerate(drawings, start=1):
        figure, axes = single_axes()
        draw_roofline(axes, group, colours=colours)
        png, svg = save_figure(figure, folder / "figures", f"roofline-{number}")
        encoded = base64.b64encode(svg.read_bytes()).decode("ascii")
        figures.append(
            FigureFile(
                number=number,
                title=title,
                png=f"figures/{png.name}",
                svg=f"figures/{svg.name}",
                data_uri=f"data:image/svg+xml;base64,{encoded}",
            )
        )
    return figures


def _write_tables(content: Content, folder: Path) -> None:
    for table in content.tables:
        _write_text(folder / "tables" / f"{table.name}.csv", table.csv())


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
