"""A matrix file as PyYAML's nodes; nothing in it is ever executed or expanded.

PyYAML's constructors are left out: scalars stay the text that was written (`no` is not False),
and aliases, which let a small file stand for a huge or an endless one, are refused.
"""

from __future__ import annotations

from pathlib import Path

import yaml
from yaml.nodes import MappingNode, Node

from bench.errors import UserError

#: The matrices of this project are of 2 KiB; a MiB is not written by hand.
_MAX_BYTES = 2**20
#: The deepest sensible value: the list of a field, in an exclude, in a block, in the file.
_MAX_DEPTH = 8


class Problems:
    """Everything that is wrong with a matrix, gathered to be reported at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: list[tuple[int, str]] = []

    def add(self, node: Node, message: str) -> None:
        """Note one problem, of the line on which `node` begins."""
        self._found.append((node.start_mark.line + 1, message))

    def raise_if_any(self) -> None:
        """Raise `UserError` with every problem, in the order of the file."""
        if self._found:
            ordered = [f"line {line}: {text}" for line, text in sorted(dict.fromkeys(self._found))]
            raise UserError(f"matrix={str(self._path)!r}: {'; '.join(ordered)}")


def read_mapping(path: Path) -> MappingNode:
    """Return the file's mapping.

    Raises `UserError` where there is none: no such file, not YAML, aliases, or too large or deep.
    """
    text = _text(path)
    try:
        _refuse_tricks(path, text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise _refusal(path, f"{where}not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise _refusal(path, f"not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(node, MappingNode):
        raise _refusal(
            path, "line 1: give a mapping with a list of blocks; see matrices/smoke.yaml"
        )
    return node


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise _refusal(path, f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise _refusal(path, "not UTF-8 text") from None
    if len(content) > _MAX_BYTES:
        raise _refusal(path, f"larger than {_MAX_BYTES // 2**20} MiB, no matrix is")
    return text


def _refuse_tricks(path: Path, text: str) -> None:
    """PyYAML's event parser keeps its own stack, so depth is safe to look at here."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent):
            raise _refusal(path, f"line {line}: alias *{event.anchor}: write the values out")
        if tag := getattr(event, "tag", None):
            raise _refusal(path, f"line {line}: tag {tag}: give the plain value")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise _refusal(
                path, f"line {line}: lists nested {depth} deep; a matrix has blocks of lists"
            )


def _refusal(path: Path, message: str) -> UserError:
    return UserError(f"matrix={str(path)!r}: {message}")
