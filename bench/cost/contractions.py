"""Algorithmic multiply-adds: convolution, matrix products and attention.

Only what the mathematics asks for counts: not what a backward pass computes again (attention),
nor padding to tile sizes. Products with padding zeros count, as every counter in use has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch

from bench.errors import UserError

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


def is_attention(op: str) -> bool:
    """Return whether `op` is a variant of scaled-dot-product attention, forward or backward."""
    return "scaled_dot_product" in op and "attention" in op


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
