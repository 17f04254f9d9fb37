"""What is read of each level of a device's caches.

On a CPU torch's own operations suffice. Those of an NVIDIA GPU are too short to fill its caches:
a copy within an L2 takes microseconds, about what its launch costs, so one kernel of
`bench.roofs.gpu_reader` reads for milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from bench.machine import cpu_caches
from bench.machine.cpu import CacheLevel
from bench.machine.probes import UnknownFactError
from bench.roofs.probe import Launch, Probe
from bench.training.devices import Device

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
#: Blocks that each GPU program reads in one launch: a millisecond or more on the fastest GPU.
_GPU_ROUNDS = 2**14
#: Two programs of two blocks each: 32 KiB, which the smallest L1 (Turing's) holds.
_L1_PROGRAMS = 2
_L1_BLOCKS = 2
#: More programs, because an answer of the L2 takes longer.
_L2_PROGRAMS = 4
#: An L2 may be in two halves that each keep a copy (NVIDIA A100, H100), so a quarter fits well.
_L2_SHARE = 4
_NO_SIZE = "CUDA does not report it"


@dataclass(frozen=True)
class Level:
    """One level and the probe that reads what fits into it.

    `size_bytes` is that of all instances together, None with `why_no_size`; `probe` is None with
    `why_no_probe`. `only_control`: the reading is bound by its own arithmetic there, so that its
    rate is no roof, but shows that slower levels are bound by the cache.
    """

    name: LevelName
    size_bytes: int | None
    probe: Probe | None
    why_no_size: str = ""
    why_no_probe: str = ""
    only_control: bool = False


def cpu_levels() -> tuple[Level, ...]:
    """Return L1, as a control, and every level above it that this process reaches."""
    try:
        caches = cpu_caches()
    except UnknownFactError as error:
        why = f"the processor's caches: {error}"
        return tuple(Level(name, None, None, why, why) for name in _NAMES.values())
    return tuple(
        _cpu_level(number, caches[number], caches.get(number - 1))
        for number in sorted(caches)
        if number in _NAMES
    )


def _cpu_level(number: int, cache: CacheLevel, below: CacheLevel | None) -> Level:
    name = _NAMES[number]
    if below is None:
        probe = sum_probe(name, cache.smallest_bytes // 2)
        return Level(name, cache.total_bytes, probe, only_control=True)
    block = max(cache.smallest_bytes // 4, _OVER_BELOW * below.largest_bytes)
    if block > cache.smallest_bytes // 2:
        why = (
            f"a block of {_OVER_BELOW} times the level below takes over half of its "
            f"{cache.smallest_bytes // 2**10} KiB"
        )
        return Level(name, cache.total_bytes, None, why_no_probe=why)
    return Level(name, cache.total_bytes, sum_probe(name, block))


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
    return Probe(title, None, "bytes_per_s", rows * block_bytes, block_bytes, prepare)


def empty_launch() -> Launch:
    """Return the same operation with hardly anything to read: what each launch costs by itself."""
    threads = torch.get_num_threads()
    sums = torch.empty(threads)
    # Long enough to be split between the threads (ATen's grain is 32768 elements).
    many = torch.randn(2**15 // threads + 1).expand(threads, -1)
    return lambda: torch.sum(many, dim=1, out=sums)


def cuda_levels(device: Device) -> tuple[Level, ...]:
    """Return L1, of all multiprocessors together, and L2."""
    info = device.info()
    if info.cores is None or info.last_level_cache_bytes is None:
        reasons = (info.missing.get(name) for name in ("cores", "last_level_cache_bytes"))
        why = next(reason for reason in reasons if reason)
        return (Level("L1", None, None, why, why), Level("L2", None, None, why, why))
    l2_bytes = info.last_level_cache_bytes
    own = read_probe(
        "L1", device, info.cores * _L1_PROGRAMS, _L1_BLOCKS * GPU_BLOCK, own_regions=True
    )
    blocks = l2_bytes // _L2_SHARE // (GPU_BLOCK * _ELEMENT_BYTES)
    if not blocks:
        why = f"its {l2_bytes} bytes are too few for a block"
        return (Level("L1", None, own, _NO_SIZE), Level("L2", l2_bytes, None, "", why))
    shared = read_probe(
        "L2", device, info.cores * _L2_PROGRAMS, blocks * GPU_BLOCK, own_regions=False
    )
    return (Level("L1", None, own, _NO_SIZE), Level("L2", l2_bytes, shared))


def read_probe(
    name: str, device: Device, programs: int, elements: int, *, own_regions: bool
) -> Probe:
    """Return the reading of `elements` by each program: of its own, or of the same by all."""
    whole = elements * (programs if own_regions else 1)

    def prepare() -> Launch:
        read = _gpu_kernel()
        data = torch.randn(whole, device=device.torch_device)
        sums = torch.empty(programs * GPU_BLOCK, device=device.torch_device)

        def launch() -> None:
            read(
                data,
                sums,
                programs=programs,
                elements=elements,
                own_regions=own_regions,
                rounds=_GPU_ROUNDS,
                block=GPU_BLOCK,
            )

        _compile(launch)
        return launch

    region = f"{elements * _ELEMENT_BYTES // 2**10} KiB {'each' if own_regions else 'together'}"
    work = programs * _GPU_ROUNDS * GPU_BLOCK * _ELEMENT_BYTES
    title = f"{name}: read of {region} by {programs} programs"
    return Probe(title, None, "bytes_per_s", work, whole * _ELEMENT_BYTES, prepare)


def _gpu_kernel() -> Callable[..., None]:
    """The kernel's launcher. Raises `RuntimeError` where there is no Triton."""
    try:
        from bench.roofs.gpu_reader import read
    except ImportError as error:
        raise RuntimeError(f"Triton cannot be used here: {error}") from None
    return read


def _compile(launch: Launch) -> None:
    """Run once, which compiles.

    Triton has errors of many kinds: an old GPU, no C compiler, a full disk.
    """
    try:
        launch()
    except Exception as error:
        words = str(error).strip().splitlines() or [""]
        raise RuntimeError(f"Triton: {type(error).__name__}: {words[0]}") from None
