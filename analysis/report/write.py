"""Writes a report: figures, tables, Markdown, one self-contained HTML file, and PDF on request."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from analysis.comparison.across import AcrossMachines, across_machines
from analysis.comparison.machines import NO_PRICES, Prices
from analysis.findings import find_all
from analysis.presentation.table import Table, grouped, markdown_text, utc
from analysis.report import run_tables as of_runs
from analysis.report import sentences
from analysis.report import step_tables as of_steps
from analysis.report.figures import file_names, report_figures, save_figures
from analysis.runs.groups import Runs
from analysis.runs.place import PlacedProfile
from analysis.runs.points import DOUBTFUL_ROOF
from analysis.runs.run import Run, recorded
from analysis.traces.placed import PlacedTrace
from bench.errors import UserError
from bench.records.folders import write_atomically

#: A paragraph put after the notes; where it is not the last one, they leave something open.
_END = "end of the notes"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome",
             "msedge")  # fmt: skip
#: What prints a page, by name; the first one that is installed does.
PRINTERS = (*_BROWSERS, "weasyprint")
_PRINTING_LIMIT_S = 180


@dataclass(frozen=True)
class FrontMatter:
    """What a person adds: a title, an author, and notes in Markdown; none is needed."""

    title: str = "Training steps under their roofs"
    author: str = ""
    notes: str = ""

    @property
    def html(self) -> str:
        """The notes for a page: raw HTML in them is text."""
        return str(_parser().render(self.notes))


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
) -> Path:
    """Write the report of `runs` into `folder` and return the path of `report.html`.

    `profiles` and `traces` have sections of their own. Beside it: `report.md`, `figures/*.png`
    and `.svg`, `tables/*.csv`, `.md` and `.tex`, and the sums of all. `run_ids` maps record ids,
    those of ceilings too, to tracked runs; `unreadable` names runs that could not be read; `front`
    is what a person adds; `prices` are those of machines; `reference` is the machine that the
    others are held against, by default the one with most configurations in common. An earlier
    report in the folder is replaced. Raises `UserError` without a run, a profile or a trace, for a
    `reference` or a price of a machine that is not there, for a folder that holds anything else or
    an edited report, or where nothing can be written.
    """
    if not runs and not traces and not profiles:
        raise UserError("no measurements to report: run mlproject run first")
    runs, ids = Runs.of(runs), run_ids or {}
    labels = [of.label for of in profiles] + [f"trace {of.label}" for of in traces]
    steps: list[PlacedProfile | PlacedTrace] = [*profiles, *traces]
    inside = dict(zip(file_names(labels), steps, strict=True))
    across = across_machines(runs, prices, reference)
    tables = report_tables(runs, inside, ids, across)
    shown = list(chain.from_iterable(tables.values()))
    content: dict[str, Any] = {
        "front": front or FrontMatter(),
        "written": utc(written or datetime.now(timezone.utc)),
        "summary": sentences.summary(runs, profiles, traces),
        "opening": sentences.opening(runs) if runs else of_steps.opening(profiles, traces),
        "problems": problems(runs, profiles, unreadable),
        "findings": find_all(runs, across=across),
        "named": runs.numbers.named,
        "across": across.sentences,
        "inside": inside,
        "step_sentences": of_steps.step_sentences,
        "tables": tables,
        "commands": sentences.commands(recorded(runs)),
        "matrix": sentences.matrix(recorded(runs)),
        "counts": sentences.counts_of(runs),
        "judged": any(row.get("ratio_low") is not None for table in shown for row in table.rows),
    }
    try:
        new = begin_report(folder)
        drawn = report_figures(runs, inside, across)
        figures = save_figures(drawn, new / "figures")
        rooflines = any(figures[part] for part in ("roofline", *inside))
        content |= {"figures": figures, "rooflines": rooflines}
        for page, form in (("page.html.j2", "form.html.j2"), ("body.j2", "form.md.j2")):
            _render(new / f"report.{form.split('.')[1]}", page, form, content)
        for table in shown:
            texts = {"csv": table.csv(), "md": table.markdown(), "tex": table.latex()}
            for ending, text in texts.items():
                path = new / "tables" / f"{table.name}.{ending}"
                path.write_text(text, encoding="utf-8", newline="\n")
        end_report(new)
    except OSError as error:
        raise UserError(
            f"out={str(folder)!r}: cannot write the report there ({error.strerror or error}); "
            "choose another folder with --out"
        ) from None
    return folder / "report.html"


def _render(path: Path, page: str, form: str, content: Mapping[str, Any]) -> None:
    """Write the report as `page` has it, whose blocks are written by the macros of `form`."""
    in_html = form == "form.html.j2"
    environment = Environment(
        loader=PackageLoader("analysis.report", "templates"),
        autoescape=in_html,  # noqa: S701 (Markdown is escaped by its own filter)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = {f"{number}" for those, _ in content["commands"] for number in those}
    environment.filters["leads"] = lambda cell: (
        first if (first := re.split(r"\D", cell, maxsplit=1)[0]) in numbers else ""
    )
    environment.filters["trusted"] = Markup  # Plotly's own page fragments
    environment.globals["plotly_script"] = get_plotlyjs
    environment.filters["fence"] = markdown_fence
    environment.filters["plain"] = str if in_html else markdown_text
    with path.open("w", encoding="utf-8", newline="\n") as file:  # tens of MB of thousands of runs
        file.writelines(environment.get_template(page).generate(content, form_template=form))


def markdown_fence(text: str) -> str:
    """Return a code fence longer than any run of backticks in `text`."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(3, longest + 1)


