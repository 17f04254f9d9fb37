"""Writes a report: figures, tables, Markdown, one self-contained HTML file, and PDF on request."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.figures import model_colours
from analysis.report.figure_files import NAMES, FigureFolder
from analysis.report.run_figures import draw_runs
from analysis.report.sections import Content, make_content
from analysis.report.tables.numbered_table import markdown_text, number_runs
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
    path = folder / "report.html"
    try:
        _clear(folder)
        place = FigureFolder(folder / "figures", colours, run_numbers)
        figures = {
            "rooflines": place.draw_rooflines(points, ids) if recorded(runs) else [],
            "of_profiles": {profile.number: place.draw_profile(profile) for profile in profiles},
            "of_runs": draw_runs(runs, place),
        }
        _write_tables(content, folder)
        _write_text(folder / "report.md", _rendered("report.md.j2", content, figures))
        _write_text(path, _rendered("report.html.j2", content, figures))
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
    for table in content.tables.values():
        path = folder / "tables" / table.name
        _write_text(path.with_suffix(".csv"), table.csv())
        _write_text(path.with_suffix(".md"), table.markdown())
        _write_text(path.with_suffix(".tex"), table.latex())


def _rendered(name: str, content: Content, figures: Mapping[str, object]) -> str:
    """The report by one of its templates."""
    environment = Environment(
        loader=PackageLoader("analysis.report", "templates"),
        autoescape=name == "report.html.j2",  # noqa: S701 (Markdown is escaped by its own filter)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["trusted"] = Markup  # Plotly's own page fragments
    environment.filters["md"] = markdown_text
    fence = markdown_fence(" ".join(content.commands.values()))
    return environment.get_template(name).render(content=content, figures=figures, fence=fence)


def markdown_fence(text: str) -> str:
    """Return a code fence longer than any run of backticks in `text`."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(3, longest + 1)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "msedge",
)
_LIMIT_S = 180


def print_pdf(html: Path) -> Path:
    """Print `html` to a PDF of the same name beside it, and return its path.

    Raises `UserError` where no tool is installed, or where it makes no PDF.
    """
    pdf = html.with_suffix(".pdf")
    with tempfile.TemporaryDirectory() as profile:
        command = _command(html, pdf, profile)
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise UserError(
                f"pdf: {command[0]} took over {_LIMIT_S} s; try without --pdf"
            ) from None
    if done.returncode or not pdf.is_file():
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UserError(f"pdf: {command[0]} made none ({last}); try without --pdf")
    return pdf


def _command(html: Path, pdf: Path, profile: str) -> Sequence[str]:
    for name in BROWSERS:
        if browser := shutil.which(name):
            return [
                browser,
                "--headless",
                "--disable-gpu",
                "--no-sandbox",  # our own file, without network; root in a container has none
                "--no-pdf-header-footer",
                f"--user-data-dir={profile}",
                f"--print-to-pdf={pdf.resolve()}",
                html.resolve().as_uri(),
            ]
    if tool := shutil.which("weasyprint"):
        return [tool, str(html), str(pdf)]
    raise UserError(
        "pdf: neither Chromium, Chrome, Edge nor WeasyPrint is installed; install one of them, "
        "or print report.html from any browser"
    )
