"""The templates: everything that comes from a record is escaped for the format it goes into."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.report.content import Content

if TYPE_CHECKING:
    from analysis.report.figure_files import FigureFile

#: What Markdown would read as markup inside a line or a table's cell.
_MARKDOWN = re.compile(r"([\\`*\[\]|~$#!])|(?<!\w)(_)|(_)(?!\w)")


def render_html(
    content: Content,
    figures: Sequence[FigureFile],
    of_profiles: Mapping[int, Sequence[FigureFile]],
) -> str:
    """Return the one-file report; `of_profiles` are figures by their profile's number."""
    environment = _environment(autoescape=True)
    environment.filters["trusted"] = Markup  # Plotly's own page fragments
    template = environment.get_template("report.html.j2")
    return template.render(content=content, figures=figures, of_profiles=of_profiles)


def render_markdown(
    content: Content,
    figures: Sequence[FigureFile],
    of_profiles: Mapping[int, Sequence[FigureFile]],
) -> str:
    """Return the report as Markdown with links to the figures and tables beside it."""
    environment = _environment(autoescape=False)
    environment.filters["md"] = markdown_text
    fence = markdown_fence(" ".join(command for _, command in content.commands))
    template = environment.get_template("report.md.j2")
    return template.render(content=content, figures=figures, of_profiles=of_profiles, fence=fence)


def markdown_text(text: str) -> str:
    """Return `text` as one line that Markdown shows as it stands."""
    line = " ".join(text.split())
    line = _MARKDOWN.sub(lambda match: "\\" + match[0], line)
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


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
