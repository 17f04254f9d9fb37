"""What a person adds to a report: a title, an author, and notes from a Markdown file."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from bench.errors import UserError

#: Headings of the notes begin below the report's own of two signs.
_FIRST_LEVEL = 3
_LAST_LEVEL = 6
#: A paragraph put after the notes; where it is not the last one, they leave something open.
_END = "end of the notes"


@dataclass(frozen=True)
class Notes:
    """Notes as they are put into each form of a report; empty where there are none."""

    markdown: str = ""
    html: str = ""


@dataclass(frozen=True)
class FrontMatter:
    """A title, an author, and notes; the last two may be empty."""

    title: str = "Training steps under their roofs"
    author: str = ""
    notes: Notes = field(default_factory=Notes)


def front_matter(title: str | None, author: str | None, notes: Path | None) -> FrontMatter:
    """Return what was given, else the usual. Raises `UserError` for empty words and bad notes."""
    for name, words in (("title", title), ("author", author)):
        if words is not None and not words.strip():
            raise UserError(f"{name}={words!r}: is empty; write one, or leave --{name} out")
    return FrontMatter(
        title=title or FrontMatter.title,
        author=author or "",
        notes=read_notes(notes) if notes else Notes(),
    )


def read_notes(path: Path) -> Notes:
    """Read a Markdown file as notes. Raises `UserError` where it cannot be put in."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(
            f"notes={str(path)!r}: cannot be read ({error.strerror or error})"
        ) from None
    except UnicodeDecodeError:
        raise UserError(f"notes={str(path)!r}: is not UTF-8 text; save it as UTF-8") from None
    if not text.strip():
        raise UserError(f"notes={str(path)!r}: is empty; write something, or leave --notes out")
    _refuse_unclosed(text, path)
    markdown = _with_lower_headings(text)
    return Notes(markdown=markdown, html=_parser().render(markdown))


def _parser() -> MarkdownIt:
    """CommonMark with tables; raw HTML is text, pictures are links: a report is one file."""
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    return parser.disable("image")


def _refuse_unclosed(text: str, path: Path) -> None:
    """Raise `UserError` where the notes would take what follows them into a block of theirs."""
    blocks = MarkdownIt("commonmark").parse(f"{text}\n\n{_END}\n")
    if blocks[-1].type != "paragraph_close" or blocks[-2].content != _END:
        raise UserError(
            f"notes={str(path)!r}: a code block or an HTML comment in it is not closed; close it"
        )


def _with_lower_headings(text: str) -> str:
    """Return `text` with headings from the third level on, under the report's own."""
    lines = text.splitlines()
    tokens = _parser().parse("\n".join(lines))
    headings = [
        (token, words.content)
        for token, words in pairwise(tokens)
        if token.type == "heading_open" and token.level == 0
    ]
    highest = min((_level(token) for token, _ in headings), default=_FIRST_LEVEL)
    for token, words in reversed(headings):  # from the end: a change moves only what is below
        if token.map is None:
            continue
        level = min(_level(token) - highest + _FIRST_LEVEL, _LAST_LEVEL)
        lines[slice(*token.map)] = [f"{'#' * level} {' '.join(words.split())}"]
    return "\n".join(lines).strip("\n") + "\n"


def _level(heading: Token) -> int:
    return int(heading.tag.removeprefix("h"))
