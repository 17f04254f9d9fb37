"""Roofs of a device's caches: the rate at which what fits into one is read, over and over.

On a CPU torch's own operations suffice. Those of an NVIDIA GPU are too short to fill its caches:
a copy within an L2 takes microseconds, about what its launch costs, so one kernel of
`bench.roofs.gpu_reader` reads for milliseconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple

import torch

from bench.errors import Unknown
from bench.machine import UnknownFactError, reason_of
from bench.machine.cpu import CacheLevel, data_caches
from bench.records import CacheRoof, CeilingSample
from bench.records.journal import Clock, ignore
from bench.roofs import ProbeGroup, ProbeSampler, software_of
from bench.roofs.roof_probes import Launch, Probe, account_of, best_sample, sustained_rate
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

LevelName = Literal["L1", "L2", "L3"]
_NAMES: dict[int, LevelName] = {1: "L1", 2: "L2", 3: "L3"}

_ELEMENT_BYTES = 4
#: Read by one CPU thread in one launch: about a millisecond; the launch itself takes microseconds.
_BYTES_PER_THREAD = 128 * 2**20
#: A CPU's block is at least so many times the level below, else part of it is read from there.
_OVER_BELOW = 4
#: Elements that one step of the GPU's kernel reads: 8 KiB of fp32, with 256 threads enough loads
#: in flight to fill an L1's width.
GPU_BLOCK = 2048
_WARPS = 8
#: Blocks that each GPU program reads in one launch: a millisecond or more on the fastest GPU.
_GPU_ROUNDS = 2**14
#: Two programs of two blocks each: 32 KiB, which the smallest L1 (Turing's) holds.
_L1_PROGRAMS = 2
_L1_BLOCKS = 2
#: More programs, because an answer of the L2 takes longer.
_L2_PROGRAMS = 4
#: An L2 may be in two halves that each keep a copy (NVIDIA A100, H100), so a quarter fits well.
_L2_SHARE = 4


class Level(NamedTuple):
    """One level and the probe that reads what fits into it, each unknown for a reason.

    `size_bytes` is that of all instances together. `only_control`: the reading is bound by its own
    arithmetic there, so that its rate is no roof, but shows that slower levels are bound by the
    cache.
    """

    name: LevelName
    size_bytes: int | Unknown
    probe: Probe | Unknown
    only_control: bool = False


def cpu_levels() -> tuple[Level, ...]:
    """Return L1, as a control, and every level above it that this process reaches."""
    try:
        caches = data_caches()
    except UnknownFactError as error:
        why = Unknown(f"the processor's caches: {error}")
        return tuple(Level(name, why, why) for name in _NAMES.values())
    return tuple(
        _cpu_level(_NAMES[number], caches[number], caches.get(number - 1))
        for number in sorted(caches.keys() & _NAMES.keys())
    )


def _cpu_level(name: LevelName, cache: CacheLevel, below: CacheLevel | None) -> Level:
    if below is None:
        probe = sum_probe(name, cache.smallest_bytes // 2)
        return Level(name, cache.total_bytes, probe, only_control=True)
    block = max(cache.smallest_bytes // 4, _OVER_BELOW * below.largest_bytes)
    if block <= cache.smallest_bytes // 2:
        return Level(name, cache.total_bytes, sum_probe(name, block))
    why = (
        f"a block of {_OVER_BELOW} times the level below takes over half of its "
        f"{cache.smallest_bytes // 2**10} KiB"
    )
    return Level(name, cache.total_bytes, Unknown(why))


def sum_probe(name: str, block_bytes: int) -> Probe:
    """Return the reading of a block by all threads, each for itself."""
    threads = torch.get_num_threads()
    rows = threads * -(-_BYTES_PER_THREAD // block_bytes)

    def prepare() -> Launch:
        block = torch.randn(block_bytes // _ELEMENT_BYTES)
        sums = torch.empty(rows)
        many = block.expand(rows, -1)
        return lambda: torch.sum(many, dim=1, out=sums)

    title = f"{name}: sum of {block_bytes // 2**10} KiB by each of {threads} threads"
    return Probe(title, None, rows * block_bytes, block_bytes, prepare)


def cuda_levels(device: Device) -> tuple[Level, ...]:
    """Return L1, of all multiprocessors together, and L2."""
    info = device.info()
    l2_bytes = info.last_level_cache_bytes
    if info.cores is None or l2_bytes is None:
        why = Unknown(info.missing.get("cores") or info.missing["last_level_cache_bytes"])
        return (Level("L1", why, why), Level("L2", why, why))
    programs = info.cores * _L1_PROGRAMS
    own = read_probe("L1", device, programs, _L1_BLOCKS * GPU_BLOCK, own_regions=True)
    blocks = l2_bytes // _L2_SHARE // (GPU_BLOCK * _ELEMENT_BYTES)
    shared: Probe | Unknown = Unknown(f"its {l2_bytes} bytes are too few for a block")
    if blocks:
        programs = info.cores * _L2_PROGRAMS
        shared = read_probe("L2", device, programs, blocks * GPU_BLOCK, own_regions=False)
    no_size = Unknown("CUDA does not report it")
    return (Level("L1", no_size, own), Level("L2", l2_bytes, shared))


def read_probe(
    name: str, device: Device, programs: int, elements: int, *, own_regions: bool
) -> Probe:
    """Return the reading of `elements` by each program: of its own, or of the same by all."""
    whole = elements * (programs if own_regions else 1)

    def prepare() -> Launch:
        data = torch.randn(whole, device=device.torch_device)
        sums = torch.empty(programs * GPU_BLOCK, device=device.torch_device)
        try:
            from bench.roofs.gpu_reader import read

            strides = (elements, 0) if own_regions else (0, GPU_BLOCK)
            shape = {"block": GPU_BLOCK, "past_l1": not own_regions, "num_warps": _WARPS}
            launch = partial(read[programs,], data, sums, elements, *strides, _GPU_ROUNDS, **shape)
            launch()  # which compiles; Triton has errors of many kinds: an old GPU, no C compiler
        except Exception as error:
            raise RuntimeError(f"Triton: {reason_of(error)}") from None
        return launch

    region = f"{elements * _ELEMENT_BYTES // 2**10} KiB {'each' if own_regions else 'together'}"
    work = programs * _GPU_ROUNDS * GPU_BLOCK * _ELEMENT_BYTES
    title = f"{name}: read of {region} by {programs} programs"
    return Probe(title, None, work, whole * _ELEMENT_BYTES, prepare)


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
    groups = [ProbeGroup(level.name, [level.probe] if level.probe else []) for level in levels]
    with torch.inference_mode():
        sampler = ProbeSampler(device, clock, _GROUP_S, progress)
        sampler.sample([group for group in groups if group.probes], budget_s)
        launch_s = _launch_seconds(device, clock)
    roofs, below = [], None
    for level, group in zip(levels, groups, strict=True):
        sample = best_sample(group.samples())
        peak: float | Unknown = Unknown("; ".join(group.notes))
        source = "not measured"
        if isinstance(level.probe, Unknown):
            peak = level.probe
        elif sample is not None:
            overhead = launch_s * sustained_rate(sample.rates) / level.probe.work_per_launch
            doubt = _doubt(level, sample, below, overhead)
            peak = Unknown(doubt) if doubt else sustained_rate(sample.rates)
            launching = f"launches take {100 * overhead:.1f} %"
            source = f"{account_of(sample)}; {launching}; {software_of(device)}"
        facts = {"level": level.name, "size_bytes": level.size_bytes}
        roof = {**facts, "peak_bytes_per_s": peak, "source": source}
        roofs.append(CacheRoof.model_validate(roof))
        below = sample
    return tuple(roofs)


def _levels(device: Device) -> tuple[Level, ...]:
    if device.backend == "cpu":
        return cpu_levels()
    if device.backend == "cuda":
        return cuda_levels(device)
    why = Unknown("no kernel that reads an Apple GPU's caches is at hand")
    return (Level("L1", why, why), Level("L2", why, why))


def _doubt(
    level: Level, sample: CeilingSample, below: CeilingSample | None, overhead: float
) -> str:
    """Why the rate may not be the cache's; empty where it is."""
    rate, most = sustained_rate(sample.rates), max(sample.rates)
    rate_below = sustained_rate(below.rates) if below else math.inf
    if level.only_control:
        return f"at {rate / 1e9:.0f} GB/s its reading may be bound by the additions that go with it"
    if most > _MOST_ABOVE * rate:
        return (
            f"repetitions reach {100 * (most / rate - 1):.0f} % over what was sustained, "
            f"{rate / 1e9:.0f} GB/s: others use the device; measure again while it rests"
        )
    if overhead > _MOST_OVERHEAD:
        return f"{100 * overhead:.0f} % of the time went to launching"
    if rate_below < _FASTER_BELOW * rate:
        return (
            f"read at {rate / 1e9:.0f} GB/s, no slower than the level below "
            f"({rate_below / 1e9:.0f} GB/s): the two cannot be distinguished"
        )
    return ""


def _launch_seconds(device: Device, clock: Clock) -> float:
    """What a launch costs by itself; a GPU queues them, so that they cost nothing.

    Of the same operation with hardly anything to read, the quickest: another process that takes
    the processor is not what a launch costs.
    """
    if device.backend != "cpu":
        return 0.0
    threads = torch.get_num_threads()
    sums = torch.empty(threads)
    # Long enough to be split between the threads (ATen's grain is 32768 elements).
    many = torch.randn(2**15 // threads + 1).expand(threads, -1)
    instants = [clock()]
    for _ in range(_LAUNCHES):
        torch.sum(many, dim=1, out=sums)
        instants.append(clock())
    return min(end - begin for begin, end in pairwise(instants))
