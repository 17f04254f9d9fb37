"""What several devices of a machine give: each computes a batch, and the gradients are exchanged.

A step takes what the single device takes, as many times as long as runs of so many devices show
that they slow each other, and the part of the exchange that nothing hides. The exchange is of
DistributedDataParallel's buckets, over the link that `mlproject ceilings --devices` measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    sizes, times_s = zip(*((size.message_bytes, size.time_s) for size in link), strict=True)
    return [
        float(np.interp(size, sizes, times_s)) * max(1.0, size / sizes[-1])
        for size in np.diff(edges)
    ]


@dataclass(frozen=True)
class DevicesPrediction:
    """Several devices, each with the batch of `single`; `facts` is the prediction for JSON.

    The exchange adds `exposed_low_s` to `exposed_high_s` to a step: what runs of so many devices
    show, else the last bucket alone, and all that the link takes. `slowdown` is how many times as
    long these runs compute as the single device, which shares its host with no other. The ends of
    the rate hold those of the single device.
    """

    single: Prediction
    facts: Mapping[str, Any]

    def lines(self) -> Iterator[str]:
        """Yield the prediction for a terminal."""
        of, facts = self.single.of, self.facts
        efficiency = percent_interval(facts["efficiency_low"], facts["efficiency_high"])
        yield (
            f"{of.series} batch {self.single.batch_size} on {facts['devices']} devices: "
            f"{interval(facts['low'], facts['high'])} {rate_unit(of.sample)}, {efficiency} of "
            f"{facts['devices']} single ones"
        )
        adds = interval(1e3 * facts["exposed_low_s"], 1e3 * facts["exposed_high_s"])
        yield (
            f"    exchange: {three_digits(facts['gradient_bytes'] / 1e6)} MB of gradients in "
            f"{three_digits(1e3 * facts['exchange_s'])} ms, which add {adds} ms to the step;"
            f" computing takes {facts['slowdown']:.2f} times as long as on one"
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
        if any(size.devices == devices for size in roofs.all_reduces)
    ]
    costs = [record.complexity for record in records if record.complexity]
    if not (there and links and costs):
        raise UserError(
            f"devices={devices}: what joins them is not known; measure it on that machine: "
            f"mlproject ceilings --devices {devices}"
        )
    gradient_bytes = costs[0].memory.gradients_bytes
    *earlier_s, last_s = exchange_times_s(gradient_bytes, links[0])
    rates, exchange_s = single.interval, sum(earlier_s) + last_s
    samples, alone_s = devices * single.batch_size, single.batch_size / single.samples_per_s
    least_s, most_s, slowdown = max(last_s, exchange_s - alone_s), exchange_s, 1.0
    if shown := [*_shown_by(runs, single, devices)]:
        exposed_s, slowdown = map(median, zip(*shown, strict=True))
        least_s = most_s = max(exposed_s, 0.0)
    elif there.device.backend == "cpu":
        raise UserError(
            f"devices={devices}: processes of one processor slow each other, and no run shows by "
            f"how much; measure one: mlproject run --devices {devices}"
        )
    own_s = slowdown * alone_s
    rate = samples / (own_s + least_s) if least_s == most_s else None
    facts = {
        **single.facts, "devices": devices, rate_column(single.of.sample): rate,
        "low": samples / (slowdown * single.batch_size / rates.low + most_s),
        "high": samples / (slowdown * single.batch_size / rates.high + least_s),
        "gradient_bytes": gradient_bytes, "exchange_s": exchange_s, "exposed_low_s": least_s,
        "exposed_high_s": most_s, "slowdown": slowdown,
        "efficiency_low": alone_s / (own_s + most_s),
        "efficiency_high": alone_s / (own_s + least_s),
    }  # fmt: skip
    return DevicesPrediction(single, facts)


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
