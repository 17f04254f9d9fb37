"""What one window of iterations says of its own mean or median, and how surely.

Iterations resemble their neighbours, so drawing them one by one makes intervals too narrow, and
drawing blocks alone still does at a hundred iterations (88 % instead of 95 % at a correlation of
0.7). So the correlation is taken out first, blocks of what is left are drawn (their length by
Politis and White), and the correlation is put back: the post-blackened bootstrap, Davison and
Hinkley, Bootstrap Methods and their Application, 1997, section 8.2.3. The half-width is the
bootstrap's deviation times Student's t for the number of independent iterations.

It holds for this window alone. No window shows how much another repeat would differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from analysis.statistics.series import Values, block_length, effective_count
from bench.records.verdict.drift import lag_one_correlation

Statistic = Literal["mean", "median"]
_STATISTICS: dict[Statistic, Callable[..., NDArray[np.float64]]] = {
    "mean": np.mean,
    "median": np.median,
}
#: Draws: the half-width is then good to 2 %.
_DRAWS = 1000
#: Values drawn before those that count, so that the correlation has set in.
_SETTLING = 40
#: Fewer iterations say nothing about how they are correlated.
_FEW = 5


@dataclass(frozen=True)
class WindowEstimate:
    """A mean or median of one window, in its values' unit, with its interval."""

    value: float
    low: float
    high: float
    deviation: float  # standard error of `value`
    effective_count: float  # independent iterations


def estimate_window(
    values: Values, statistic: Statistic = "median", *, level: float = 0.95, seed: int = 0
) -> WindowEstimate | None:
    """Return `statistic` of the iterations with its interval, or None for fewer than five."""
    series = np.asarray(values, dtype=float)
    if len(series) < _FEW:
        return None
    function = _STATISTICS[statistic]
    value = float(function(series))
    draws = _drawn_windows(series, np.random.default_rng(seed))
    deviation = float(np.std(function(draws, axis=1), ddof=1))
    independent = effective_count(series)
    half = float(special.stdtrit(independent - 1, (1 + level) / 2)) * deviation
    return WindowEstimate(value, value - half, value + half, deviation, independent)


def _drawn_windows(series: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    """Windows that could have been measured, around a mean of 0; shape (draws, iterations)."""
    from scipy import signal  # takes half a second to import, which `import analysis` does without

    count, correlation = len(series), lag_one_correlation(series.tolist())
    deviations = series - series.mean()
    shocks = deviations[1:] - correlation * deviations[:-1]
    # Deviations from a mean that was itself estimated, and a correlation likewise, are too small.
    shocks = (shocks - shocks.mean()) * np.sqrt(count / (count - 2))
    length = block_length(shocks)
    needed = count + _SETTLING
    blocks = -(-needed // length)
    starts = random.integers(0, len(shocks), (_DRAWS, blocks, 1))
    places = (starts + np.arange(length)).reshape(_DRAWS, -1)[:, :needed] % len(shocks)
    drawn = signal.lfilter([1.0], [1.0, -correlation], shocks[places], axis=1)
    windows: NDArray[np.float64] = drawn[:, _SETTLING:]
    return windows
