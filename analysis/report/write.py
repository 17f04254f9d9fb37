"""Writes a report: figures and tables as files, Markdown beside one self-contained HTML file."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from analysis.figures import model_colours
from analysis.profile_results import profile_results
from analysis.report.content import Content, make_content
from analysis.report.figure_files import NAMES, draw_profile, draw_rooflines
from analysis.report.templates import render_html, render_markdown
from analysis.results import run_results
from bench.errors import UserError
from bench.records import CeilingsRecord, ProfileRecord, RunRecord

#: What a report's folder holds.
_OURS = frozenset({"report.html", "report.md", "figures", "tables", ".DS_Store"})


def write_report(
    measurements: Sequence[RunRecord],
    ceilings: Sequence[CeilingsRecord],
    folder: Path,
    *,
    profiles: Sequence[ProfileRecord] = (),
    run_ids: Mapping[str, str] | None = None,
    unreadable: Sequence[str] = (),
    written: datetime | None = None,
) -> Path:
    """Write the report of `measurements` into `folder` and return the path of `report.html`.

    `profiles` give the runs their counted bytes and have sections of their own. Beside it:
    `report.md`, `figures/*.png` and `.svg`, `tables/*.csv`. `run_ids` maps record ids to tracked
    runs; `unreadable` names runs that could not be read. An earlier report in the folder is
    replaced. Raises `UserError` without a measurement, for a folder that holds anything else, or
    where nothing can be written.
    """
    if not measurements:
        raise UserError("no measurements to report: run mlproject run first")
    results = run_results(measurements, ceilings, run_ids, profiles)
    profiled = profile_results(profiles, results, ceilings, run_ids)
    ids = run_ids or {}
    when = written or datetime.now(timezone.utc)
    content = make_content(results, profiled, ids, unreadable, when)
    points = [result.point for result in results if result.point]
    archs = [result.record.config.arch for result in results]
    colours = model_colours([*archs, *(profile.record.config.arch for profile in profiled)])
    numbers = itertools.count(1)
    path = folder / "report.html"
    try:
        _clear(folder)
        figures = draw_rooflines(points, folder / "figures", numbers, ids, colours)
        of_profiles = {
            profile.number: draw_profile(profile, folder / "figures", numbers, colours)
            for profile in profiled
        }
        _write_tables(content, folder)
        _write_text(folder / "report.md", render_markdown(content, figures, of_profiles))
        _write_text(path, render_html(content, figures, of_profiles))
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
    for name in ("figures", "tables"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for pattern in NAMES:
            for path in (folder / name).glob(pattern):
                path.unlink()


def _write_tables(content: Content, folder: Path) -> None:
    for table in content.tables:
        _write_text(folder / "tables" / f"{table.name}.csv", table.csv())


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
