"""Writes a report: figures, tables, Markdown, one self-contained HTML file, and PDF on request."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.comparison.machines.across import across_machines
from analysis.comparison.machines.prices import NO_PRICES, Prices
from analysis.figures import model_colours
from analysis.report.figure_files import FigureFolder
from analysis.report.front_matter import FrontMatter
from analysis.report.report_folder import begin_report, end_report
from analysis.report.run_figures import draw_across, draw_runs
from analysis.report.sections import Content, make_content, named_profiles, named_traces
from analysis.runs.placed_profiles import PlacedProfile
from analysis.runs.run import Run
from analysis.table import markdown_text, number_runs
from analysis.traces.placed import PlacedTrace
from bench.errors import UserError


def write_report(
    runs: Sequence[Run],
    folder: Path,
    *,
    profiles: Sequence[PlacedProfile] = (),
    traces: Sequence[PlacedTrace] = (),
    run_ids: Mapping[str, str] | None = None,
    unreadable: Sequence[str] = (),
    written: datetime | None = None,
    front: FrontMatter | None = None,
    prices: Prices = NO_PRICES,
    reference: str | None = None,
    on_moved: Callable[[Path], None] = lambda aside: None,
) -> Path:
    """Write the report of `runs` into `folder` and return the path of `report.html`.

    `profiles` and `traces` have sections of their own. Beside it: `report.md`, `figures/*.png`
    and `.svg`, `tables/*.csv`, `.md` and `.tex`, and the sums of all. `run_ids` maps record ids,
    those of ceilings too, to tracked runs; `unreadable` names runs that could not be read; `front`
    is what a person adds; `prices` are those of machines; `reference` is the machine that the
    others are held against, by default the one with most configurations in common. An earlier
    report in the folder is replaced; one whose edits cannot be seen is moved, and `on_moved` gets
    its new place. Raises `UserError` without a run, a profile or a trace, for a `reference` or a
    price of a machine that is not there, for a folder that holds anything else or an edited report,
    or where nothing can be written.
    """
    if not runs and not traces and not profiles:
        raise UserError("no measurements to report: run mlproject run first")
    ids = run_ids or {}
    when = written or datetime.now(timezone.utc)
    run_numbers = number_runs(runs)
    about = front or FrontMatter()
    across = across_machines(runs, prices, reference)
    content = make_content(
        runs, profiles, traces, ids, unreadable, when, run_numbers, about, across
    )
    points = [run.point for run in runs if run.point]
    archs = [run.arch for run in runs] + [one.record.arch or "" for one in traces]
    colours = model_colours([*archs, *(profile.record.config.arch for profile in profiles)])
    try:
        new, aside = begin_report(folder)
        if aside is not None:
            on_moved(aside)
        place = FigureFolder(new / "figures", colours, run_numbers, (run.env for run in runs))
        figures = {
            "roofline": place.draw_roofline(points, ids) if points else None,
            "across": draw_across(across, place),
            "of_runs": draw_runs(runs, place),
            "of_machines": place.draw_machines(points, ids),
            "of_traces": {
                trace.number: place.draw_trace(trace, name) for trace, name in named_traces(traces)
            },
            "of_profiles": {
                profile.number: place.draw_profile(profile, name)
                for profile, name in named_profiles(profiles)
            },
        }
        texts = {
            new / "report.html": _rendered("report.html.j2", content, figures),
            new / "report.md": _rendered("report.md.j2", content, figures),
            **_tables(content, new),
        }
        for file, text in texts.items():
            file.write_text(text, encoding="utf-8", newline="\n")
        end_report(new)
    except OSError as error:
        raise UserError(
            f"out={str(folder)!r}: cannot write the report there ({error.strerror or error}); "
            "choose another folder with --out"
        ) from None
    return folder / "report.html"


def _tables(content: Content, folder: Path) -> dict[Path, str]:
    """The text of each file of a table."""
    found: dict[Path, str] = {}
    for table in content.tables.values():
        path = folder / "tables" / table.name
        found[path.with_name(f"{table.name}.csv")] = table.csv()
        found[path.with_name(f"{table.name}.md")] = table.markdown()
        found[path.with_name(f"{table.name}.tex")] = table.latex()
    return found


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
