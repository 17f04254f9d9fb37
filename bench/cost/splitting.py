"""From one op call to its passes over memory.

Most ops are one pass. A training batch norm needs its statistics before it can normalise, so it
reads its input twice; its backward likewise; and the backward of a convolution is up to three
products or sums, each of which reads the output's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from bench.cost.flops import (
    NORM_FLOPS,
    causal_skipped_macs,
    contraction_macs,
    convolution_macs,
    elementwise_flops,
)
from bench.cost.op_calls import OpCall
from bench.cost.op_table import refuse_uncounted
from bench.cost.passes import Role


@dataclass(frozen=True)
class TensorPass:
    """One pass of a call, in tensors."""

    role: Role
    reads: Iterable[torch.Tensor]
    writes: Iterable[torch.Tensor]
    macs: int = 0
    elementwise_flops: int = 0
    causal_skipped_macs: int = 0


def split(call: OpCall, writes: list[torch.Tensor]) -> list[TensorPass]:
    """Return the passes of `call`, which writes `writes`.

    Raises `UserError` where its FLOP cannot be counted.
    """
    known = call.known
    if known.formula in _SPLITTERS:
        return _SPLITTERS[known.formula](call)
    role = known.role or (Role.POINTWISE if call.pointwise else Role.OPAQUE)
    if role is Role.OPAQUE:
        refuse_uncounted(call.op)
    macs = contraction_macs(call.op, call.arguments, writes) if role is Role.CONTRACTION else 0
    skipped = causal_skipped_macs(call.op, call.arguments)
    flops = elementwise_flops(call, role, writes)
    return [TensorPass(role, call.reads(), writes, macs, flops, skipped)]


def _convolution_backward(call: OpCall) -> list[TensorPass]:
    grad, inputs, weight = call.tensors("grad_output", "input", "weight")
    macs = convolution_macs(inputs, weight, grad, transposed=call.arguments["transposed"])
    return _gradients(call, grad, inputs, weight, macs)


def _linear_backward(call: OpCall) -> list[TensorPass]:
    """Of a linear layer on Apple's devices; elsewhere its gradients are products by themselves."""
    grad, inputs, weight = call.tensors("grad_output", "self", "weight")
    return _gradients(call, grad, inputs, weight, grad.numel() * int(inputs.shape[-1]))


def _gradients(
    call: OpCall, grad: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, macs: int
) -> list[TensorPass]:
    """Those of input, weight and bias that are asked for; `macs` are of each product."""
    to_input, to_weight, to_bias = call.arguments["output_mask"]
    outputs = iter(call.outputs)
    passes = []
    if to_input:
        passes.append(TensorPass(Role.CONTRACTION, [grad, weight], [next(outputs)], macs))
    if to_weight:
        passes.append(TensorPass(Role.CONTRACTION, [grad, inputs], [next(outputs)], macs))
    if to_bias:
        passes.append(TensorPass(Role.REDUCTION, [grad], [next(outputs)], 0, grad.numel()))
    return passes


def _channel_norm(call: OpCall) -> list[TensorPass]:
    """Batch norm and group norm: statistics over the whole input, then normalisation."""
    inputs = call.arguments["input"]
    affine = call.tensors("weight", "bias")
    running = call.tensors("running_mean", "running_var")
    normalised, *statistics = call.outputs
    apply_flops = NORM_FLOPS["apply"] * inputs.numel()
    if call.arguments.get("training") is False:
        reads = [inputs, *affine, *running]
        return [TensorPass(Role.POINTWISE, reads, call.outputs, 0, apply_flops)]
    flops = NORM_FLOPS["statistics"] * inputs.numel()
    return [
        TensorPass(Role.REDUCTION, [inputs, *running], [*statistics, *running], 0, flops),
        TensorPass(Role.POINTWISE, [inputs, *affine, *statistics], [normalised], 0, apply_flops),
    ]


def _channel_norm_backward(call: OpCall) -> list[TensorPass]:
    grad, inputs = call.tensors("grad_out", "grad_output")[0], call.arguments["input"]
    saved = call.tensors("save_mean", "save_invstd", "save_var", "mean", "rstd", "weight")
    to_input = call.arguments.get("output_mask", [True])[0]
    # Per channel, sum(grad) and sum(grad x normalised input) enter every element's gradient.
    channels = inputs.shape[1] if inputs.dim() > 1 else 1
    sums = inputs.new_empty(2, channels, dtype=torch.float32)
    to_affine = call.outputs[1:] if to_input else call.outputs
    flops = NORM_FLOPS["reduce_backward"] * inputs.numel()
    passes = [TensorPass(Role.REDUCTION, [grad, inputs, *saved], [sums, *to_affine], 0, flops)]
    if to_input:
        trains = call.arguments.get("train", True)
        reads = [grad, inputs, *saved, sums] if trains else [grad, *saved]
        flops = NORM_FLOPS["apply_backward"] * inputs.numel()
        passes.append(TensorPass(Role.POINTWISE, reads, [call.outputs[0]], 0, flops))
    return passes


def _row_norm_backward(call: OpCall) -> list[TensorPass]:
    """Layer norm: a row's gradient needs its own row; those of weight and bias need all rows."""
    reads = call.tensors("grad_out", "input", "mean", "rstd", "weight")
    size = call.arguments["input"].numel()
    to_input = call.arguments["output_mask"][0]
    to_affine = call.outputs[1:] if to_input else call.outputs
    passes = []
    if to_input:
        flops = NORM_FLOPS["row_backward"] * size
        passes.append(TensorPass(Role.POINTWISE, reads, [call.outputs[0]], 0, flops))
    if to_affine:
        flops = NORM_FLOPS["reduce_backward"] * size
        passes.append(TensorPass(Role.REDUCTION, reads, to_affine, 0, flops))
    return passes


_SPLITTERS: dict[str, Callable[[OpCall], list[TensorPass]]] = {
    "convolution_backward": _convolution_backward,
    "linear_backward": _linear_backward,
    "channel_norm": _channel_norm,
    "channel_norm_backward": _channel_norm_backward,
    "row_norm_backward": _row_norm_backward,
}
