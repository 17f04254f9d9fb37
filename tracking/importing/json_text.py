"""JSON in files of other programs: strictly parsed, its values taken only as what they are."""

from __future__ import annotations

import json
import math
from typing import Any


def parse_json(text: str) -> Any:
    """Return what a JSON text says; NaN and infinity are none. Raises `ValueError`."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deep") from None


def part(whole: Any, name: str) -> dict[str, Any]:
    """Return an object inside an object; an empty one where there is none."""
    found = whole.get(name) if isinstance(whole, dict) else None
    return found if isinstance(found, dict) else {}


def number_above_zero(value: Any) -> float:
    """Return a JSON number that is finite and above zero. Raises `ValueError` with the reason."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{str(value)[:40]!r} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 < number < math.inf:
        raise ValueError(f"{str(value)[:40]!r} is not above zero and finite")
    return number


def texts_of(content: dict[str, Any]) -> dict[str, str]:
    """Return the entries that hold something, as texts of at most 1000 characters."""
    return {
        name: (value if isinstance(value, str) else json.dumps(value))[:1000]
        for name, value in content.items()
        if value not in (None, "", [], {})
    }


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")
