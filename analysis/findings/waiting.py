"""What data costs: waiting for it, beside synthetic data and the loader alone."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.runs.groups import Group, settings_key
from analysis.runs.run import Run
from analysis.statistics import estimate_ratio
from bench.config import SYNTHETIC
from bench.records.verdict.step_settings import OF_DATA

LOADER_RATE = "loader_images_per_s"


def synthetic_pairs(groups: Sequence[Group]) -> list[tuple[Group, Group]]:
    """Return each group of other data with the one that differs in synthetic data alone."""
    synthetic = {
        settings_key(group.first, OF_DATA): group
        for group in groups
        if group.first.settings.get("data") == SYNTHETIC
    }
    others = [group for group in groups if group.first.settings.get("data", SYNTHETIC) != SYNTHETIC]
    keyed = ((group, synthetic.get(settings_key(group.first, OF_DATA))) for group in others)
    return [(group, same) for group, same in keyed if same is not None]


#: A gain below which there is nothing worth changing.
MIN_GAIN = 1.05


def faster(one: Group, other: Group) -> bool:
    """Whether a group was measured to be faster by 5 %, beyond the noise of repeats if known."""
    estimate = estimate_ratio(one.repeats(), other.repeats())
    return estimate.ratio >= MIN_GAIN and (estimate.low is None or estimate.low > 1)


def loader_rate(group: Group, runs: Sequence[Run]) -> float | None:
    """Return the most images/s of the group's loader alone, by runs with `data_only`.

    Of the same machine, with the same data, image size and settings of the loader.
    """
    alike = ("env", "device", "image_size", *OF_DATA)
    rates = [
        rate
        for run in runs
        if run.settings.get("data_only") == "true"
        and (rate := run.usable(LOADER_RATE)) is not None
        and all(run.settings.get(name) == group.first.settings.get(name) for name in alike)
    ]
    return max(rates, default=None)


def loader_keeps_up(group: Group, runs: Sequence[Run]) -> bool:
    """Whether the loader alone delivers more than the step would take if it never waited."""
    rate = loader_rate(group, runs)
    shares = [run.metrics.get("data_wait_share", 0.0) for run in group.runs]
    computing = 1 - min(max(shares), 1.0)
    return rate is not None and rate * computing > group.samples_per_s
