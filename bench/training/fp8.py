"""Linear layers whose three products are of 8-bit floats; everything else of a step stays as it is.

Micikevicius et al.: FP8 Formats for Deep Learning, arXiv:2209.05433 (2022): inputs and weights are
e4m3, gradients, whose range is wider, e5m2. Each tensor has one scale, from its own largest
element, so that this becomes the largest number of the format.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch

#: The sizes that `torch._scaled_mm` multiplies on CUDA: rows of whole 16 bytes.
_MULTIPLE = 16
_INPUTS, _GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
#: Of a tensor of zeros: over the largest number of a format it is a normal number of fp32 still.
_SMALLEST = 1e-30
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_Scaled = tuple[torch.Tensor, torch.Tensor]


def multiply_in_fp8(model: torch.nn.Module) -> frozenset[str]:
    """Let the linear layers of `model` multiply in fp8 where their sizes allow; return their paths.

    Only a layer's `forward` is replaced. It is as before for inputs whose number of rows (batch x
    tokens), which the weight's gradient sums over, is no multiple of 16. Layers of a class of its
    own are left as they are.
    """
    found = []
    for path, layer in model.named_modules():
        weight = _weight(layer)
        fits = weight is not None and not any(size % _MULTIPLE for size in weight.shape)
        if fits and weight.dtype in _FLOATS:
            layer.forward = MethodType(_linear, layer)
            found.append(path)
    return frozenset(found)


def _weight(layer: torch.nn.Module) -> Any:
    """Return the (out, in) weight of a linear layer, GPT-2's too, which has it transposed."""
    kind, weight = type(layer), getattr(layer, "weight", torch.empty(0))
    if (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D"):
        return weight.t()
    return weight if kind is torch.nn.Linear else None


def _linear(layer: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """Return (..., out) in bf16 of inputs (..., in)."""
    rows = inputs.numel() // inputs.shape[-1]
    if rows % _MULTIPLE:
        plain: torch.Tensor = type(layer).forward(layer, inputs)
        return plain
    outputs: torch.Tensor = _Product.apply(inputs.reshape(rows, -1), _weight(layer), layer.bias)
    return outputs.view(*inputs.shape[:-1], -1)


class _Product(torch.autograd.Function):
    """Inputs (rows, in) by weight (out, in) and bias (out) or None; one derivative."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        left, (right, scale) = _scaled(inputs, _INPUTS), _scaled(weight, _INPUTS)
        ctx.save_for_backward(*left, right, scale)
        ctx.dtypes = inputs.dtype, weight.dtype, bias is not None and bias.dtype
        added = None if bias is None else bias.to(torch.bfloat16)
        # Hopper sums faster with fewer bits: in the forward pass alone, as NVIDIA's recipe has it.
        return _product(left, (right.t(), scale), torch.bfloat16, added, use_fast_accum=True)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        inputs, inputs_scale, weight, weight_scale = ctx.saved_tensors
        of_inputs, of_weight, of_bias = ctx.dtypes
        to_inputs, to_weight, to_bias = ctx.needs_input_grad
        grads, scale = _scaled(grad, _GRADIENTS)
        return (
            _product((grads, scale), (weight, weight_scale), of_inputs) if to_inputs else None,
            _product((grads.t(), scale), (inputs, inputs_scale), of_weight) if to_weight else None,
            grad.sum(0, dtype=of_bias) if to_bias else None,
        )


def _scaled(tensor: torch.Tensor, dtype: torch.dtype) -> _Scaled:
    """Return `tensor` over its scale in `dtype`, and the scale.

    What rounding leaves above the largest number of the format rounds to it: nothing is clamped.
    """
    largest = torch.linalg.vector_norm(tensor, float("inf"), dtype=torch.float32)
    scale = largest.clamp(min=_SMALLEST) / torch.finfo(dtype).max
    return (tensor / scale).to(dtype), scale


def _product(
    left: _Scaled, right: _Scaled, dtype: torch.dtype, bias: torch.Tensor | None = None, **how: Any
) -> torch.Tensor:
    """Return (m x k) by (k x n) in `dtype`; CUDA takes the first by rows, the second by columns."""
    by_rows, by_columns = left[0].contiguous(), right[0].t().contiguous().t()
    scales = left[1], right[1]
    return torch._scaled_mm(by_rows, by_columns, *scales, bias, out_dtype=dtype, **how)
