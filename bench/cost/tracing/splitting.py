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
    is_contraction,
    refuse_uncounted,
)
from bench.cost.op_calls import (
    FILLS,
    MOVES,
    REDUCTIONS,
    ROWWISE,
    UNTAGGED_POINTWISE,
    OpCall,
    tensors_in,
)
from bench.cost.passes import Role

_POINTWISE = FILLS | MOVES | ROWWISE | UNTAGGED_POINTWISE


@dataclass(frozen=True)
class Work:
    """One pass of a call, in tensors."""

    role: Role
    reads: Iterable[torch.Tensor]
    writes: Iterable[torch.Tensor]
    macs: int = 0
    elementwise_flops: int = 0
    causal_skipped_macs: int = 0


def split(call: OpCall, writes: list[torch.Tensor]) -> list[Work]:
    """Return the passes of `call`, which writes `writes`."""
    if call.op in _SPLITTERS:
        return _SPLITTERS[call.op](call)
    role = _role(call)
    macs = contraction_macs(call.op, call.arguments, writes) if role is Role.CONTRACTION else 0
    skipped = causal_skipped_macs(call.op, call.arguments)
    return [Work(role, call.reads(), writes, macs, elementwise_flops(call, role, writes), skipped)]


def _role(call: OpCall) -> Role:
    if is_contraction(call.op):
        return Role.CONTRACTION
    if call.op in REDUCTIONS:
        return Role.REDUCTION
    if call.pointwise or call.op in _POINTWISE:
        return Role.POINTWISE
    refuse_uncounted(call.op)
    return Role.OPAQUE


def _some(call: OpCall, *names: str) -> list[torch.Tensor]:
    return [tensor for name in names for tensor in tensors_in(call.arguments.get(name))]


def _convolution_backward(call: OpCall) -> list[Work]:
    grad, inputs, weight = (call.arguments[n] for n in ("grad_output", "input", "weight"))
    macs = convolution_macs(inputs, weight, grad, transposed=call.arguments["transposed"])
    return _gradients(call, grad, inputs, weight, macs)


def _linear_backward(call: OpCall) -> list[Work]:
    """Of a linear layer on Apple's devices; elsewhere its gradients are products by themselves."""
    grad, inputs, weight = (call.arguments[n] for n in ("grad_output", "self", "weight"))
    return _gradients(call, grad, inputs, weight, grad.numel() * int(inputs.shape[-1]))


def _gradients(
    call: OpCall, grad: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, macs: int
) -> list[Work]:
    """Those of input, weight and bias that are asked for; `macs` are of each product."""
    to_input, to_weight, to_bias = call.arguments["output_mask"]
    outputs = iter(call.outputs)
    works = []
    if to_input:
        works.append(Work(Role.CONTRACTION, [grad, weight], [next(outputs)], macs))
    if to_weight:
        works.append(Work(Role.CONTRACTION, [grad, inputs], [next(outputs)], macs))
    if to_bias:
        works.append(Work(Role.REDUCTION, [grad], [next(outputs)], 0, grad.numel()))
    return works


def _channel_norm(call: OpCall) -> list[Work]:
    """Batch norm and group norm: statistics over the whole input, then normalisation."""
    inputs = call.arguments["input"]
    affine = _some(call, "weight", "bias")
    running = _some(call, "running_mean", "running_var")
    normalised, *statistics = call.outputs
    apply_flops = NORM_FLOPS["apply"] * inputs.numel()
    if call.arguments.get("training") is False:
        reads = [inputs, *affine, *running]
        return [Work(Role.POINTWISE, reads, call.outputs, 0, apply_flops)]
    statistics_flops = NORM_FLOPS["statistics"] * inputs.numel()
    return [
        Work(Role.REDUCTION, [inputs, *running], [*statistics, *running], 0, statistics_flops),
        Work(Role.POINTWISE, [inputs, *affine, *statistics], [normalised], 0, apply_flops),
    ]


def _channel_norm_backward(call: OpCall) -> list[Work]:
    grad, inputs = _some(call, "grad_out", "grad_output")[0], call.arguments["input"]
    saved = _some(call, "save_mean", "save_invstd", "save_var", "mean", "rstd", "weight")
    to_input = call.arguments.get("output_mask", [True])[0]
    # Per channel, sum(grad) and sum(grad x normalised input) enter every element's gradient.
    channels = inputs.shape[1] if inputs.dim() > 1 else 1
    sums = inputs.new_empty(2, channels, dtype=torch.float32)
    to_affine = call.outputs[1:] if to_input else call.outputs
    reduce_flops = NORM_FLOPS["reduce_backward"] * inputs.numel()
    apply_flops = NORM_FLOPS["apply_backward"] * inputs.numel()
    works = [Work(Role.REDUCTION, [grad, inputs, *saved], [sums, *to_affine], 0, reduce_flops)]
    if to_input:
        trains = call.arguments.get("train", True)
        reads = [grad, inputs, *saved, sums] if trains else [grad, *saved]
        works.append(Work(Role.POINTWISE, reads, [call.outputs[0]], 0, apply_flops))
    return works


def _row_norm_backward(call: OpCall) -> list[Work]:
    """Layer norm: a row's gradient needs its own row; those of weight and bias need all rows."""
    reads = _some(call, "grad_out", "input", "mean", "rstd", "weight")
    size = call.arguments["input"].numel()
    to_input = call.arguments["output_mask"][0]
    to_affine = call.outputs[1:] if to_input else call.outputs
    works = []
    if to_input:
        flops = NORM_FLOPS["row_backward"] * size
        works.append(Work(Role.POINTWISE, reads, [call.outputs[0]], 0, flops))
    if to_affine:
        flops = NORM_FLOPS["reduce_backward"] * size
        works.append(Work(Role.REDUCTION, reads, to_affine, 0, flops))
    return works


_SPLITTERS: dict[str, Callable[[OpCall], list[Work]]] = {
    "convolution_backward": _convolution_backward,
    "linear_backward": _linear_backward,
    "native_batch_norm": _channel_norm,
    "_native_batch_norm_legit": _channel_norm,
    "_batch_norm_with_update": _channel_norm,
    "cudnn_batch_norm": _channel_norm,
    "miopen_batch_norm": _channel_norm,
    "native_group_norm": _channel_norm,
    "native_batch_norm_backward": _channel_norm_backward,
    "batch_norm_backward": _channel_norm_backward,
    "cudnn_batch_norm_backward": _channel_norm_backward,
    "miopen_batch_norm_backward": _channel_norm_backward,
    "native_group_norm_backward": _channel_norm_backward,
    "native_layer_norm_backward": _row_norm_backward,
    "_fused_rms_norm_backward": _row_norm_backward,
}
