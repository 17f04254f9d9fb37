"""What ops are called where their time is compared with their work: one name for one kind."""

from __future__ import annotations

from collections.abc import Sequence

from bench.cost.contractions import is_attention
from bench.cost.op_calls import OpCall
from bench.records import Phase

_CONVOLUTIONS = frozenset({"convolution", "convolution_backward"})
_PREFIXES = ("_", "native_", "cudnn_", "miopen_", "mps_", "fused_")
_SUFFIXES = ("_", "_data", "_backward", "_forward", "_with_indices")
#: What is left of a name where a more usual one exists.
_USUAL = {
    "threshold": "relu",
    "to_copy": "cast",
    "clone": "copy",
    "mm": "linear",
    "addmm": "linear",
    "bmm": "batched product",
    "baddbmm": "batched product",
}


def label_of(call: OpCall, phase: Phase) -> str:
    """Return the kind of one dispatched call: `depthwise convolution 3x3 stride 2`, `batch_norm`.

    A backward call has the name of the forward one that it belongs to.
    """
    if phase == "optimizer":
        return "optimizer"
    if call.op in _CONVOLUTIONS:
        return _convolution(call)
    return plain_label(call.name)


def plain_label(name: str) -> str:
    """Return the kind that an op's name alone shows: `native_batch_norm_backward` is batch_norm."""
    if is_attention(name):
        return "attention"
    while kept := next((p for p in _PREFIXES if name.startswith(p) and name != p), ""):
        name = name.removeprefix(kept)
    while kept := next((s for s in _SUFFIXES if name.endswith(s) and name != s), ""):
        name = name.removesuffix(kept)
    return _USUAL.get(name, name)


def _convolution(call: OpCall) -> str:
    weight, groups = call.arguments["weight"], call.arguments["groups"]
    transposed = call.arguments["transposed"]
    kind = "transposed convolution" if transposed else "convolution"
    if groups > 1:
        # The weight is (out, in / groups, *kernel), transposed (in, out / groups, *kernel).
        kind = f"{'depthwise' if weight.shape[1] == 1 else 'grouped'} {kind}"
    words = [kind, _by(weight.shape[2:])]
    for name in ("stride", "dilation"):
        steps = call.arguments[name]
        if any(step > 1 for step in steps):
            words += [name, str(steps[0]) if len(set(steps)) == 1 else _by(steps)]
    return " ".join(words)


def _by(lengths: Sequence[int]) -> str:
    return "x".join(map(str, lengths))
