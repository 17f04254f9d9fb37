"""Work of a training step's ops: MAC (2 FLOP each), and elementwise FLOP by convention.

Multiply-adds of convolution, matrix products and attention: only what the mathematics asks for
counts, not what a backward pass computes again (attention), nor padding to tile sizes. Products
with padding zeros count, as every counter in use has it.

Elementwise FLOP cost little on any device and are counted separately. One per output element of an
op that computes on elements, whatever it computes: an exponential counts like an addition, a scaled
addition (`alpha`) is two. One per input element of a reduction. Moving, casting and filling count
nothing. Norms, softmax, pooling and optimizers count what their formulas need: see the tables here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch

from bench.cost.op_calls import FILLS, MOVES, OpCall, tensors_in
from bench.cost.passes import Role
from bench.errors import UserError
from bench.records.complexity import is_attention

#: Matrix products, and the argument whose last dimension is summed over.
_PRODUCTS = {
    "mm": "self",
    "addmm": "mat1",
    "_addmm_activation": "mat1",
    "_scaled_mm": "self",
    "bmm": "self",
    "baddbmm": "batch1",
    "mv": "self",
    "addmv": "mat",
    "dot": "self",
    "vdot": "self",
    "linear": "input",
}
_CONVOLUTIONS = frozenset({"convolution", "_convolution", "convolution_overrideable"})

#: Parts of the names of other ops that multiply and add: better no count than a wrong one.
_UNCOUNTED = ("rnn", "lstm", "gru", "attention", "conv_", "convolution", "matmul", "_mm", "addbmm")


def is_contraction(op: str) -> bool:
    """Return whether `op` has algorithmic multiply-adds."""
    return op in _PRODUCTS or op in _CONVOLUTIONS or is_attention(op)


def refuse_uncounted(op: str) -> None:
    """Raise `UserError` for an op that has, or may have, multiply-adds but no formula here."""
    if "." in op or any(word in op for word in _UNCOUNTED):  # "library.op" is not torch's own
        raise UserError(
            f"the model runs {op}, whose FLOP cannot be counted; "
            "use convolutions, linear layers, matrix products or attention"
        )


def contraction_macs(op: str, arguments: Mapping[str, Any], outputs: Sequence[torch.Tensor]) -> int:
    """Return the multiply-adds of one call of a contraction other than a convolution's backward."""
    if op in _PRODUCTS:
        return outputs[0].numel() * int(arguments[_PRODUCTS[op]].shape[-1])
    if op in _CONVOLUTIONS:
        return convolution_macs(
            arguments["input"], arguments["weight"], outputs[0], transposed=arguments["transposed"]
        )
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    macs = attention_macs(query.shape, key.shape, value.shape)
    return 2 * macs if op.endswith("_backward") else macs


def convolution_macs(
    inputs: torch.Tensor, weight: torch.Tensor, outputs: torch.Tensor, *, transposed: bool
) -> int:
    """Return the multiply-adds of a convolution, and of either of its gradient products.

    The weight is (out, in / groups, *kernel): every output element sums over in / groups x kernel.
    A transposed convolution's is (in, out / groups, *kernel): every input element is spread over
    out / groups x kernel. Both gradients pair the same elements.
    """
    return (inputs if transposed else outputs).numel() * prod(weight.shape[1:])


def attention_macs(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    """Return the multiply-adds of attention's two products, from shapes (..., length, width).

    Query by key, then weights by value; a causal mask is not subtracted. The backward pass has
    four such products (of grad by value, weights by grad, and twice with query and key), which is
    twice this.
    """
    queries = prod(query[:-1])
    return queries * key[-2] * (query[-1] + value[-1])


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