# Its folder: a new report is written in `.unfinished` and takes the earlier one's place once it is
# whole. `report.sha256` has the sum of every file as it was written, in the form of `sha256sum
# --check`. A file with another sum, or without one, is a person's: such a folder is left alone.

_SUMS = "report.sha256"
_UNFINISHED = ".unfinished"
_PDF = "report.pdf"


def begin_report(folder: Path) -> Path:
    """Return where to write a new report.

    Raises `UserError` where the folder holds a file that no report wrote, since all of it is
    uploaded, or one that was edited.
    """
    sums = _sums(folder)
    files = ((name, path) for name, path in _files(folder).items() if name != _PDF)
    if own := sorted(name for name, path in files if (name, _sum(path)) not in sums):
        raise UserError(
            f"out={str(folder)!r}: {own[0]} was not written by a report, or edited since (--notes "
            "puts in your own text); write to another folder with --out, or move it elsewhere"
        )
    new = folder / _UNFINISHED
    if new.exists():
        shutil.rmtree(new)
    for name in ("figures", "tables"):
        (new / name).mkdir(parents=True)
    return new


def end_report(new: Path) -> None:
    """Bring a report that is whole to its place, file by file, and remove what is left of another.

    Until the end the sums are those of both, so that no file looks edited if this is cut short.
    """
    folder, files = new.parent, _files(new)
    sums, earlier = {(name, _sum(path)) for name, path in files.items()}, _sums(folder)
    _keep_sums(folder, sums | earlier)
    for name, path in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        path.replace(folder / name)
    replaced = {name for name, _ in earlier} | {_PDF}
    for name, path in _files(folder).items():
        if name in replaced - files.keys():
            path.unlink()
    _keep_sums(folder, sums)
    shutil.rmtree(new)


def _files(folder: Path) -> dict[str, Path]:
    """The files of a report by their paths within its folder."""
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {
        name.as_posix(): path
        for name, path in files.items()
        if name.parts[0] not in (_SUMS, _UNFINISHED) and name.name != ".DS_Store"
    }


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _sums(folder: Path) -> set[tuple[str, str]]:
    kept = folder / _SUMS
    lines = kept.read_text("utf-8").splitlines() if kept.exists() else []
    return {(name, total) for total, _, name in (line.partition("  ") for line in lines)}


def _keep_sums(folder: Path, sums: Iterable[tuple[str, str]]) -> None:
    lines = sorted(f"{total}  {name}\n" for name, total in sums)
    write_atomically(folder / _SUMS, "".join(lines))


# What stands in it

#: The tables of each part of the report, in its order; each profile and trace is a part besides.
_PARTS = {
    "summary": ("summary",),
    "design": ("environments", "runs", "imported"),
    "complexity": ("complexity",),
    "measurements": ("measurements", "phases", "telemetry"),
    "points": ("points", "accounts", "gains"),
    "ceilings": ("ceilings",),
    "profiles": ("profiles", "copies", "cpu-counters"),
    "traces": ("trace-steps", "trace-accounts", "trace-idle", "trace-ranks", "trace-comparison"),
    "across": ("times-as-fast", "prices"),
    "runs": ("uplift", "batch-gains", "predictions"),
    "scaling": ("scaling",),
}


def report_tables(
    runs: Runs,
    inside: Mapping[str, PlacedProfile | PlacedTrace],
    run_ids: Mapping[str, str],
    across: AcrossMachines,
) -> dict[str, list[Table]]:
    """Return the tables of each part of the report that have a row, numbered in its order.

    `inside` are profiles and traces by the names of their parts.
    """
    profiles = [step for step in inside.values() if isinstance(step, PlacedProfile)]
    traces = [step for step in inside.values() if isinstance(step, PlacedTrace)]
    named = {
        **of_runs.run_tables(runs, run_ids),
        **of_runs.configuration_tables(runs),
        **of_runs.machine_tables(across),
        **of_steps.profile_tables(profiles),
        **of_steps.trace_tables(traces),
        "environments": of_runs.environments_table(runs),
    }
    parts: dict[str, list[Table]] = {}
    for part, names in _PARTS.items():
        parts[part] = [named[name] for name in names if name in named]
        of_part = ((name, step) for name, step in inside.items() if f"{step.record.kind}s" == part)
        parts |= {name: of_steps.tables_of(step, name) for name, step in of_part}
    order, put_in = count(1), runs.numbers.put_in
    return {
        part: [
            replace(table, rows=put_in(table.rows), number=next(order))
            for table in tables
            if table.rows
        ]
        for part, tables in parts.items()
    }


