"""The work of single ops that a profiler printed, from the arguments that they were given.

An op is run on fake tensors of the printed shapes, so its FLOP and bytes are those of
`bench.cost` in everything. What a trace lacks is a reason, not a guess.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bench.cost.op_table import OpCall, bind, first_line, op_names, quiet_torch
from bench.cost.step_tracer import StepTracer
from bench.cost.traffic import UNFUSABLE, eager_bytes, schedule
from bench.errors import UserError
from bench.records.complexity import CalledOp, OpWork

_NO_SHAPES = "no shapes in the trace: record it with record_shapes=True"
_NO_VALUES = "no values of arguments in the trace (Concrete Inputs): record it with torch 2"
_NO_LIST = "the profiler does not print what lists of tensors hold"
_UNKNOWN_OP = "no op of this torch has this name and these arguments"
_MOVES_NOTHING = "a view, an allocation, or a question about a tensor"
_OTHER_OPS = "made of other ops, which have rows of their own where they take time"

aten = torch.ops.aten

#: As the profiler prints the types of elements.
_DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "c10::Half": torch.float16,
    "c10::BFloat16": torch.bfloat16,
    "long int": torch.int64,
    "long": torch.int64,
    "int": torch.int32,
    "short int": torch.int16,
    "short": torch.int16,
    "signed char": torch.int8,
    "unsigned char": torch.uint8,
    "bool": torch.bool,
    "c10::Float8_e4m3fn": torch.float8_e4m3fn,
    "c10::Float8_e5m2": torch.float8_e5m2,
    "c10::complex<float>": torch.complex64,
}
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_FLOATS = (torch.float16, torch.float32, torch.float64)
#: `c10::ScalarType`, by which the values of arguments called dtype are printed.
_SCALAR_TYPES = {**dict(enumerate((*_INTEGERS, *_FLOATS))), 11: torch.bool, 15: torch.bfloat16}
#: Say where and how, not how much.
_PLACES = frozenset({"layout", "device", "pin_memory", "memory_format", "generator"})

#: Backends' batch norms as torch's own: its name, and which of their arguments it is given.
_NORMS = {
    name + suffix: ("native_batch_norm" + suffix, order)
    for name in ("cudnn_batch_norm", "miopen_batch_norm")
    for suffix, order in (("", (*range(8),)), ("_backward", (1, 0, 2, 3, 4, 5, 6)))
}
#: Attention below torch's own op, in shapes (batch, length, heads, width): where the query stands,
#: and whether the mask is causal (or of which kind, 0 for none).
_ATTENTION = {
    "_flash_attention_forward": (0, 8),
    "_efficient_attention_forward": (0, 9),
    "flash_attn._flash_attn_forward": (0, 5),
    "_flash_attention_backward": (1, 11),
    "_efficient_attention_backward": (1, 14),
    "flash_attn._flash_attn_backward": (1, 11),
}
#: Convolutions and their gradients; the last argument of gradients is the output mask.
_CONVOLUTIONS = op_names(
    """
    convolution _convolution convolution_overrideable convolution_backward
    convolution_backward_overrideable _slow_conv2d_forward _conv_depthwise2d conv_depthwise3d
    cudnn_convolution cudnn_convolution_relu cudnn_convolution_transpose mkldnn_convolution
    miopen_convolution miopen_depthwise_convolution miopen_convolution_transpose
    """
)
#: Those that torch had until 1.10, with their arguments in order (its native_functions.yaml).
_PAST_CONVOLUTIONS = {
    f"{name}_convolution_backward": "input grad_output weight padding stride dilation groups"
    for name in ("cudnn", "miopen", "miopen_depthwise", "mkldnn")
} | {
    "cudnn_convolution_transpose_backward": "input grad_output weight padding output_padding stride"
    " dilation groups",
}


class _Arguments:
    def __init__(self, op: CalledOp, fake: FakeTensorMode) -> None:
        if op.dims is None or op.types is None:
            raise UserError(_NO_SHAPES)
        self.name, self.dims, self.types = op.name, op.dims, op.types
        self._strides, self._values = op.strides, op.concrete
        self.has_values = op.concrete is not None
        self._fake = fake

    def is_tensor(self, index: int) -> bool:
        return index < len(self.types) and self.types[index] in _DTYPES

    def tensor(self, index: int | None) -> torch.Tensor | None:
        """A fake tensor of the shape, type and layout printed there, None if there is none."""
        if index is None or not self.is_tensor(index):
            return None
        return self.made(self.dims[index], index, self._strides and self._strides[index])

    def made(
        self, shape: Sequence[int], like: int, strides: Sequence[int] | None = None
    ) -> torch.Tensor:
        """A fake tensor of the type of the argument `like`."""
        dtype = _DTYPES[self.types[like]]
        with self._fake:
            if strides is not None and len(strides) == len(shape):
                return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype)
            return torch.empty(tuple(shape), dtype=dtype)

    def value(self, index: int) -> Any:
        """A number or a list, None where it was None; raises where the trace has no values."""
        if self._values is None or index >= len(self._values):
            raise UserError(_NO_VALUES)
        printed = self._values[index]
        try:
            return ast.literal_eval(printed) if isinstance(printed, str) and printed else None
        except (ValueError, SyntaxError):
            return None


def work_of(ops: Iterable[CalledOp]) -> dict[CalledOp, OpWork | str]:
    """Return the work of each op, or the reason why it is not known.

    `fused_bytes` are the least that the op can move: what cannot be fused reads and writes its
    tensors once; a pointwise op may be taken in by its neighbours, so it moves only what it must
    read again after a reduction of its own. Two arguments count as two tensors, even if they are
    one.
    """
    fake = FakeTensorMode(allow_fallback_kernels=False)
    with quiet_torch(), catch_warnings():
        simplefilter("ignore")  # torch's own, such as of outputs that a printed op resized
        return {op: _work_of(op, fake) for op in dict.fromkeys(ops)}


def _work_of(op: CalledOp, fake: FakeTensorMode) -> OpWork | str:
    tracer = StepTracer()
    tracer.phase = op.phase or "forward"
    try:
        given = _Arguments(op, fake)
        if op.name in _CONVOLUTIONS or op.name in _PAST_CONVOLUTIONS:
            with fake:
                tracer.record(_convolution_call(op, given), tracer.phase)
        elif op.name in _ATTENTION:
            tracer.record(_attention_call(given), tracer.phase)
        else:
            _run(given, tracer, fake)
    except UserError as error:  # what the trace does not say, or has no formula
        return str(error).partition(";")[0].removeprefix("the model runs ")
    except Exception as error:  # torch's own, of any kind: shapes that do not fit, no fake op
        return f"cannot be run on its shapes: {first_line(error)[:120]}"
    [call], sizes_bytes = tracer.calls, tracer.values.sizes_bytes
    placed = schedule(call.passes)
    first = placed[0][1]
    fused = 0
    for item, kernel in placed:
        if item.role in UNFUSABLE:
            fused += eager_bytes(item, sizes_bytes)
        elif kernel is not first:  # it waits for a reduction, so its input comes from memory again
            fused += sum(access.size_bytes for access in item.reads)
    work = call.work(sizes_bytes)
    return OpWork(label=call.label, fused_bytes=min(fused, work["eager_bytes"]), **work)


def _convolution_call(op: CalledOp, given: _Arguments) -> OpCall:
    """The call of torch's own convolution, or of its gradients.

    Without values it has the strides of 1, and the size of the result that other ops tell.
    """
    if op.name in _CONVOLUTIONS:
        arguments = getattr(aten, op.name).default._schema.arguments
        names = [argument.name.replace("self", "input") for argument in arguments]
    else:
        names = _PAST_CONVOLUTIONS[op.name].split()
    place = {name: index for index, name in enumerate(names) if index < len(given.dims)}
    inputs, weight = (given.tensor(place.get(name)) for name in ("input", "weight"))
    if inputs is None or weight is None:
        raise UserError(_NO_SHAPES)

    def value(name: str, default: Any) -> Any:
        return given.value(place[name]) if name in place and given.has_values else default

    def steps(name: str, default: int) -> list[int]:
        """One number per dimension; a list of one stands for all."""
        numbers = value(name, default) or default
        each = list(numbers) if isinstance(numbers, (list, tuple)) else [numbers]
        return each * (weight.dim() - 2) if len(each) == 1 else each

    transposed = bool(value("transposed", "transpose" in op.name))
    groups = value("groups", 1) if transposed else inputs.shape[1] // weight.shape[1]
    how = (
        *(steps("stride", 1), steps("padding", 0), steps("dilation", 1)),
        *(transposed, steps("output_padding", 0), groups),
    )
    if "grad_output" not in names:
        called, args = aten.convolution, (inputs, weight, given.tensor(place.get("bias")), *how)
        if op.result is None and not given.has_values:
            raise UserError(_NO_VALUES)
        known = None if op.result is None else given.made(op.result, place["input"])
        return bind(called.default, args, {}, called(*args) if known is None else known)
    grad = given.tensor(place.get("grad_output"))
    mask = op.output_mask
    if mask is None:
        mask = given.value(len(given.dims) - 1)
    if grad is None or not isinstance(mask, (list, tuple)) or len(mask) < 2:
        raise UserError(_NO_VALUES)
    asked = [bool(each) for each in (*mask, False)[:3]]
    backward_args = (grad, inputs, weight, [grad.shape[1]], *how, asked)
    called = aten.convolution_backward
    return bind(called.default, backward_args, {}, called(*backward_args))


def _attention_call(given: _Arguments) -> OpCall:
    """The call under the name of torch's own op, whose shapes are (batch, heads, length, width)."""
    first, causal = _ATTENTION[given.name]
    tensors = [given.tensor(index) for index in range(first, first + 3)]
    shaped = [tensor.transpose(1, 2) for tensor in tensors if tensor is not None]
    if len(shaped) < 3 or any(tensor.dim() != 4 for tensor in shaped):
        raise UserError("packed sequences: their lengths are not in the trace")
    arguments: dict[str, Any] = dict(zip(("query", "key", "value"), shaped, strict=True))
    arguments["is_causal"] = given.has_values and causal < len(given.dims) and given.value(causal)
    name = "_scaled_dot_product_flash_attention"
    outputs = [given.made(shaped[0].shape, first)]
    if first:
        name += "_backward"
        arguments["grad_out"] = given.tensor(0)
        outputs += [given.made(tensor.shape, first) for tensor in shaped[1:]]
    return OpCall(name, name, False, arguments, frozenset(), tuple(outputs))


