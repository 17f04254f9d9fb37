"""Quantities as people read them: three digits and the unit that keeps them short."""

from __future__ import annotations


def three_digits(value: float) -> str:
    """Format a number with three significant digits and no exponent between 1e-4 and 1e6."""
    return f"{float(f'{value:.3g}'):g}"


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
    ends = [three_digits(low), three_digits(high)]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def plus_minus(mean: float, deviation: float | None) -> str:
    """Format a mean with its SD, or alone where that is not known."""
    if deviation is None:
        return three_digits(mean)
    # Two digits: a deviation of few repeats is not known better.
    return f"{three_digits(mean)} \N{PLUS-MINUS SIGN} {float(f'{deviation:.2g}'):g}"


def percent_interval(low: float, high: float) -> str:
    """Format two fractions of 1 as percent, or one if both read the same."""
    ends = [f"{100 * low:.0f}", f"{100 * high:.0f}"]
    return f"{ends[0]} %" if ends[0] == ends[1] else f"{ends[0]} to {ends[1]} %"


def percent(share: float) -> str:
    """Format a fraction of 1 as percent: two digits below 10 %, so that little is not nothing."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 9.95 or not value else f"{float(f'{value:.2g}'):g} %"


def whole_number(text: str | None) -> int | None:
    """Return the whole number that `text` spells, or None for anything else (`auto`)."""
    try:
        value = float(text) if text is not None else None
    except ValueError:
        return None
    return int(value) if value is not None and value.is_integer() else None


def times(ratio: float) -> str:
    """Format a ratio with three digits and a sign of multiplication."""
    return f"{three_digits(ratio)}x"


def counted(number: int, noun: str) -> str:
    """Format a number of things, such as `1 run` and `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
