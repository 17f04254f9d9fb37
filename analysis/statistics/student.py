"""Student's t. The first interval imports SciPy: that takes half a second, and a kit has none."""

from __future__ import annotations


def half_width(degrees: float, level: float) -> float:
    """Return how many standard errors lie between a mean and the ends of its interval."""
    from scipy import special

    return float(special.stdtrit(degrees, (1 + level) / 2))


def chance_below(value: float, degrees: float) -> float:
    """Return the chance that Student's t is below `value`."""
    from scipy import special

    return float(special.stdtr(degrees, value))