def _run(given: _Arguments, tracer: StepTracer, fake: FakeTensorMode) -> None:
    """Raises `UserError` unless the op is dispatched as it is."""
    name, order = _NORMS.get(given.name, (given.name, tuple(range(len(given.dims)))))
    if "." in name:
        raise UserError("an op of a library, whose work is not known")
    packet = getattr(aten, name, None)
    overloads = [getattr(packet, each) for each in packet.overloads()] if packet else []
    # First what takes as many arguments, then what takes more: those came in later versions. A
    # backend's batch norm is given fewer, the rest is what torch's own takes beside them.
    counted = sorted((len(each._schema.arguments), i) for i, each in enumerate(overloads))
    why = _UNKNOWN_OP
    for overload in (overloads[i] for count, i in counted if count >= len(order)):
        schema = overload._schema.arguments
        places = [*order, *[None] * (len(schema) - len(order))]
        printed = [*zip(schema, places, strict=True)]
        if not all(_fits(each, given, at) for each, at in printed):
            continue
        try:
            values = [_value(each, given, at) for each, at in printed]
        except UserError as error:
            why = str(error)
            continue
        pairs = [*zip(schema, values, strict=True)]
        with fake, tracer:
            overload(
                *(value for each, value in pairs if not each.kwarg_only),
                **{each.name: value for each, value in pairs if each.kwarg_only},
            )
        if not tracer.calls:
            raise UserError(_MOVES_NOTHING)
        if [call.op for call in tracer.calls] != [name]:
            raise UserError(_OTHER_OPS)
        return
    raise UserError(why)


