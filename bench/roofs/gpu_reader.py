"""The kernel that reads a GPU's caches; importing this needs Triton, which comes with torch."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def read(  # type: ignore[no-untyped-def] # noqa: ANN201
    data,  # noqa: ANN001
    sums,  # noqa: ANN001
    elements,  # noqa: ANN001
    region_stride,  # noqa: ANN001
    start_stride,  # noqa: ANN001
    rounds,  # noqa: ANN001
    block: tl.constexpr,
    past_l1: tl.constexpr,
):
    """Let each program read its region of `data`, fp32, block by block, `rounds` blocks in all.

    Regions are `region_stride` apart, and a program begins `start_stride` after the one before. A
    block has `block` elements, a power of two; `elements`, a region's, is a multiple of it, and
    `sums` holds a block for each program. `past_l1`: read past the L1 (`ld.global.cg`).
    """
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
