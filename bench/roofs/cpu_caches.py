"""Reading the caches of a processor with torch alone.

A block is expanded to many rows of stride 0 and each row summed: every thread reads the whole
block again and again, one operation taking milliseconds. A thread's L1 and L2 then each hold a
copy of what they can; a shared cache is read by all threads at once.
"""

from __future__ import annotations

import torch

from bench.machine import cpu_caches
from bench.machine.caches import CacheLevel
from bench.machine.probes import UnknownFactError
from bench.roofs.cache_level import Level, LevelName
from bench.roofs.probe import Launch, Probe

_ELEMENT_BYTES = 4
#: Of one thread in one launch: about a millisecond, against microseconds for the launch itself.
_BYTES_PER_THREAD = 128 * 2**20
#: A block is at least so many times the level below it, of which it would else be read in part.
_OVER_BELOW = 4
_NAMES: dict[int, LevelName] = {1: "L1", 2: "L2", 3: "L3"}


def cpu_levels() -> tuple[Level, ...]:
    """Return L1, as a control, and every level above it that this process reaches."""
    try:
        caches = cpu_caches()
    except UnknownFactError as error:
        why = f"the processor's caches: {error}"
        return tuple(Level(name, None, None, why, why) for name in _NAMES.values())
    return tuple(
        _level(number, caches[number], caches.get(number - 1))
        for number in sorted(caches)
        if number in _NAMES
    )


def _level(number: int, cache: CacheLevel, below: CacheLevel | None) -> Level:
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