def problems(
    runs: Runs, profiles: Iterable[PlacedProfile], unreadable: Sequence[str]
) -> list[tuple[str, Sequence[str]]]:
    """Return what must not be taken as it stands, each with the reasons; runs alike together."""
    found: list[tuple[str, Sequence[str]]] = [("record not read", [line]) for line in unreadable]
    for reasons, those in grouped(runs, lambda run: run.problems).items():
        words = [runs.numbers.named([run.name for run in those]).capitalize()]
        words += [those[0].label] if len(those) == 1 else []
        words += ["imported"] if all(run.imported for run in those) else []
        found.append((", ".join(words), reasons))
    found += _doubtful_roofs(runs)
    found += [(f"Profile {of.number}, {of.label}", of.problems) for of in profiles]
    return [(subject, reasons) for subject, reasons in found if reasons]


def _doubtful_roofs(runs: Runs) -> Iterator[tuple[str, Sequence[str]]]:
    """Each roof whose measurement was disturbed, with the runs under it and what that means."""
    doubted = (run for run in runs if any(f.code == DOUBTFUL_ROOF for f in run.findings))
    for under in grouped(doubted, lambda run: run.point and run.point.ceiling_record_id).values():
        roof = (f for f in under[0].findings if f.code == DOUBTFUL_ROOF)
        doubts = "; ".join(f"{finding.facts['doubt']}" for finding in roof)
        over = runs.numbers.named([run.name for run in under])
        why = (
            f"suspect: {doubts}: it may be too low, and so the shares of it too high; measure it "
            "again while the machine rests: mlproject ceilings"
        )
        yield f"Roof of {under[0].env}, over {over}", [why]


# What a person adds


def front_matter(title: str | None, author: str | None, notes: Path | None) -> FrontMatter:
    """Return what was given, else the usual. Raises `UserError` for bad notes."""
    text = _notes(notes) if notes else ""
    return FrontMatter(title=title or FrontMatter.title, author=author or "", notes=text)


def _notes(path: Path) -> str:
    """The text, whose headings are below the report's own."""
    where = f"notes={str(path)!r}:"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{where} cannot be read as UTF-8 text ({error})") from None
    blocks = MarkdownIt("commonmark").parse(f"{text}\n\n{_END}\n")
    if blocks[-1].type != "paragraph_close" or blocks[-2].content != _END:
        raise UserError(f"{where} a code block or an HTML comment in it is not closed; close it")
    lines = text.splitlines()
    for token, words in reversed([*pairwise(blocks)]):
        if token.type == "heading_open" and token.level == 0 and token.map:
            level = min(int(token.tag[1:]) + 2, 6)
            lines[slice(*token.map)] = [f"{'#' * level} {' '.join(words.content.split())}"]
    return "\n".join(lines).strip("\n")


def _parser() -> MarkdownIt:
    """CommonMark with tables; raw HTML is text, pictures are links: a report is one file."""
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    return parser.disable("image")


# PDF


def print_pdf(html: Path) -> Path:
    """Print `html` to a PDF of the same name beside it, and return its path.

    Raises `UserError` where no tool is installed, or where it makes no PDF.
    """
    pdf = html.with_suffix(".pdf")
    tool = next(filter(shutil.which, PRINTERS), None)
    if tool is None:
        raise UserError(
            "pdf: neither Chromium, Chrome, Edge nor WeasyPrint is installed; install one of "
            "them, or print report.html from any browser"
        )
    with tempfile.TemporaryDirectory() as profile:
        options = [
            "--headless",
            "--disable-gpu",
            "--no-sandbox",  # our own file, without network; root in a container has none
            "--no-pdf-header-footer",
            f"--user-data-dir={profile}",
            f"--print-to-pdf={pdf.resolve()}",
            html.resolve().as_uri(),
        ]
        command = [tool, *(options if tool in _BROWSERS else (f"{html}", f"{pdf}"))]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_PRINTING_LIMIT_S, check=False
            )
            said = done.stderr.strip().splitlines() or ["it said nothing"]
            why = "" if done.returncode == 0 and pdf.is_file() else said[-1]
        except subprocess.TimeoutExpired:
            why = f"it took over {_PRINTING_LIMIT_S} s"
    if why:
        raise UserError(f"pdf: {tool} made none ({why}); try without --pdf")
    return pdf
