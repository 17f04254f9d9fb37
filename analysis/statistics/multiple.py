"""Many comparisons at once: p-values raised so that chance alone does not find an effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values for which the chance of any false finding stays under the level.

    Holm, Scandinavian Journal of Statistics 6, 1979.
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return p-values for which the expected share of false findings stays under the level.

    Benjamini and Hochberg, Journal of the Royal Statistical Society B 57, 1995.
    """
    from scipy import stats  # takes half a second to import, which `import analysis` does without

    adjusted: list[float] = stats.false_discovery_control(list(p_values)).tolist()
    return adjusted


def uncorrected(p_values: Sequence[float]) -> list[float]:
    """Return the p-values as they are."""
    return list(p_values)


CORRECTIONS: Mapping[str, Callable[[Sequence[float]], list[float]]] = {
    "holm": holm,
    "bh": benjamini_hochberg,
    "none": uncorrected,
}
