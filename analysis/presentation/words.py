"""Quantities as people read them: three digits and the unit that keeps them short.

A number gets more digits where a difference would else not show: that of the ends of an interval,
that of a ratio from 1, and the deviation of a mean.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.statistics.ratios import RatioEstimate

_MOST_DIGITS = 6
_NO_INTERVAL = "single runs, no interval"


def three_digits(value: float) -> str:
    """Format a number with three significant digits and no exponent between 1e-4 and 1e9."""
    return _digits(value, 3)


def _digits(value: float, digits: int) -> str:
    return f"{float(f'{value:.{digits}g}'):.9g}"


def _showing(value: float, step: float) -> str:
    """Format with three digits, or with as many more as show the first digit of `step`."""
    if not (value and step and math.isfinite(value) and math.isfinite(step)):
        return three_digits(value)
    needed = math.floor(math.log10(abs(value))) - math.floor(math.log10(abs(step))) + 1
    return _digits(value, min(max(needed, 3), _MOST_DIGITS))


def signed(value: float) -> str:
    """Return three digits after the sign, such as +50.8."""
    return ("+" if value >= 0 else "-") + three_digits(abs(value))


def flops_rate(flops_per_s: float) -> str:
    """Format FLOP/s as GFLOP/s, or TFLOP/s from 10,000 GFLOP/s on."""
    if flops_per_s >= 1e13:
        return f"{three_digits(flops_per_s / 1e12)} TFLOP/s"
    return f"{three_digits(flops_per_s / 1e9)} GFLOP/s"


def bytes_rate(bytes_per_s: float) -> str:
    """Format B/s as GB/s (1e9 B/s), or TB/s from 10,000 GB/s on."""
    if bytes_per_s >= 1e13:
        return f"{three_digits(bytes_per_s / 1e12)} TB/s"
    return f"{three_digits(bytes_per_s / 1e9)} GB/s"


def interval(low: float, high: float) -> str:
    """Format an interval, or one number if both ends read the same."""
    ends = [_showing(end, high - low) for end in (low, high)]
    return three_digits(low) if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def plus_minus(mean: float, deviation: float | None) -> str:
    """Format a mean with its SD, or alone where that is not known."""
    if deviation is None:
        return three_digits(mean)
    # Two digits: a deviation of few repeats is not known better.
    return f"{_showing(mean, deviation / 10)} \N{PLUS-MINUS SIGN} {_digits(deviation, 2)}"


def percent_interval(low: float, high: float) -> str:
    """Format two fractions of 1 as percent, or one if both read the same."""
    ends = [percent(low), percent(high)]
    return ends[0] if ends[0] == ends[1] else f"{ends[0][:-2]} to {ends[1]}"


def percent(share: float) -> str:
    """Format a fraction of 1 as percent: two digits below 10 %, so that little is not nothing."""
    value = 100 * share
    return f"{value:.0f} %" if abs(value) >= 9.95 or not value else f"{_digits(value, 2)} %"


def percent_change(share: float) -> str:
    """Format a relative change with its sign."""
    return f"{'-' if share < 0 else '+'}{percent(abs(share))}"


def whole_number(text: str | None) -> int | None:
    """Return the whole number that `text` spells, or None for anything else (`auto`)."""
    try:
        value = float(text) if text is not None else None
    except ValueError:
        return None
    return int(value) if value is not None and value.is_integer() else None


def times(ratio: float) -> str:
    """Format a ratio with a sign of multiplication."""
    return f"{ratio_digits(ratio)}x"


def estimated(estimate: RatioEstimate) -> str:
    """Format a ratio with its interval, or say that there is none."""
    ends = estimate.interval
    return f"{times(estimate.ratio)} ({f'95 %: {interval(*ends)}' if ends else _NO_INTERVAL})"


def as_fast_as(least: float, largest: float) -> str:
    """Return `1.2 to 1.4 times as fast as`, without a number where both ends are 1."""
    ends = [ratio_digits(ratio) for ratio in (least, largest)]
    if ends == ["1", "1"]:
        return "as fast as"
    shown = ends[0] if ends[0] == ends[1] else interval(least, largest)
    return f"{shown} times as fast as"


def ratio_digits(ratio: float) -> str:
    """Format a ratio with three digits, or more where it differs from 1 by less."""
    return _showing(ratio, ratio - 1)


def counted(number: int, noun: str) -> str:
    """Format a number of things, such as `1 run` and `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
