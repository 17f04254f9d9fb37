"""The processor's caches, above all the last: what of a step's traffic may never reach memory."""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.machine.probes import ROOT, UnknownFactError, sysctl, text_of, value_or_none


def last_level_cache_bytes(cpus: Iterable[int], root: Path = ROOT) -> int:
    """Return the bytes of all last-level caches that `cpus` reach, a shared one counted once.

    Raises `UnknownFactError` where the system does not tell.
    """
    if platform.system() == "Darwin":
        return _apple_cache_bytes()
    levels = data_caches(cpus, root)
    return levels[max(levels)].total_bytes


@dataclass(frozen=True)
class CacheLevel:
    """The caches of one level that a process reaches, which need not be of one size."""

    smallest_bytes: int
    largest_bytes: int
    total_bytes: int


def data_caches(cpus: Iterable[int], root: Path = ROOT) -> dict[int, CacheLevel]:
    """Return the data caches that `cpus` reach by level, a shared one counted once.

    Raises `UnknownFactError` where the system is not Linux or lists none.
    """
    if platform.system() != "Linux":
        raise UnknownFactError(f"not read on {platform.system()}")
    caches: dict[int, dict[str, int]] = {}
    for cpu in cpus:
        for index in (root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"):
            if text_of(index / "type") != "Instruction":
                shared = caches.setdefault(int(text_of(index / "level")), {})
                shared[text_of(index / "shared_cpu_list")] = _bytes(text_of(index / "size"))
    if not caches:
        raise UnknownFactError("the kernel lists no caches")
    return {
        level: CacheLevel(min(found.values()), max(found.values()), sum(found.values()))
        for level, found in caches.items()
    }


def _bytes(size: str) -> int:
    """Return the bytes of the kernel's `32768K`."""
    found = re.fullmatch(r"(\d+)([KMG]?)", size)
    if not found:
        raise UnknownFactError(f"cache size {size!r} is not understood")
    return int(found[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[found[2]]


def _apple_cache_bytes() -> int:
    """Return the L3 of an Intel Mac, or the clusters' L2: Apple tells no system cache."""
    if l3 := value_or_none(lambda: int(sysctl("hw.l3cachesize"))):
        return l3
    total = 0
    for level in range(int(sysctl("hw.nperflevels"))):
        cores = int(sysctl(f"hw.perflevel{level}.physicalcpu"))
        per_cluster = int(sysctl(f"hw.perflevel{level}.cpusperl2"))
        clusters = math.ceil(cores / per_cluster)
        total += clusters * int(sysctl(f"hw.perflevel{level}.l2cachesize"))
    return total
