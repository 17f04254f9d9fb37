"""The time of an op on a device: its roof time over the share of the roof that such ops reach.

The share follows from what every device has: its processors, its two roofs, and how large the op
is. Convolutions and products are tiles of 256 to 32 by as much, handed out to the processors in
waves; a tile takes its length along the summed dimension and what filling the pipeline costs, and
waits for operands from the L2 cache where tensor cores are faster. The fastest tile counts, but for
batched products in fp32: the library has one tile for all of them, so narrow ones leave much of it
empty. A long sum may be split between processors. Their bytes take their share of the memory's
roof, and both together t = (compute^4 + memory^4)^(1/4). A 3x3 convolution in fp32 may
also be Winograd's (F(4x4, 3x3): 36 products instead of 144): whichever is faster. All other ops
move bytes, at the share of their class. Nothing is faster than its roof, Winograd's by the FLOP
that it executes.

The few numbers behind it are in `roofs/data/shares.json`, with their source;
`research/fit_shares.py` fits them. No number belongs to one device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.roofs import Peaks
from bench.records import MathMode
from bench.records.complexity import CallWork

Numbers = NDArray[np.float64]
Shares = Mapping[str, float]

#: Kinds of kernels: those of products first, then those that move bytes.
PRODUCTS = ("product", "batched product", "convolution", "input gradient", "weight gradient")
PASSES = ("elementwise", "softmax", "layer norm", "batch norm", "sum", "depthwise", "optimizer")
#: Attention in one kernel, recurrent layers, grouped convolutions: no timing supports them.
UNPROVEN = "unproven"
KINDS = (*PRODUCTS, *PASSES, UNPROVEN)
#: Channels of a group that cuDNN has tensor cores' kernels for in NHWC, where all fill tiles of 32.
_GROUPS, _GROUP_TILE = (4, 8, 16, 32), 32
#: Modes with operands of 16 bits.
HALVES = ("bf16", "fp16")
#: Rows and columns of tiles; the largest are of tensor cores.
_TILES = (256, 128, 64, 32)
#: B/s from the L2 cache to each processor: 26 a cycle on a V100, 47 on an A100 at 1.5 and 1.4 GHz,
#: by the A100 whitepaper (2,048 and 5,120 for all of them).
_L2_BYTES_PER_S = 54e9
_SPLITS = (1, 8, 64)
_LEAST_SPLIT = 128
_NORM = 4
#: From this compute capability on, in nm.
_PROCESSES = ((8.9, 4), (8.6, 8), (8.0, 7), (7.0, 12), (6.0, 16))
_MANY_LANES = 32

#: A kernel of a step. `sizes` are (batch, rows, columns, summed) of a product, `winograd` those of
#: Winograd's products and the bytes of its transforms, 0 where it does not apply. `flops` and
#: `bytes` are of one call; `op` is the position of the op that launches it.
KERNEL = np.dtype(
    [("kind", int), ("sizes", float, 4), ("flops", float), ("bytes", float),
     ("winograd", float, 5), ("calls", float), ("op", int)]
)  # fmt: skip


@dataclass(frozen=True)
class Chip:
    """What shares are of: FLOP/s and B/s that the largest ops reach, and the peak of either.

    Each may be one number, or one per kernel. In fp32 Winograd's convolutions may run, and batched
    products have one tile: `batched_tile` are its rows and columns there, 0 for any.
    """

    flops_per_s: Any
    bytes_per_s: Any
    peak_flops_per_s: Any
    processors: Any
    mode: MathMode = "fp32"
    batched_tile: Any = (0, 0)


@cache
def shares() -> Mapping[str, Any]:
    """Return the fitted numbers of this package: `shares`, `errors`, `quantiles`, `source`."""
    text = (files("analysis.roofs") / "data" / "shares.json").read_text(encoding="utf-8")
    numbers: dict[str, Any] = json.loads(text)
    return numbers


def datasheet_reach(peaks: Peaks, fitted: Shares, mode: str = "fp32") -> tuple[float, float]:
    """Return the parts of a datasheet's FLOP/s and B/s that the largest ops reach.

    Three facts lower them. In fp32, where a scheduler has a lane for every thread of a warp (32),
    each other instruction takes the slot of a multiply-add; with 16 every second slot is free. A
    board with less power than the peak takes, which falls with the transistors' size and the bits
    of a tensor core's operands, clocks lower by as much. GDDR memory without lanes of its own for
    error correction sends the check bits where data would go.
    """
    compute, memory = fitted["compute"], fitted["memory"]
    if mode == "fp32" and (peaks.fp32_lanes_per_scheduler or 0) >= _MANY_LANES:
        compute *= fitted["many_lanes"]
    if peaks.board_w and peaks.compute_capability and mode in peaks.flops_per_s:
        each_w = fitted["w_per_tflop_nm" if mode == "fp32" else "w_per_tensor_tflop_nm"]
        peak_tflop = peaks.flops_per_s[mode] / 1e12 * (2 if mode == "tf32" else 1)
        peak_w = each_w * peak_tflop * _nm(peaks.compute_capability)
        compute *= min(1.0, peaks.board_w / peak_w)
    return compute, memory * (fitted["inline_ecc"] if peaks.inline_ecc else 1.0)


def _nm(capability: float) -> int:
    """The process by NVIDIA's whitepapers: 28 nm of Maxwell to 4 nm of Ada, Hopper, Blackwell."""
    return next((nm for least, nm in _PROCESSES if capability >= least), 28)


