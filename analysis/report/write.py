"""Writes a report: figures and tables as files, Markdown beside one self-contained HTML file."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from analysis.figures import model_colours
from analysis.report.content import Content, make_content
from analysis.report.figure_files import NAMES, draw_profile, draw_rooflines
from analysis.report.run_figures import draw_runs
from analysis.report.run_numbers import number_runs
from analysis.report.table import Table
from analysis.report.templates import DrawnFigures, render_html, render_markdown
from analysis.runs.placed import Run, recorded
from analysis.runs.placed_profiles import PlacedProfile
from bench.errors import UserError

#: What a report's folder holds.
_OURS = frozenset({"report.html", "report.md", "report.pdf", "figures", "tables", ".DS_Store"})


def write_report(
    runs: Sequence[Run],
    folder: Path,
    *,
    profiles: Sequence[PlacedProfile] = (),
    run_ids: Mapping[str, str] | None = None,
    unreadable: Sequence[str] = (),
    written: datetime | None = None,
) -> Path:
    """Write the report of `runs` into `folder` and return the path of `report.html`.

    `profiles` have sections of their own. Beside it: `report.md`, `figures/*.png` and `.svg`,
    `tables/*.csv`, `.md` and `.tex`. `run_ids` maps record ids, those of ceilings too, to tracked
    runs; `unreadable` names runs that could not be read. An earlier report in the folder is
    replaced. Raises `UserError` without a run, for a folder that holds anything else, or where
    nothing can be written.
    """
    if not runs:
        raise UserError("no measurements to report: run mlproject run first")
    ids = run_ids or {}
    when = written or datetime.now(timezone.utc)
    run_numbers = number_runs(runs)
    content = make_content(runs, profiles, ids, unreadable, when, run_numbers)
    points = [run.point for run in runs if run.point]
    archs = [run.arch for run in runs]
    colours = model_colours([*archs, *(profile.record.config.arch for profile in profiles)])
    numbers = itertools.count(1)
    path = folder / "report.html"
    try:
        _clear(folder)
        place = folder / "figures"
        figures = []
        if recorded(runs):
            figures = draw_rooflines(points, place, numbers, ids, colours, run_numbers)
        of_profiles = {
            profile.number: draw_profile(profile, place, numbers, colours) for profile in profiles
        }
        of_runs = draw_runs(runs, place, numbers, colours, run_numbers)
        drawn = DrawnFigures(figures, of_profiles, of_runs)
        _write_tables(content, folder)
        _write_text(folder / "report.md", render_markdown(content, drawn))
        _write_text(path, render_html(content, drawn))
    except OSError as error:
        raise UserError(
            f"out={str(folder)!r}: cannot write the report there ({error.strerror or error}); "
            "choose another folder with --out"
        ) from None
    return path


def _clear(folder: Path) -> None:
    """Make the folders, and remove an earlier report's files that may be more than ours.

    Whatever is in the folder is uploaded with the report, so it must hold nothing else.
    """
    if folder.is_dir():
        foreign = sorted({path.name for path in folder.iterdir()} - _OURS)
        if foreign:
            raise UserError(
                f"out={str(folder)!r}: holds other files ({foreign[0]}); "
                "give a new folder, or that of an earlier report"
            )
    (folder / "report.pdf").unlink(missing_ok=True)
    for name in ("figures", "tables"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for pattern in NAMES:
            for path in (folder / name).glob(pattern):
                path.unlink()


def _write_tables(content: Content, folder: Path) -> None:
    for table in content.tables:
        for suffix, text in _forms(table):
            _write_text(folder / "tables" / f"{table.name}.{suffix}", text)


def _forms(table: Table) -> tuple[tuple[str, str], ...]:
    return ("csv", table.csv()), ("md", table.markdown()), ("tex", table.latex())


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
