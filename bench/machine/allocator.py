"""Whether memory that a step frees stays with the process or goes back to the kernel.

A training step on a CPU frees hundreds of megabytes of activations and takes them again in the next
iteration. glibc hands blocks of that size back at once, so that every iteration pays the kernel for
fresh, zeroed pages. `docs/performance.md` has what that costs. glibc reads the settings when a
process starts (mallopt(3), glibc's tunables), so the launching process hands them to the worker.
"""

from __future__ import annotations

import os
import platform
import re
from typing import Literal

from bench.config import RunConfig
from bench.errors import UnsupportedError

#: No separate mapping for a large block, never give the heap's end back.
_RETAIN = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
#: Ask for huge pages: fewer faults the first time, fewer misses of the page table's cache after.
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
_OTHER_ALLOCATOR = re.compile("jemalloc|tcmalloc|mimalloc")

Allocator = Literal["system", "retain", "preloaded"]


def allocator_settings(config: RunConfig) -> dict[str, str]:
    """Return the environment under which a worker measures `config`."""
    if config.allocator == "system" or not _is_glibc() or _is_preloaded():
        return {}
    tunables = [os.environ.get("GLIBC_TUNABLES", ""), _HUGE_PAGES]
    return {**_RETAIN, "GLIBC_TUNABLES": ":".join(filter(None, tunables))}


def allocator_in_use(asked: str) -> Allocator:
    """Return what this process was started with.

    Raises `UnsupportedError` where `asked` is `retain` and the process cannot.
    """
    if _is_preloaded():
        return "preloaded"
    if _is_glibc() and all(os.environ.get(name) == value for name, value in _RETAIN.items()):
        return "retain"
    if asked == "retain":
        raise UnsupportedError(
            "allocator='retain': only glibc keeps memory when asked, which is Linux's; "
            "use allocator=auto"
        )
    return "system"


def _is_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"


def _is_preloaded() -> bool:
    """Whether the user put another allocator in the C library's place."""
    return bool(_OTHER_ALLOCATOR.search(os.environ.get("LD_PRELOAD", "")))
