"""Values as Kineto writes them: numbers that are strings, and JSON within an event."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from bench.profilers.traces.chrome_events import Scalar

#: Bytes of one list or one fact.
MOST_VALUE_BYTES = 1_000_000
#: Of a tensor: torch counts them in signed 64 bits.
_MOST_ELEMENTS = 2**63 - 1

_LIST = msgspec.json.Decoder(list[Any])
_ANY = msgspec.json.Decoder()


def number_in(value: Any) -> float | None:
    """Return a finite number, also where it is written as a string; else None."""
    if type(value) is float:
        return value
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def whole_in(value: Scalar, other: Scalar = None) -> int | None:
    """Return a whole number that `value` or else `other` is, also as a string; else None."""
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    return None if other is None else whole_in(other)


def plain(value: Scalar) -> int | str | None:
    """Return a number or a word.

    A thread is `123` in some events of a file and `"123"` in others.
    """
    number = whole_in(value)
    if number is not None:
        return number
    return value if value is None else str(value)[:200]


def value_in(written: msgspec.Raw) -> Any:
    """Return the value of a piece of JSON; None where there is none, or too much."""
    text = bytes(written)
    return _ANY.decode(_text(text)) if 0 < len(text) <= MOST_VALUE_BYTES else None


def list_in(written: bytes) -> tuple[Any, ...] | None:
    """Return the list of a piece of JSON as tuples; None where it is no list, or too long."""
    if written[:1] != b"[" or len(written) > MOST_VALUE_BYTES:
        return None
    return tuple(map(_frozen, _LIST.decode(_text(written))))


def check_shapes(value: Any) -> None:
    """Raise `ValueError` for a shape, anywhere in `value`, that no tensor can have."""
    if not isinstance(value, tuple):
        return
    lengths = [one for one in value if isinstance(one, (int, float))]
    if any(one < 0 for one in lengths) or math.prod(lengths) > _MOST_ELEMENTS:
        shape = "x".join(str(one)[:20] for one in lengths[:8])
        raise ValueError(f"a tensor of shape {shape}")
    for one in value:
        check_shapes(one)


def _frozen(value: Any) -> Any:
    """Lists as tuples; an object, which no profiler writes there, is nothing."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return None if isinstance(value, dict) else value


def _text(written: bytes) -> str:
    """The parser that found the end of a value did not look into its characters."""
    return written.decode("utf-8", "replace")
