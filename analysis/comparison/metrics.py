"""The numbers that two sets of runs can be compared by, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.errors import UserError

#: What a better and a worse B are called.
_SPEED = ("faster", "slower")
_USE = ("better", "worse")


@dataclass(frozen=True)
class ComparedMetric:
    """A metric by its name in the tracking schema; `window` is the statistic of a window's times.

    `words` are those for a better and for a worse value.
    """

    name: str
    unit: str
    better: Literal["higher", "lower"]
    words: tuple[str, str]
    window: Literal["mean", "median"] | None = None


METRICS = {
    metric.name: metric
    for metric in (
        ComparedMetric("throughput_images_per_s", "images/s", "higher", _SPEED, "mean"),
        ComparedMetric("attained_gflops", "GFLOP/s", "higher", _SPEED, "mean"),
        ComparedMetric("iteration_time_ms_mean", "ms", "lower", _SPEED, "mean"),
        ComparedMetric("iteration_time_ms_p50", "ms", "lower", _SPEED, "median"),
        ComparedMetric("iteration_time_ms_p95", "ms", "lower", _SPEED),
        ComparedMetric("iteration_time_ms_p99", "ms", "lower", _SPEED),
        ComparedMetric("iteration_time_ms_std", "ms", "lower", _USE),
        ComparedMetric("compile_time_s", "s", "lower", _SPEED),
        ComparedMetric("data_wait_share", "of 1", "lower", _USE),
        ComparedMetric("peak_memory_mb", "MB", "lower", _USE),
        ComparedMetric("max_rss_mb", "MB", "lower", _USE),
        ComparedMetric("energy_j", "J", "lower", _USE),
        ComparedMetric("energy_j_per_image", "J", "lower", _USE),
        ComparedMetric("real_s", "s", "lower", _SPEED),
        ComparedMetric("user_s", "s", "lower", _USE),
        ComparedMetric("system_s", "s", "lower", _USE),
    )
}


def compared_metric(name: str) -> ComparedMetric:
    """Return the metric of that name. Raises `UserError` for one that cannot be compared."""
    if name not in METRICS:
        raise UserError(f"metric={name!r}: compare one of {', '.join(METRICS)}")
    return METRICS[name]
