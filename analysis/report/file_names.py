"""Names of a report's figures and tables that last: by what they show, not by their order."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Of a name, so that whole paths fit on every system.
_MAX_LETTERS = 80


def file_name(words: str) -> str:
    """Return `words` as a part of a file name: `amd-epyc (1)` becomes `amd-epyc-1`."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", words)[:_MAX_LETTERS].strip("-.") or "unnamed"


def file_names(labels: Iterable[str]) -> list[str]:
    """Return a name per label, `-2` and so on after one that an earlier label has.

    Upper and lower case are the same, as on macOS and Windows.
    """
    taken: set[str] = set()
    found = []
    for label in labels:
        base = name = file_name(label)
        number = 1
        while name.casefold() in taken:
            number += 1
            name = f"{base}-{number}"
        taken.add(name.casefold())
        found.append(name)
    return found
