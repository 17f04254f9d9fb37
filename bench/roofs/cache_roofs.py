"""Roofs of a device's caches: the rate at which what fits into one is read, over and over."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import torch

from bench.records import CacheRoof, CeilingSample
from bench.records.journal import Clock, ignore
from bench.roofs.cache_levels import Level, cpu_levels, cuda_levels, empty_launch
from bench.roofs.measure import software_of
from bench.roofs.probe import Launch, account_of, best_sample, sustained_rate
from bench.roofs.probe_sampler import Candidate, ProbeGroup, ProbeSampler
from bench.training.devices import Device

#: Least time of one repetition: short, so that some fit between the turns of other processes.
_GROUP_S = 0.002
#: A level has a roof only where the same reading runs faster by this from the level below: else the
#: reading itself may be the limit.
_FASTER_BELOW = 1.1
#: Where launching takes a larger share of the time, the rate is not the cache's.
_MOST_OVERHEAD = 0.05
_LAUNCHES = 50
#: A quiet device repeats within a few percent; beyond this the sustained rate is the neighbours'.
_MOST_ABOVE = 1.25


def measure_cache_roofs(
    device: Device,
    *,
    clock: Clock = time.perf_counter,
    budget_s: float = 3.0,
    progress: Callable[[str], None] = ignore,
) -> tuple[CacheRoof, ...]:
    """Return a roof of each level of `device`'s caches, fastest first: bytes read per second.

    All cores or multiprocessors read together. Takes about `budget_s`, and what Triton needs to
    compile on CUDA. A level that cannot be measured for certain has no peak, but the reason.
    `progress` receives a line per probe and round.
    """
    levels = _levels(device)
    groups = [
        ProbeGroup(level.name, [Candidate(level.probe)] if level.probe else []) for level in levels
    ]
    with torch.inference_mode():
        sampler = ProbeSampler(device, clock, _GROUP_S, progress)
        sampler.sample([group for group in groups if group.candidates], budget_s)
        launch_s = _launch_seconds(device, clock)
    best = [best_sample(group.samples()) for group in groups]
    below: list[CeilingSample | None] = [None, *best[:-1]]
    return tuple(
        _roof(level, sample, slower_than, "; ".join(group.notes), launch_s, device)
        for level, sample, slower_than, group in zip(levels, best, below, groups, strict=True)
    )


def _levels(device: Device) -> tuple[Level, ...]:
    if device.backend == "cpu":
        return cpu_levels()
    if device.backend == "cuda":
        return cuda_levels(device)
    why = "no kernel that reads an Apple GPU's caches is at hand"
    return (Level("L1", None, None, why, why), Level("L2", None, None, why, why))


def _roof(
    level: Level,
    sample: CeilingSample | None,
    below: CeilingSample | None,
    notes: str,
    launch_s: float,
    device: Device,
) -> CacheRoof:
    reason, source = level.why_no_probe or notes, "not measured"
    if sample is not None and level.probe is not None:
        overhead = launch_s * sustained_rate(sample.rates) / level.probe.work_per_launch
        source = f"{account_of(sample)}; launches take {overhead:.1%}; {software_of(device)}"
        reason = _doubt(level, sample, below, overhead)
    peak = None if reason or sample is None else sustained_rate(sample.rates)
    missing = {"peak_bytes_per_s": reason} if peak is None else {}
    if level.size_bytes is None:
        missing["size_bytes"] = level.why_no_size
    return CacheRoof(
        level=level.name,
        size_bytes=level.size_bytes,
        peak_bytes_per_s=peak,
        source=source,
        missing=missing,
    )


def _doubt(
    level: Level, sample: CeilingSample, below: CeilingSample | None, overhead: float
) -> str:
    """Why the rate may not be the cache's; empty where it is."""
    rate = sustained_rate(sample.rates)
    if level.only_control:
        return f"at {rate / 1e9:.0f} GB/s its reading may be bound by the additions that go with it"
    if max(sample.rates) > _MOST_ABOVE * rate:
        return (
            f"repetitions reach {max(sample.rates) / rate - 1:.0%} over what was sustained, "
            f"{rate / 1e9:.0f} GB/s: others use the device; measure again while it rests"
        )
    if overhead > _MOST_OVERHEAD:
        return f"{overhead:.0%} of the time went to launching"
    if below is not None and sustained_rate(below.rates) < _FASTER_BELOW * rate:
        return (
            f"read at {rate / 1e9:.0f} GB/s, no slower than the level below "
            f"({sustained_rate(below.rates) / 1e9:.0f} GB/s): the two cannot be distinguished"
        )
    return ""


def _launch_seconds(device: Device, clock: Clock) -> float:
    """What a launch costs where nothing is read; a GPU queues them, so that they cost nothing."""
    if device.backend != "cpu":
        return 0.0
    launch: Launch = empty_launch()
    instants = [clock()]
    for _ in range(_LAUNCHES):
        launch()
        instants.append(clock())
    # The quickest: another process that takes the processor is not what a launch costs.
    return min(end - begin for begin, end in pairwise(instants))