def batched_tile(capability: float | None) -> tuple[int, int]:
    """Return rows and columns of the tile of batched products in fp32.

    By the names of 87,000 kernels in NeuSight's op times: Pascal has one, Ampere another one, and
    Volta and Turing mostly 64 by 64. One that is not known is taken for a newer one.
    """
    if capability is None or capability >= 8:
        return 128, 128
    return (64, 64) if capability >= 7 else (64, 128)


def kernel_times_s(kernels: Any, chip: Chip, fitted: Shares) -> Numbers:
    """Return the seconds of one call of each `KERNEL`; `fitted` are the shares, by name."""
    of_chip = chip.flops_per_s, chip.bytes_per_s, chip.peak_flops_per_s, chip.processors
    is_fp32 = chip.mode == "fp32"
    flops_per_s, rates, peak, units, _ = np.broadcast_arrays(*of_chip, kernels["flops"])
    kind, winograd = kernels["kind"], kernels["winograd"]
    of_kind = np.array([fitted.get(kind, 1.0) for kind in KINDS])[kind]
    times_s = kernels["bytes"] / (rates * np.minimum(of_kind, 1.0))
    reached = flops_per_s * of_kind
    at = kind < len(PRODUCTS)
    sizes = kernels["sizes"][at]
    is_batched = kind == KINDS.index("batched product")
    only = np.where(is_batched & is_fp32, np.reshape(chip.batched_tile, (-1, 2)).T, 0)
    compute_s = _tiled_s(
        sizes, np.minimum(reached, peak)[at], rates[at], units[at], fitted, only[:, at], chip.mode
    )
    memory_s = kernels["bytes"][at] / (rates[at] * fitted["product_bytes"])
    times_s[at] = (compute_s**_NORM + memory_s**_NORM) ** (1 / _NORM)
    if is_fp32:
        at = winograd[:, 0] > 0
        faster = np.minimum(reached * fitted["winograd"] / fitted["convolution"], peak)[at]
        moved = kernels["bytes"][at] + fitted["winograd_bytes"] * winograd[at, 4]
        tiled_s = _tiled_s(winograd[at, :4], faster, rates[at], units[at], fitted)
        times_s[at] = np.minimum(times_s[at], moved / rates[at] + tiled_s)
    at = kind == KINDS.index(UNPROVEN)
    times_s[at] = np.maximum(times_s[at], (kernels["flops"] / reached)[at])
    whole_s: Numbers = times_s + fitted["kernel_s"]
    return whole_s


def _tiled_s(
    sizes: Numbers, rates: Any, bytes_per_s: Any, units: Any, fitted: Shares, only: Any = (0, 0),
    mode: MathMode = "fp32",
) -> Numbers:  # fmt: skip
    """Seconds of products as waves of tiles, by the tile and the split that are fastest.

    `only` are rows and columns of the one tile that there is, 0 for any. Batches are not split.
    """
    batch, rows, columns, summed = sizes.T
    best = np.full(len(rows), np.inf)
    is_fp32, operand_bytes = mode == "fp32", 2 if mode in HALVES else 4
    for height, width in product(_TILES[is_fp32:], repeat=2):
        tiles = np.ceil(rows / height) * np.ceil(columns / width) * batch
        narrow = fitted.get(f"side_{height}", 1.0) * fitted.get(f"side_{width}", 1.0)
        area_s = 2.0 * height * width * units / (rates * narrow)
        if not is_fp32:
            feed_s = (height + width) * operand_bytes / _L2_BYTES_PER_S
            area_s = (area_s**_NORM + feed_s**_NORM) ** (1 / _NORM)
        is_there = np.isin(only[0], (0, height)) & np.isin(only[1], (0, width))
        for parts in _SPLITS:
            length = np.maximum(summed / parts, 1.0) + fitted["fill_length"]
            time_s = np.ceil(tiles * parts / units) * area_s * length
            if parts > 1:  # partial results are written and read once more
                time_s = time_s + 8.0 * rows * columns * parts / bytes_per_s
                is_there = is_there & (summed >= _LEAST_SPLIT * parts) & (batch == 1)
            best = np.where(is_there, np.minimum(best, time_s), best)
    return best


