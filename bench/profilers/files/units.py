"""Units of Nsight Compute's figures, old spellings and new, as exact powers of ten."""

from __future__ import annotations

import re
from functools import lru_cache

_TIMES = {
    0: ("s", "sec", "second", "seconds"),
    -3: ("ms", "msecond", "millisecond", "milliseconds"),
    -6: ("us", "usecond", "microsecond", "microseconds", "\u00b5s", "\u03bcs"),
    -9: ("ns", "nsecond", "nanosecond", "nanoseconds"),
}
_SECONDS = {name: power for power, names in _TIMES.items() for name in names}
_BYTES = re.compile(r"([kKMGTP]?)(?:[bB]ytes?|B)")
_COUNTS = re.compile(r"([kKMGTP]?)(?:inst|instructions?|(?:math_)?ops?|flops?|threads?|)")
_LONGEST = 20
_PREFIXES = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}


def unit_power(metric: str, unit: str) -> int:
    """Return the power of ten that turns `unit` into the seconds, bytes or counts of `metric`.

    Raises `ValueError` if `metric` is not measured in `unit`; Nsight Compute scales by 1000.
    """
    if len(unit) > _LONGEST:
        raise ValueError(unit[:_LONGEST])
    return _power(metric, unit.strip())


@lru_cache(maxsize=4096)
def _power(metric: str, unit: str) -> int:
    if is_duration(metric):
        if unit in _SECONDS:
            return _SECONDS[unit]
    elif found := (_BYTES if is_bytes(metric) else _COUNTS).fullmatch(unit):
        return _PREFIXES[found[1]]
    raise ValueError(unit)


def is_base(metric: str, unit: str) -> bool:
    """Whether one `unit` is the least step of `metric`, so that a sum of it is a whole number."""
    return unit_power(metric, unit) == (-9 if is_duration(metric) else 0)


def is_duration(metric: str) -> bool:
    """Whether `metric` is a time."""
    return "time_duration" in metric or metric == "Duration"


def is_bytes(metric: str) -> bool:
    """Whether `metric` is a size."""
    return "_bytes" in metric
