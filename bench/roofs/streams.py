"""Bandwidth probes: arrays that no cache holds, read and written from end to end.

Bytes are counted as McCalpin's STREAM and the complexity model count them: each array an
operation reads, once, and each it writes, once. A processor that must first read the cache line
it is going to overwrite (write-allocate) moves up to 3/2 of that in `copy` and 4/3 in `triad`.
`update` overwrites what it has read anyway, so there the count is the traffic: the roof that no
operation passes, in the model's bytes and in a memory controller's.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from bench.roofs.probe import Launch, Probe

ARRAYS = 3
_ELEMENT_BYTES = 4
#: STREAM's rule: each array at least four times the last-level cache.
_CACHE_MULTIPLE = 4
#: Below this a launch is too short to fill a large device, and a system cache that the machine
#: keeps to itself (Apple's, up to 96 MB) would still hold a good part.
_SMALLEST_BYTES = 128 * 2**20
#: Where the last-level cache is unknown: four times the largest that a desktop chip has (128 MB).
_UNKNOWN_CACHE_BYTES = 512 * 2**20
#: Random elements, repeated to an array's length: far quicker than drawing each one.
_RANDOM_ELEMENTS = 2**20
_TRIAD_SCALE = 3.0
#: Small, so that an array updated many thousand times stays of the size it was.
_UPDATE_SCALE = 2.0**-20


def array_sizes(cache_bytes: int | None, steps: Sequence[int], free_bytes: int) -> tuple[int, ...]:
    """Return bytes per array: `steps` times the smallest past the cache, as far as memory goes.

    All three arrays together take at most a quarter of `free_bytes`; empty if none fits.
    """
    known = max(_SMALLEST_BYTES, _CACHE_MULTIPLE * (cache_bytes or 0))
    smallest = _UNKNOWN_CACHE_BYTES if cache_bytes is None else known
    block = _RANDOM_ELEMENTS * _ELEMENT_BYTES
    sizes = (-(-smallest // block) * block * step for step in steps)
    return tuple(size for size in sizes if ARRAYS * size <= free_bytes // 4)


def stream_probes(sizes: Sequence[int], device: torch.device) -> list[Probe]:
    """Return copy, triad and update over the first `size` bytes of three arrays they share."""

    @functools.cache
    def arrays() -> list[torch.Tensor]:
        blocks = max(sizes) // _ELEMENT_BYTES // _RANDOM_ELEMENTS
        return [torch.randn(_RANDOM_ELEMENTS, device=device).repeat(blocks) for _ in range(ARRAYS)]

    def probe(kind: str, size: int) -> Probe:
        def prepare() -> Launch:
            a, b, c = (array[: size // _ELEMENT_BYTES] for array in arrays())
            launches: dict[str, Launch] = {
                "copy": lambda: a.copy_(b),
                "triad": lambda: torch.add(b, c, alpha=_TRIAD_SCALE, out=a),
                "update": lambda: c.add_(b, alpha=_UPDATE_SCALE),
            }
            return launches[kind]

        moved = _ARRAYS_MOVED[kind] * size
        return Probe(f"{kind} {size // 2**20} MiB", None, "bytes_per_s", moved, 0, prepare)

    return [probe(kind, size) for size in sizes for kind in _ARRAYS_MOVED]


#: Arrays read plus arrays written: a = b; a = b + s c; c = c + s b.
_ARRAYS_MOVED = {"copy": 2, "triad": 3, "update": 3}