_NONE = (0.0,) * 5
_PASS_OF = {
    "softmax": "softmax", "layer_norm": "layer norm", "rms_norm": "layer norm",
    "batch_norm": "batch norm", "group_norm": "batch norm",
}  # fmt: skip
_OF_SUMS = dict.fromkeys(("sum", "mean"), "sum")


def kernels_of(ops: Sequence[CallWork], nhwc: bool | None = None) -> Any:
    """Return each `KERNEL` that ops launch, two for the backward pass of a convolution.

    `nhwc` is the layout of convolutions on tensor cores in 16 bits, None of others. Their kernels
    take NHWC: from NCHW all tensors are transposed.
    """
    rows = [
        (KINDS.index(kind), sizes, flops, moved, winograd, op.calls, number)
        for number, op in enumerate(ops)
        for kind, sizes, flops, moved, winograd in _kernels(op, nhwc)
    ]
    return np.array(rows, KERNEL)


def _kernels(op: CallWork, nhwc: bool | None) -> list[tuple[Any, ...]]:
    """(kind, sizes, flops, bytes, winograd) of the kernels of one call."""
    if not op.flops:
        passes = (name for part, name in _PASS_OF.items() if part in op.op)
        kind = next(passes, _OF_SUMS.get(op.op, "elementwise"))
        kernels = [("optimizer" if op.phase == "optimizer" else kind, *_bytes_of(op, 0.0))]
        if op.op == "_softmax_backward_data":  # CUDA multiplies gradient and result beforehand
            kernels.append(("elementwise", *_bytes_of(op, 0.0)))
        return kernels
    if "convolution" in op.op:
        kernels = _of_convolution(op, nhwc)
        if nhwc is False and kernels[0][0] != "depthwise":
            kernels.append(("elementwise", *_bytes_of(op, 0.0, 2)))
        return kernels
    left, right = op.shapes[-2:] if len(op.shapes) > 1 else ((), ())
    if op.op in _PLAIN_PRODUCTS and len(left) in (2, 3):
        sizes = (left[0] if len(left) == 3 else 1, left[-2], right[-1], left[-1])
        if 2 * prod(sizes) == op.flops:
            kind = "batched product" if len(left) == 3 else "product"
            return [(kind, sizes, float(op.flops), op.eager_bytes, _NONE)]
    return [(UNPROVEN, *_bytes_of(op, float(op.flops - op.causal_skipped_flops)))]


_PLAIN_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear")


def _bytes_of(op: CallWork, flops: float, times: int = 1) -> tuple[Any, ...]:
    """(sizes, flops, bytes, winograd) of a kernel that is no plain product."""
    return _NONE[:4], flops, times * op.eager_bytes, _NONE


def _of_convolution(op: CallWork, nhwc: bool | None) -> list[tuple[Any, ...]]:
    is_forward = op.op == "convolution"
    inputs, weight = op.shapes[:2] if is_forward else op.shapes[1:3]
    (images, channels, *pixels), (filters, depth, *window) = inputs, weight
    area = prod(window)
    flops = op.flops if is_forward else 2 * prod(op.shapes[0]) * depth * area
    if depth != channels or "transposed" in op.label:
        kind = "depthwise" if depth == 1 and channels > 1 else UNPROVEN
        # Without tensor cores the rate is at most half: twice the FLOP stand for it.
        is_slow = nhwc and (depth not in _GROUPS or channels % _GROUP_TILE > 0)
        return [(kind, *_bytes_of(op, 2.0 * op.flops if is_slow else op.flops))]
    outputs = flops / (2 * filters * depth * area)  # pixels of all images
    seen = float(images * prod(pixels))
    tiles = images * float(np.prod(np.ceil(np.array(pixels) / 4)))
    # sizes, and Winograd's, by the gradient
    products = {
        "convolution": ((1, outputs, filters, depth * area), (tiles, filters, channels)),
        "input gradient": (
            (1, seen, channels, filters * area * outputs / seen), (tiles, channels, filters)
        ),
        "weight gradient": ((1, filters, depth * area, outputs), (channels, filters, tiles)),
    }  # fmt: skip
    backward = ["input gradient", "weight gradient"][op.flops <= flops :]
    kinds = ["convolution"] if is_forward else backward
    plain = window == [3, 3] and "stride" not in op.label and "dilation" not in op.label
    moved = 2 * 4.0 * 36 * tiles * (channels + filters)
    return [
        (kind, sizes, flops, op.eager_bytes / len(kinds), (36, *product, moved) if plain else _NONE)
        for kind, (sizes, product) in ((kind, products[kind]) for kind in kinds)
    ]