def _fits(argument: Any, given: _Arguments, index: int | None) -> bool:
    """Whether what was printed there may be this argument of an overload."""
    if index is None or index >= len(given.dims):
        return True
    kind, is_list = str(argument.type), given.types[index] == "TensorList"
    if not (given.is_tensor(index) or is_list):
        return kind != "Tensor"
    return "Tensor" in kind and is_list is ("List[" in kind)


def _value(argument: Any, given: _Arguments, index: int | None) -> Any:
    kind = str(argument.type)
    if index is None or index >= len(given.dims):
        return _value_not_printed(argument, kind, given)
    if "Tensor" not in kind:
        return _number(argument, kind, given, index)
    if given.types[index] == "TensorList":
        raise UserError(_NO_LIST)
    return given.tensor(index)


def _number(argument: Any, kind: str, given: _Arguments, index: int) -> Any:
    if argument.name in _PLACES:
        return None
    if not given.has_values:
        return _value_not_printed(argument, kind, given)
    value = given.value(index)
    if value is None:
        return argument.default_value if argument.has_default_value() else None
    if "dtype" in argument.name:
        return _SCALAR_TYPES.get(value)
    if "List[" in kind:
        return list(value) if isinstance(value, (list, tuple)) else [value]
    return value


def _value_not_printed(argument: Any, kind: str, given: _Arguments) -> Any:
    """A value that makes no difference to the work; raises `UserError` where it would.

    Numbers that are multiplied, added or compared make none.
    """
    if argument.has_default_value():
        return argument.default_value
    if kind in ("number", "float"):
        return 1.0
    if kind.startswith("Optional"):
        return None
    if given.name in _NORMS and given.name.endswith("_backward"):
        # Backends' own are of training alone (derivatives.yaml), and compute all gradients.
        return {"train": True, "output_mask": [True, True, True]}[argument.name]
    if "softmax" in given.name and argument.name in ("dim", "half_to_float"):
        return -1 if argument.name == "dim" else False
    raise UserError(_NO_VALUES)
