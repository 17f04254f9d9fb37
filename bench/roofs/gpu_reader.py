"""The kernel that reads a GPU's caches; importing this needs Triton, which comes with torch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_WARPS = 8


@triton.jit  # type: ignore[untyped-decorator]
def _read(  # type: ignore[no-untyped-def] # noqa: ANN202
    data,  # noqa: ANN001
    sums,  # noqa: ANN001
    elements,  # noqa: ANN001
    region_stride,  # noqa: ANN001
    start_stride,  # noqa: ANN001
    rounds,  # noqa: ANN001
    block: tl.constexpr,
    past_l1: tl.constexpr,
):
    """Each program reads its region block by block, round after round, from its own start."""
    program = tl.program_id(0)
    lanes = tl.arange(0, block)
    region = data + program * region_stride
    position = (program * start_stride) % elements
    total = tl.zeros((block,), dtype=tl.float32)
    for _ in range(rounds):
        # The compiler knows neither the region's length nor the start: no load can be hoisted.
        # That it knows the alignment gives loads of 16 bytes.
        place = region + tl.multiple_of(position, block) + lanes
        total += tl.load(place, cache_modifier=".cg" if past_l1 else "")
        position += block
        position = tl.where(position >= elements, 0, position)
    # Every element that was read is in a sum that is kept: no load can be dropped.
    tl.store(sums + program * block + lanes, total)


def read(
    data: torch.Tensor,
    sums: torch.Tensor,
    *,
    programs: int,
    elements: int,
    own_regions: bool,
    rounds: int,
    block: int,
) -> None:
    """Let `programs` programs each read `rounds` blocks of `data`, fp32, into `sums`.

    `own_regions`: each has `elements` of its own, and keeps them in its L1. Else all share one
    region of `elements`, start at different places, and read past the L1 (`ld.global.cg`).
    A block has `block` elements, a power of two; `elements` is a multiple of it, and `sums` holds
    `programs` blocks.
    """
    region_stride, start_stride = (elements, 0) if own_regions else (0, block)
    _read[(programs,)](
        data,
        sums,
        elements,
        region_stride,
        start_stride,
        rounds,
        block=block,
        past_l1=not own_regions,
        num_warps=_WARPS,
    )
