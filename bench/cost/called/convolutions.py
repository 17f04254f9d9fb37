"""Convolutions under the names that versions and backends of torch give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.cost.called.arguments import NO_SHAPES, NO_VALUES, Arguments, UnknownError
from bench.cost.op_calls import OpCall
from bench.records.complexity import CalledOp

_OWN_ORDER = "input weight bias stride padding dilation transposed output_padding groups"
_BACKENDS_ORDER = "input weight bias padding stride dilation groups"
_KERNEL_ORDER = "input weight kernel_size bias stride padding dilation"
#: Names of convolutions since torch 1.5, and their arguments in order (native_functions.yaml).
_FORWARD = {
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _OWN_ORDER),
    "cudnn_convolution": "input weight padding stride dilation groups",
    "cudnn_convolution_transpose": "input weight padding output_padding stride dilation groups",
    "cudnn_convolution_relu": "input weight bias stride padding dilation groups",
    "miopen_convolution_transpose": "input weight bias padding output_padding stride dilation",
    "slow_conv_transpose2d": "input weight kernel_size bias stride padding output_padding dilation",
    **dict.fromkeys(
        (
            "miopen_convolution",
            "miopen_depthwise_convolution",
            "mkldnn_convolution",
            "_mps_convolution",
        ),
        _BACKENDS_ORDER,
    ),
    **dict.fromkeys(
        (
            "thnn_conv2d",
            "thnn_conv2d_forward",
            "_slow_conv2d_forward",
            "slow_conv3d_forward",
            "slow_conv_dilated2d",
            "_conv_depthwise2d",
            "conv_depthwise3d",
            "thnn_conv_depthwise2d",
        ),
        _KERNEL_ORDER,
    ),
}
#: Their gradients; the last argument of each is the output mask.
_BACKWARD = {
    "convolution_backward": "grad_output input weight bias_sizes stride padding dilation transposed"
    " output_padding groups",
    "convolution_backward_overrideable": "grad_output input weight stride padding dilation"
    " transposed output_padding groups",
    "_slow_conv2d_backward": "grad_output input weight kernel_size stride padding",
    "thnn_conv2d_backward": "grad_output input weight kernel_size stride padding",
    **dict.fromkeys(
        (
            "cudnn_convolution_backward",
            "miopen_convolution_backward",
            "miopen_depthwise_convolution_backward",
            "mkldnn_convolution_backward",
        ),
        "input grad_output weight padding stride dilation groups",
    ),
    "cudnn_convolution_transpose_backward": "input grad_output weight padding output_padding stride"
    " dilation groups",
}


def is_convolution(name: str) -> bool:
    """Return whether an op of this name is a convolution or its gradients."""
    return name in _FORWARD or name in _BACKWARD


def convolution_call(op: CalledOp, given: Arguments) -> OpCall:
    """Return the call of a convolution, or of its gradients, under torch's own name.

    Raises `UnknownError` where neither values nor other ops tell the size of the result.
    """
    backward = op.name in _BACKWARD
    names = (_BACKWARD if backward else _FORWARD)[op.name].split()
    place = {name: index for index, name in enumerate(names) if index < len(given)}
    inputs, weight = (given.tensor(place[name]) for name in ("input", "weight"))
    if inputs is None or weight is None:
        raise UnknownError(NO_SHAPES)
    transposed = "transpose" in op.name
    if "transposed" in place and given.has_values:
        transposed = bool(given.value(place["transposed"]))
    steps: dict[str, Sequence[int]] = {
        name: _each(given.value(place[name]), weight.dim() - 2)
        for name in ("stride", "padding", "dilation", "output_padding")
        if name in place and given.has_values
    }
    arguments: dict[str, Any] = {
        "input": inputs,
        "weight": weight,
        "transposed": transposed,
        "groups": 1 if transposed else inputs.shape[1] // weight.shape[1],
        "stride": steps.get("stride", ()),
        "dilation": steps.get("dilation", ()),
    }
    if transposed and "groups" in place and given.has_values:
        arguments["groups"] = given.value(place["groups"])
    if backward:
        return _convolution_backward(op, given, arguments, place)
    shape = op.result or _result(inputs.shape, weight.shape, steps, transposed, arguments["groups"])
    arguments["bias"] = given.tensor(place["bias"]) if "bias" in place else None
    outputs = (given.made(shape, given.type_name(place["input"])),)
    return OpCall("convolution", "convolution", False, arguments, frozenset(), outputs)


def _convolution_backward(
    op: CalledOp, given: Arguments, arguments: dict[str, Any], place: Mapping[str, int]
) -> OpCall:
    grad = given.tensor(place["grad_output"])
    mask = op.output_mask if op.output_mask is not None else given.value(len(given) - 1)
    if grad is None or not isinstance(mask, (list, tuple)) or len(mask) < 2:
        raise UnknownError(NO_VALUES)
    to_bias = len(mask) > 2 and mask[2]
    made = [arguments["input"], arguments["weight"]]
    kinds = [given.type_name(place[name]) for name in ("input", "weight")]
    outputs = [
        given.made(tensor.shape, kind)
        for tensor, kind, asked in zip(made, kinds, mask, strict=False)
        if asked
    ]
    if to_bias:
        outputs.append(given.made((grad.shape[1],), kinds[1]))
    arguments |= {"grad_output": grad, "output_mask": [bool(mask[0]), bool(mask[1]), bool(to_bias)]}
    name = "convolution_backward"
    return OpCall(name, name, False, arguments, frozenset(), tuple(outputs))


def _each(value: Any, count: int) -> tuple[int, ...]:
    """One number per dimension; a list of one stands for all."""
    numbers = tuple(value) if isinstance(value, (list, tuple)) else (value or 0,)
    return numbers * count if len(numbers) == 1 else numbers


def _result(
    inputs: Sequence[int],
    weight: Sequence[int],
    steps: Mapping[str, Sequence[int]],
    transposed: bool,
    groups: int,
) -> tuple[int, ...]:
    """The shape of a convolution's result, as the documents of torch.nn.Conv2d have it."""
    if "stride" not in steps:
        raise UnknownError(NO_VALUES)
    lengths = []
    for axis, (length, kernel) in enumerate(zip(inputs[2:], weight[2:], strict=True)):
        stride, padding = steps["stride"][axis], steps["padding"][axis]
        span = steps.get("dilation", (1,) * len(inputs))[axis] * (kernel - 1)
        if transposed:
            extra = steps.get("output_padding", (0,) * len(inputs))[axis]
            lengths.append((length - 1) * stride - 2 * padding + span + extra + 1)
        else:
            lengths.append((length + 2 * padding - span - 1) // stride + 1)
    return (inputs[0], weight[1] * groups if transposed else weight[0], *lengths)
