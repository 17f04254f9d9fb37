"""The time of an op on a device: its roof time over the share of the roof that such ops reach.

The share follows from what every device has: its processors, its two roofs, and how large the op
is. Convolutions and products are tiles of 128, 64 or 32 a side, handed out to the processors in
waves; a tile takes its length along the summed dimension and what filling the pipeline costs. A
long sum may be split between processors. Their bytes take their share of the memory's roof, and
both together t = (compute^4 + memory^4)^(1/4). A 3x3 convolution in fp32 may also be Winograd's
(F(4x4, 3x3): 36 products instead of 144): whichever is faster. All other ops move bytes, at the
share of their class. Nothing is faster than its roof, Winograd's by the FLOP that it executes.

The few numbers behind it are in `roofs/data/shares.json`, with their source;
`research/fit_shares.py` fits them. No number belongs to one device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.roofs.roof import Peaks
from bench.records.complexity import ListedOp

Numbers = NDArray[np.float64]
Shares = Mapping[str, float]

#: Kinds of kernels: those of products first, then those that move bytes.
PRODUCTS = ("product", "batched product", "convolution", "input gradient", "weight gradient")
PASSES = ("elementwise", "softmax", "layer norm", "batch norm", "sum", "depthwise", "optimizer")
#: Attention in one kernel, recurrent layers, grouped convolutions: no timing supports them.
UNPROVEN = "unproven"
KINDS = (*PRODUCTS, *PASSES, UNPROVEN)
_TILES = (128, 64, 32)
_SPLITS = (1, 8, 64)
_LEAST_SPLIT = 128
_NORM = 4
_SLOT_W = 75  # a PCI Express slot's own power
_MANY_LANES = 32


@dataclass(frozen=True)
class Kernels:
    """Kernels of a step, one entry each; `op` is the position of the op that launches it.

    `sizes` are (batch, rows, columns, summed) of a product, `winograd` those of Winograd's products
    and the bytes of its transforms, 0 where it does not apply. `flops` and `bytes` are of one call.
    """

    kind: NDArray[np.int64]
    sizes: Numbers
    flops: Numbers
    bytes: Numbers
    winograd: Numbers
    calls: Numbers
    op: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[tuple[Any, ...]]) -> Kernels:
        """Return kernels from rows of (kind, sizes, flops, bytes, winograd, calls, op)."""
        columns = list(zip(*rows, strict=True))
        kinds, numbers = [KINDS.index(kind) for kind in columns[0]], columns[1:6]
        sizes, flops, moved, winograd, calls = (np.array(one, dtype=float) for one in numbers)
        return cls(np.array(kinds), sizes, flops, moved, winograd, calls, np.array(columns[6]))


@dataclass(frozen=True)
class Chip:
    """What shares are of: FLOP/s and B/s that the largest ops reach, and the peak of either.

    Each may be one number, or one per kernel. `fp32` is whether Winograd's convolutions may run.
    """

    flops_per_s: Any
    bytes_per_s: Any
    peak_flops_per_s: Any
    processors: Any
    fp32: bool = True


@cache
def shares() -> Mapping[str, Any]:
    """Return the fitted numbers of this package: `shares`, `errors`, `quantiles`, `source`."""
    text = (files("analysis.roofs") / "data" / "shares.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def datasheet_reach(peaks: Peaks, known: Shares, mode: str = "fp32") -> tuple[float, float]:
    """Return the parts of a datasheet's FLOP/s and B/s that the largest ops reach.

    Three facts lower them. Where a scheduler has an fp32 lane for every thread of a warp (32), each
    other instruction takes the slot of a multiply-add; with 16 lanes every second slot is free. A
    board that a slot feeds alone does not hold its boost clock. And GDDR memory without lanes of
    its own for error correction sends the check bits where data would go.
    """
    compute, memory = known["compute"], known["memory"]
    if mode == "fp32" and (peaks.fp32_lanes_per_scheduler or 0) >= _MANY_LANES:
        compute *= known["many_lanes"]
    if (peaks.board_w or 0) <= _SLOT_W:
        compute *= known["slot_powered"]
    return compute, memory * (known["inline_ecc"] if peaks.inline_ecc else 1.0)


def kernel_times_s(kernels: Kernels, chip: Chip, known: Shares) -> Numbers:
    """Return the seconds of one call of each kernel; `known` are the fitted shares, by name."""
    count = len(kernels.kind)
    flops_per_s, bytes_per_s, peak, processors = (
        np.broadcast_to(np.asarray(value, dtype=float), count)
        for value in (chip.flops_per_s, chip.bytes_per_s, chip.peak_flops_per_s, chip.processors)
    )
    of_kind = np.array([known.get(kind, 1.0) for kind in KINDS])[kernels.kind]
    times_s = kernels.bytes / (bytes_per_s * np.minimum(of_kind, 1.0))
    rates = np.minimum(flops_per_s * of_kind, peak)
    at = np.flatnonzero(kernels.kind < len(PRODUCTS))
    compute_s = _tiled_s(kernels.sizes[at], rates[at], bytes_per_s[at], processors[at], known)
    memory_s = kernels.bytes[at] / (bytes_per_s[at] * known["product_bytes"])
    times_s[at] = (compute_s**_NORM + memory_s**_NORM) ** (1 / _NORM)
    if chip.fp32:
        at = np.flatnonzero(kernels.winograd[:, 0] > 0)
        faster = np.minimum(flops_per_s * of_kind * known["winograd"] / known["convolution"], peak)
        moved = kernels.bytes[at] + known["winograd_bytes"] * kernels.winograd[at, 4]
        products = kernels.winograd[at, :4]
        winograd_s = moved / bytes_per_s[at] + _tiled_s(
            products, faster[at], bytes_per_s[at], processors[at], known
        )
        times_s[at] = np.minimum(times_s[at], winograd_s)
    at = np.flatnonzero(kernels.kind == KINDS.index(UNPROVEN))
    times_s[at] = np.maximum(times_s[at], kernels.flops[at] / (flops_per_s * of_kind)[at])
    found: Numbers = times_s + known["kernel_s"]
    return found


def _tiled_s(
    sizes: Numbers, rates: Numbers, bytes_per_s: Numbers, processors: Numbers, known: Shares
) -> Numbers:
    """Seconds of products as waves of tiles, by the tile and the split that are fastest."""
    batch, rows, columns, summed = sizes.T
    best = np.full(len(rows), np.inf)
    for side in _TILES:
        tiles = np.ceil(rows / side) * np.ceil(columns / side) * batch
        rate = rates * known.get(f"tile_{side}", 1.0) / processors
        for parts in _SPLITS:
            waves = np.ceil(tiles * parts / processors)
            length = np.maximum(summed / parts, 1.0) + known["fill_length"]
            time_s = waves * 2.0 * side * side * length / rate
            if parts > 1:  # partial results are written and read once more
                time_s = time_s + 8.0 * rows * columns * batch * parts / bytes_per_s
                time_s = np.where(summed >= _LEAST_SPLIT * parts, time_s, np.inf)
            best = np.minimum(best, time_s)
    return best


_NO_WINOGRAD = (0.0, 0.0, 0.0, 0.0, 0.0)
_NO_SIZES = (0.0, 0.0, 0.0, 0.0)
_PASS_OF = (
    ("softmax", "softmax"), ("layer_norm", "layer norm"), ("rms_norm", "layer norm"),
    ("batch_norm", "batch norm"), ("group_norm", "batch norm"),
)  # fmt: skip


def kernels_of(ops: Sequence[ListedOp]) -> Kernels:
    """Return the kernels that ops of a step launch, two for the backward pass of a convolution."""
    rows: list[tuple[Any, ...]] = []
    for number, op in enumerate(ops):
        rows += [(*row, op.calls, number) for row in _kernels(op)]
    return Kernels.of(rows)


def _kernels(op: ListedOp) -> list[tuple[Any, ...]]:
    """Rows of (kind, sizes, flops, bytes, winograd) of one call."""
    if "convolution" in op.op and op.flops:
        return _of_convolution(op)
    if op.flops:
        left, right = (op.shapes or ((), ()))[-2:] if len(op.shapes) > 1 else ((), ())
        batch = left[0] if len(left) == 3 else 1
        sizes = (batch, left[-2], right[-1], left[-1]) if len(left) in (2, 3) else _NO_SIZES
        known = (
            op.op in ("mm", "addmm", "bmm", "baddbmm", "linear")
            and 2 * np.prod(np.array(sizes, dtype=float)) == op.flops
        )
        kind = ("batched product" if len(left) == 3 else "product") if known else UNPROVEN
        flops = op.flops - op.causal_skipped_flops
        return [(kind, sizes if known else _NO_SIZES, flops, op.eager_bytes, _NO_WINOGRAD)]
    kind = "sum" if op.op in ("sum", "mean") else "elementwise"
    kind = next((name for part, name in _PASS_OF if part in op.op), kind)
    kind = "optimizer" if op.phase == "optimizer" else kind
    return [(kind, _NO_SIZES, 0.0, op.eager_bytes, _NO_WINOGRAD)]


def _of_convolution(op: ListedOp) -> list[tuple[Any, ...]]:
    is_forward = op.op == "convolution"
    inputs, weight = op.shapes[:2] if is_forward else op.shapes[1:3]
    images, channels, *pixels = inputs
    filters, depth, *window = weight
    area = int(np.prod(window))
    each = op.flops if is_forward else 2 * int(np.prod(op.shapes[0])) * depth * area
    if depth == 1 and channels > 1:
        return [("depthwise", _NO_SIZES, op.flops, op.eager_bytes, _NO_WINOGRAD)]
    if depth != channels or "transposed" in op.label:
        return [(UNPROVEN, _NO_SIZES, op.flops, op.eager_bytes, _NO_WINOGRAD)]
    outputs = each / (2 * filters * depth * area)  # pixels of all images
    seen = images * float(np.prod(pixels))
    forward = (1, outputs, filters, depth * area)
    to_input = (1, seen, channels, filters * area * outputs / seen)
    to_weight = (1, filters, depth * area, outputs)
    wanted = [("convolution", forward)] if is_forward else [
        *([("input gradient", to_input)] if op.flops > each else []), ("weight gradient", to_weight)
    ]  # fmt: skip
    plain = window == [3, 3] and "stride" not in op.label and "dilation" not in op.label
    tiles = images * float(np.prod(np.ceil(np.array(pixels) / 4)))
    moved = 2 * 4.0 * 36 * tiles * (channels + filters)
    products = {
        "convolution": (36, tiles, filters, channels, moved),
        "input gradient": (36, tiles, channels, filters, moved),
        "weight gradient": (36, channels, filters, tiles, moved),
    }
    return [
        (kind, sizes, each, op.eager_bytes / len(wanted), products[kind] if plain else _NO_WINOGRAD)
        for kind, sizes in wanted
    ]
