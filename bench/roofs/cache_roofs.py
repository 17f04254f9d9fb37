"""Roofs of an NVIDIA GPU's caches: the rate at which what fits into one is read, over and over.

torch's own operations are too short to fill them: a copy within an L2 takes microseconds, about
what its launch costs, so one kernel of `bench.roofs.gpu_reader` reads for milliseconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch

from bench.errors import Unknown
from bench.machine import reason_of
from bench.records import CacheRoof, CeilingSample
from bench.records.journal import Clock, ignore
from bench.roofs import ProbeGroup, ProbeSampler, software_of
from bench.roofs.roof_probes import Launch, Probe, account_of, best_sample, sustained_rate
from bench.training.devices import Device

#: Least time of one repetition: short, so that some fit between the turns of other processes.
_GROUP_S = 0.002
#: The L2 has a roof only where the same reading runs faster by this from the L1: else the reading
#: itself may be the limit.
_FASTER_BELOW = 1.1
#: A quiet device repeats within a few percent; beyond this the sustained rate is the neighbours'.
_MOST_ABOVE = 1.25

_ELEMENT_BYTES = 4
#: Elements that one step of the kernel reads: 8 KiB of fp32, with 256 threads enough loads
#: in flight to fill an L1's width.
GPU_BLOCK = 2048
_WARPS = 8
#: Blocks that each program reads in one launch: a millisecond or more on the fastest GPU.
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

    `size_bytes` is that of all instances together.
    """

    name: Literal["L1", "L2"]
    size_bytes: int | Unknown
    probe: Probe | Unknown


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
    """Return a roof of each level of a CUDA device's caches, fastest first: bytes read per second.

    None of another device, whose traffic by level nothing counts. All multiprocessors read
    together. Takes about `budget_s`, and what Triton needs to compile. A level that cannot be
    measured for certain has no peak, but the reason. `progress` receives a line per probe and
    round.
    """
    if device.backend != "cuda":
        return ()
    levels = cuda_levels(device)
    groups = [ProbeGroup(level.name, [level.probe] if level.probe else []) for level in levels]
    with torch.inference_mode():
        sampler = ProbeSampler(device, clock, _GROUP_S, progress)
        sampler.sample([group for group in groups if group.probes], budget_s)
    roofs, below = [], None
    for level, group in zip(levels, groups, strict=True):
        sample = best_sample(group.samples())
        peak: float | Unknown = Unknown("; ".join(group.notes))
        source = "not measured"
        if isinstance(level.probe, Unknown):
            peak = level.probe
        elif sample is not None:
            doubt = _doubt(sample, below)
            peak = Unknown(doubt) if doubt else sustained_rate(sample.rates)
            source = f"{account_of(sample)}; {software_of(device)}"
        facts = {"level": level.name, "size_bytes": level.size_bytes}
        roof = {**facts, "peak_bytes_per_s": peak, "source": source}
        roofs.append(CacheRoof.model_validate(roof))
        below = sample
    return tuple(roofs)


def _doubt(sample: CeilingSample, below: CeilingSample | None) -> str:
    """Why the rate may not be the cache's; empty where it is."""
    rate, most = sustained_rate(sample.rates), max(sample.rates)
    rate_below = sustained_rate(below.rates) if below else math.inf
    if most > _MOST_ABOVE * rate:
        return (
            f"repetitions reach {100 * (most / rate - 1):.0f} % over what was sustained, "
            f"{rate / 1e9:.0f} GB/s: others use the device; measure again while it rests"
        )
    if rate_below < _FASTER_BELOW * rate:
        return (
            f"read at {rate / 1e9:.0f} GB/s, no slower than the L1 "
            f"({rate_below / 1e9:.0f} GB/s): the two cannot be distinguished"
        )
    return ""
