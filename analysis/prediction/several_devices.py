"""What several devices of a machine give: each computes a batch, and the gradients are exchanged.

A step takes what the single device takes, as many times as long as runs of so many devices show
that they slow each other, and the part of the exchange that nothing hides. The exchange is of
DistributedDataParallel's buckets, over the link that `mlproject ceilings --devices` measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from analysis.prediction.batch_size import Prediction
from analysis.presentation.words import interval, percent_interval, three_digits
from analysis.runs.run import Run
from analysis.runs.settings import same_configuration
from bench.config import rate_column, rate_unit
from bench.errors import UserError
from bench.records import CeilingsRecord
from bench.records.environment import same_device
from bench.records.measurement import AllReduce

#: What may differ between the runs of a curve and those of several devices.
_OF_SIZE = ("devices", "batch_size")
#: DistributedDataParallel's first bucket of gradients and the others (`bucket_cap_mb`, 25).
_FIRST_BUCKET_BYTES, _BUCKET_BYTES = 2**20, 25 * 2**20


def exchange_times_s(gradient_bytes: int, link: Sequence[AllReduce]) -> list[float]:
    """Return what the all-reduce of each of DistributedDataParallel's buckets takes.

    Between measured sizes it follows a straight line, beyond the largest its bandwidth.
    """
    edges = [0, *range(_FIRST_BUCKET_BYTES, gradient_bytes, _BUCKET_BYTES), gradient_bytes]
    sizes, times_s = zip(*((one.message_bytes, one.time_s) for one in link), strict=True)
    return [
        float(np.interp(size, sizes, times_s)) * max(1.0, size / sizes[-1])
        for size in np.diff(edges)
    ]


@dataclass(frozen=True)
class DevicesPrediction:
    """Several devices, each with the batch of `single`.

    `exposed_s` is what the exchange adds to a step, at least and at most: what runs of so many
    devices show, else the last bucket alone, and all that the link takes. `slowdown` is how many
    times as long these runs compute as the single device, which shares its host with no other.
    """

    single: Prediction
    devices: int
    gradient_bytes: int
    exchange_s: float
    exposed_s: tuple[float, float]
    slowdown: float = 1.0

    @property
    def facts(self) -> dict[str, Any]:
        """The prediction for JSON; the ends of the rate hold those of the single device."""
        batch, single = self.single.batch_size, self.single
        rates = single.interval.high, single.samples_per_s, single.interval.low
        low_s, own_s, high_s = (self.slowdown * batch / rate for rate in rates)
        least_s, most_s = self.exposed_s
        rate = self.devices * batch / (own_s + least_s) if least_s == most_s else None
        alone_s = batch / single.samples_per_s
        return {
            **self.single.facts, "devices": self.devices,
            rate_column(self.single.of.sample): rate,
            "low": self.devices * batch / (high_s + most_s),
            "high": self.devices * batch / (low_s + least_s),
            "gradient_bytes": self.gradient_bytes, "exchange_s": self.exchange_s,
            "exposed_low_s": least_s, "exposed_high_s": most_s, "slowdown": self.slowdown,
            "efficiency_low": alone_s / (own_s + most_s),
            "efficiency_high": alone_s / (own_s + least_s),
        }  # fmt: skip

    def lines(self) -> Iterator[str]:
        """Yield the prediction for a terminal."""
        facts, of = self.facts, self.single.of
        efficiency = percent_interval(facts["efficiency_low"], facts["efficiency_high"])
        yield (
            f"{of.series} batch {self.single.batch_size} on {self.devices} devices: "
            f"{interval(facts['low'], facts['high'])} {rate_unit(of.sample)}, {efficiency} of "
            f"{self.devices} single ones"
        )
        adds = interval(*(1e3 * seconds for seconds in self.exposed_s))
        yield (
            f"    exchange: {three_digits(self.gradient_bytes / 1e6)} MB of gradients in "
            f"{three_digits(1e3 * self.exchange_s)} ms, which add {adds} ms to the step;"
            f" computing takes {self.slowdown:.2f} times as long as on one"
        )
        yield f"    memory: {self.single.memory}"


def predict_devices(
    single: Prediction, devices: int, runs: Iterable[Run], ceilings: Iterable[CeilingsRecord]
) -> DevicesPrediction:
    """Predict `devices` of one machine, by its measured link and what its `runs` show of it.

    Raises `UserError` where the link, or the size of the gradients, is not known, and on a
    processor without a run of so many: its processes share cores and memory.
    """
    records = [run.record for group in single.curve.measured for run in group.runs if run.record]
    there = next((record.environment for record in records if record.environment), None)
    links = [
        roofs.all_reduces
        for roofs in sorted(ceilings, key=lambda roofs: roofs.created, reverse=True)
        if there and roofs.environment and same_device(roofs.environment, there)
        if any(one.devices == devices for one in roofs.all_reduces)
    ]
    costs = [record.complexity for record in records if record.complexity]
    if not (there and links and costs):
        raise UserError(
            f"devices={devices}: what joins them is not known; measure it on that machine: "
            f"mlproject ceilings --devices {devices}"
        )
    gradient_bytes = costs[0].memory.gradients_bytes
    *earlier_s, last_s = exchange_times_s(gradient_bytes, links[0])
    exchange_s, step_s = sum(earlier_s) + last_s, single.batch_size / single.samples_per_s
    if shown := [*_shown_by(runs, single, devices)]:
        exposed_s, slowdown = map(median, zip(*shown, strict=True))
        ends_s = max(exposed_s, 0.0), max(exposed_s, 0.0)
        return DevicesPrediction(single, devices, gradient_bytes, exchange_s, ends_s, slowdown)
    if there.device.backend == "cpu":
        raise UserError(
            f"devices={devices}: processes of one processor slow each other, and no run shows by "
            f"how much; measure one: mlproject run --devices {devices}"
        )
    ends_s = max(last_s, exchange_s - step_s), exchange_s
    return DevicesPrediction(single, devices, gradient_bytes, exchange_s, ends_s)


def _shown_by(
    runs: Iterable[Run], single: Prediction, devices: int
) -> Iterator[tuple[float, float]]:
    """Yield what the exchange adds to each run's step, and how much longer the rest is."""
    for run in runs:
        window, used = (run.record.measurement, run.record.resolved) if run.record else (None, None)
        ranks = window.ranks if window else None
        if not (used and ranks and ranks.synced_step_s and ranks.local_step_s):
            continue
        alike = same_configuration(run.identity, single.of.first.identity, _OF_SIZE, by="asked")
        if alike and len(ranks.ranks) == devices:
            local_s = median(ranks.local_step_s)
            alone_s = single.curve.model.step_s(used.batch_size)
            yield median(ranks.synced_step_s) - local_s, local_s / alone_s
