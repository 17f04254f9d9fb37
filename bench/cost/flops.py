"""Work of a training step's ops: MAC (2 FLOP each), and elementwise FLOP by convention.

Multiply-adds of convolution, matrix products and attention: only what the mathematics asks for
counts, not what a backward pass computes again (attention, checkpointed layers), nor padding to
tile sizes. Products with padding zeros count, as every counter in use has it. A multiply-add of
complex numbers is 4 of real ones. torch computes a complex convolution as 3 real ones, which count
as what they are.

Elementwise FLOP cost little on any device and are counted separately. One per output element of an
op that computes on elements, whatever it computes: an exponential counts like an addition, a scaled
addition (`alpha`) is two. One per input element of a reduction. Moving, casting and filling count
nothing. Norms, softmax (that inside of attention too), pooling and optimizers count what their
formulas need: see `op_table`, and the tables here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch

from bench.cost.op_table import OPS, OpCall, known_op, tensors_in
from bench.cost.traffic import Role

_REAL_PER_COMPLEX_MAC = 4
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
#: Per result of a recurrent layer's products: its bias, its sum, and its part of gates and state.
_PER_GATE = 3


def contraction_macs(op: str, arguments: Mapping[str, Any], outputs: Sequence[torch.Tensor]) -> int:
    """Return the multiply-adds of one call of a contraction that is a single pass."""
    facts = known_op(op)
    if facts.formula == "product":
        summed = tensors_in(arguments[facts.summed])  # a list where the op takes lists
        macs = sum(output.numel() * int(left.shape[-1])
                   for output, left in zip(outputs, summed, strict=True))  # fmt: skip
        return macs * (_REAL_PER_COMPLEX_MAC if outputs[0].is_complex() else 1)
    if facts.formula == "grouped":
        return grouped_macs(arguments["self"].shape, arguments["mat2"].shape)
    if facts.formula == "convolution":
        return convolution_macs(
            arguments["input"], arguments["weight"], outputs[0], transposed=arguments["transposed"]
        )
    if facts.formula == "recurrent":
        macs = recurrent_macs(arguments)
    else:
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


def grouped_macs(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the multiply-adds of a grouped product, whose groups together have all rows.

    Groups are matrices of a stack (three dimensions) or ranges of rows, columns or both (two): the
    shapes are (rows, k) and (groups, k, n), (groups, m, k) and (k, columns), (m, rows) and
    (rows, n), or those of a batched product.
    """
    groups = left[0] if len(left) == 3 and len(right) == 2 else 1
    return prod(left) * right[-1] // groups


def recurrent_macs(arguments: Mapping[str, Any]) -> int:
    """Return the multiply-adds of a recurrent layer: every weight with every step of each sequence.

    An LSTM of H units has 4 H (I + H) weights for inputs of I numbers. The backward pass has as
    many for the gradients of inputs and states, and as many for those of the weights.
    """
    return sum(rows * matrix.numel() for rows, matrix in _recurrent_products(arguments))


def _recurrent_products(arguments: Mapping[str, Any]) -> Iterator[tuple[int, torch.Tensor]]:
    """Every matrix of weights, and how many rows it is multiplied with; biases are vectors."""
    rows = prod(arguments["input"].shape[:-1])
    given = (value for name, value in arguments.items() if name.startswith(("weight", "params")))
    return ((rows, matrix) for value in given for matrix in tensors_in(value) if matrix.dim() == 2)


def attention_macs(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    """Return the multiply-adds of attention's two products, from shapes (..., length, width).

    Query by key, then weights by value; a causal mask is not subtracted. The backward pass has
    four such products (of grad by value, weights by grad, and twice with query and key), which is
    twice this.
    """
    queries = prod(query[:-1])
    return queries * key[-2] * (query[-1] + value[-1])


def elementwise_flops(call: OpCall, role: Role, writes: list[torch.Tensor]) -> int:
    """Return the elementwise FLOP of one call that is a single pass."""
    facts = call.known
    if not facts.flops or not writes:
        return 0
    if facts.formula == "recurrent":
        outputs = sum(rows * len(matrix) for rows, matrix in _recurrent_products(call.arguments))
        return _PER_GATE * outputs
    if facts.formula == "attention":
        # Those of the softmax inside, of every query with every key.
        query, key = call.arguments["query"], call.arguments["key"]
        softmax = "_softmax_backward_data" if call.op.endswith("_backward") else "_softmax"
        return int(prod(query.shape[:-1]) * key.shape[-2]) * OPS[softmax].flops
    if role is Role.CONTRACTION:
        return writes[0].numel() if call.arguments.get(facts.bias) is not None else 0
    if role is Role.REDUCTION:
        summed = call.reads()
        return sum(tensor.numel() for tensor in (summed[:1] if facts.sums_first else summed))
    if "pool" in call.op:
        return _pooling_flops(call, writes)
    if call.name.startswith(("_foreach_", "_fused_")):
        elements = sum(tensor.numel() for tensor in call.tensors("self"))
    else:
        elements = max(tensor.numel() for tensor in writes)
    is_scaled = call.op in ("add", "sub", "rsub") and call.arguments.get("alpha", 1) != 1
    return elements * (2 if is_scaled else facts.flops)


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
