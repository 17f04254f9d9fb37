"""Elementwise FLOP, by convention: they cost little on any device and are counted separately.

One FLOP per output element of an op that computes on elements, whatever it computes: an exponential
counts like an addition, a scaled addition (`alpha`) is two. One per input element of a reduction.
Moving, casting and filling count nothing. Norms, softmax, pooling and optimizers count what their
formulas need: see the tables here.
"""

from __future__ import annotations

from math import prod

import torch

from bench.cost.op_calls import FILLS, MOVES, OpCall, tensors_in
from bench.cost.passes import Role

#: FLOP per element of a norm's input. Statistics: add to the sum; square and add. Apply: one
#: multiply-add, scale and offset merged. Backward sums: add the gradient; subtract the mean,
#: multiply, add. Backward apply: subtract the mean, scale, subtract twice, scale. A layer norm does
#: both in one pass over its row.
NORM_FLOPS = {
    "statistics": 3,
    "apply": 2,
    "reduce_backward": 4,
    "apply_backward": 5,
    "row_backward": 10,  # 5 to apply, after 4 for the row's sums and 1 for the weight
}

#: FLOP per output element where it is not one. Softmax: maximum, subtract, exponential, add,
#: divide; its backward: multiply, add, subtract, multiply. SGD: weight decay, momentum and update
#: are a multiply-add each; Adam's from its formula.
_PER_ELEMENT = {
    "_softmax": 5,
    "_log_softmax": 5,
    "_softmax_backward_data": 4,
    "_log_softmax_backward_data": 4,
    "native_layer_norm": 7,  # statistics 3, subtract, scale, weight, bias
    "_fused_rms_norm": 4,  # square, add, scale, weight
    "_fused_sgd": 6,
    "_fused_adam": 13,
    "_fused_adamw": 13,
}
_BIASED = frozenset({"addmm", "baddbmm", "addmv", "convolution"})


def elementwise_flops(call: OpCall, role: Role, writes: list[torch.Tensor]) -> int:
    """Return the elementwise FLOP of one call that is a single pass."""
    if call.op in MOVES | FILLS or not writes:
        return 0
    if role is Role.CONTRACTION:
        return _bias_flops(call, writes)
    if role is Role.REDUCTION:
        return sum(tensor.numel() for tensor in call.reads())
    if "pool" in call.op:
        return _pooling_flops(call, writes)
    if call.name.startswith(("_foreach_", "_fused_")):
        elements = sum(tensor.numel() for tensor in tensors_in(call.arguments["self"]))
    else:
        elements = max(tensor.numel() for tensor in writes)
    return elements * _flops_per_element(call)


def _flops_per_element(call: OpCall) -> int:
    scaled = call.op in ("add", "sub", "rsub") and call.arguments.get("alpha", 1) != 1
    return 2 if scaled else _PER_ELEMENT.get(call.op, 1)


def _bias_flops(call: OpCall, writes: list[torch.Tensor]) -> int:
    has_bias = call.op in _BIASED and call.arguments.get("bias", True) is not None
    return writes[0].numel() if has_bias else 0


def _pooling_flops(call: OpCall, writes: list[torch.Tensor]) -> int:
    """One FLOP per element of every window; a maximum's gradient goes to one element of it."""
    if call.op.startswith("max") and call.op.endswith("_backward"):
        return int(call.arguments["grad_output"].numel())
    pooled = call.arguments["grad_output"] if call.op.endswith("_backward") else writes[0]
    window = call.arguments.get("kernel_size")
    if window is None:  # adaptive: the windows tile the larger side
        return max(tensor.numel() for tensor in (*call.reads(), *writes))
    area = prod(window) if len(window) > 1 else window[0] ** (pooled.dim() - 2)
    return int(pooled.numel() * area)
