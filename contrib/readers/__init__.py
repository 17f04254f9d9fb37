"""Readers of other labs' files for `mlproject import`, and what several of them need."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tracking.importing import OtherFileError, count

_GPU = re.compile(
    r"(?:^|_)(?:(?P<count>\d{1,2})x)?(?P<gpu>TitanRTX|QuadroRTX\d{4}|(?:AdaA|GH|[ABHLTV])\d{2,4}|"
    r"\d{4}(?:Ti|SuperMaxQ|Super|Max-?Q)?)[A-Za-z]*"
    r"(?P<variant>(?:_(?:\d{2,3}GB|SXM\d?|PCIe\d?|NVL)(?=_|$))*)(?=_|$)"
)


def gpu_in_name(label: str) -> tuple[str | None, int | None]:
    """Return which GPU a machine's label names, and how many; None for what it does not say.

    `8xH100_80GB_SXM5_192-222-52-99_v2` has 8 `H100 80GB SXM5`.
    """
    gpu = _GPU.search(label)
    if gpu is None:
        return None, None
    return gpu["gpu"] + gpu["variant"].replace("_", " "), int(gpu["count"] or 0) or None


def near(file: Path, *steps: str) -> str | None:
    """Return the text of a file by its way from the folder of `file`; None where none is there."""
    path = file.parent.joinpath(*steps).resolve()
    return path.read_text("utf-8-sig") if path.is_file() else None


def part(whole: Any, *names: str) -> dict[str, Any]:
    """Return the object that a way of names leads to in JSON; an empty one where none is there."""
    for name in names:
        whole = whole.get(name) if isinstance(whole, dict) else None
    return whole if isinstance(whole, dict) else {}


def whole_number(value: object) -> int | None:
    """Return a whole number from zero, None for anything else."""
    try:
        return count(str(value))
    except ValueError:
        return None


@contextmanager
def on_line(line: int) -> Iterator[None]:
    """Name the line of a file in what is wrong there."""
    try:
        yield
    except OtherFileError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"line {line}: {error}") from None
