"""Text from records, made harmless for the format that it goes into."""

from __future__ import annotations

import re

#: What Markdown would read as markup inside a line or a table's cell.
_MARKDOWN = re.compile(r"([\\`*\[\]|~$#!])|(?<!\w)(_)|(_)(?!\w)")
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{sign: f"\\{sign}" for sign in "&%$#_"},
}


def markdown_text(text: str) -> str:
    """Return `text` as one line that Markdown shows as it stands."""
    line = " ".join(text.split())
    line = _MARKDOWN.sub(lambda match: "\\" + match[0], line)
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def latex_text(text: str) -> str:
    """Return `text` as one line that LaTeX prints as it stands."""
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))
