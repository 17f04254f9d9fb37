"""What a machine makes of a configuration: shares of its roof and of its peak, energy, cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from analysis.comparison.machines.prices import NO_PRICES, Cost, Prices
from analysis.runs.groups import Group
from analysis.runs.run import Run
from bench.config import ENERGY, energy_metric


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """What a group of repeats makes of its machine; what is None has its reason in `missing`.

    `fraction_of_roof` is an interval where the traffic is not counted, `mfu` the model FLOP
    utilisation: attained / peak FLOP/s of the arithmetic that ran. Both are of 1, and with the
    energy means over the repeats. `ceiling_kind` is measured or datasheet. The costs are on demand
    and at a spot price.
    """

    fraction_of_roof: tuple[float, float] | None
    mfu: float | None
    ceiling_kind: str | None
    energy_j_per_sample: float | None
    cost: Cost | None
    spot_cost: Cost | None
    missing: Mapping[str, str]


def efficiency_of(group: Group, prices: Prices = NO_PRICES) -> Efficiency:
    """Return a group's shares of its roof and of its peak, its energy and its costs."""
    points = [run.point for run in group.runs if run.point is not None]
    energies = [value for run in group.runs if (value := run.usable(ENERGY)) is not None]
    cost, spot_cost = prices.cost(group), prices.cost(group, spot=True)
    missing = {}
    if not points:
        missing["mfu"] = missing["fraction_of_roof"] = (
            group.first.refusal or "not placed under a roof"
        )
    if not energies:
        missing[energy_metric(group.sample)] = _why_no_energy(group.first)
    for name, found in (("cost", cost), ("spot_cost", spot_cost)):
        if isinstance(found, str):
            missing[name] = found
    lows = [point.fraction_of_roof_min for point in points]
    highs = [point.fraction_of_roof_max for point in points]
    return Efficiency(
        fraction_of_roof=(fmean(lows), fmean(highs)) if points else None,
        mfu=fmean(point.fraction_of_peak for point in points) if points else None,
        ceiling_kind=points[0].ceiling.kind if points else None,
        energy_j_per_sample=fmean(energies) if energies else None,
        cost=None if isinstance(cost, str) else cost,
        spot_cost=None if isinstance(spot_cost, str) else spot_cost,
        missing=missing,
    )


def _why_no_energy(run: Run) -> str:
    record = run.record
    if record is None:
        return "imported: its file gives no energy" if run.imported_from else "no record"
    if record.telemetry is None:
        return record.missing.get("telemetry", "no telemetry")
    return record.telemetry.missing.get("energy_j", "no energy over the window")
