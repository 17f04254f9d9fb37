"""The templates: everything that comes from a record is escaped for the format it goes into."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.report.content import Content
from analysis.report.markup import markdown_text

if TYPE_CHECKING:
    from analysis.report.figure_files import FigureFile


@dataclass(frozen=True)
class DrawnFigures:
    """The report's figures: rooflines, those of each profile by its number, those of runs."""

    rooflines: Sequence[FigureFile]
    of_profiles: Mapping[int, Sequence[FigureFile]]
    of_runs: Sequence[FigureFile]


def render_html(content: Content, figures: DrawnFigures) -> str:
    """Return the one-file report."""
    environment = _environment(autoescape=True)
    environment.filters["trusted"] = Markup  # Plotly's own page fragments
    template = environment.get_template("report.html.j2")
    return template.render(content=content, figures=figures)


def render_markdown(content: Content, figures: DrawnFigures) -> str:
    """Return the report as Markdown with links to the figures and tables beside it."""
    environment = _environment(autoescape=False)
    environment.filters["md"] = markdown_text
    fence = markdown_fence(" ".join(command for _, command in content.commands))
    template = environment.get_template("report.md.j2")
    return template.render(content=content, figures=figures, fence=fence)


def markdown_fence(text: str) -> str:
    """Return a code fence longer than any run of backticks in `text`."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(3, longest + 1)


def _environment(*, autoescape: bool) -> Environment:
    return Environment(
        loader=PackageLoader("analysis", "templates"),
        autoescape=autoescape,  # noqa: S701 (Markdown is escaped by its own filter)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
