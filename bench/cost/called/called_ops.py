"""From printed ops to their work.

An op is run on fake tensors of the printed shapes, so its FLOP and bytes are those of
`bench.cost` in everything. What a trace lacks is a reason, not a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bench.cost.called.arguments import NO_SHAPES, NO_VALUES, Arguments, UnknownError
from bench.cost.called.convolutions import convolution_call, is_convolution
from bench.cost.estimate import eager_bytes
from bench.cost.fake_step import quiet_torch
from bench.cost.op_calls import ROWWISE, OpCall
from bench.cost.tracing.step_tracer import StepTracer
from bench.cost.traffic.fusion import BIG, schedule
from bench.errors import UserError
from bench.records.complexity import CalledOp, OpWork

_NO_LIST = "the profiler does not print what lists of tensors hold"
_UNKNOWN_OP = "no op of this torch has this name and these arguments"
_MOVES_NOTHING = "a view, an allocation, or a question about a tensor"
_OTHER_OPS = "made of other ops, which have rows of their own where they take time"

#: `c10::ScalarType`, by which the values of arguments called dtype are printed.
_SCALAR_TYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
}
#: Say where and how, not how much.
_PLACES = frozenset({"layout", "device", "pin_memory", "memory_format", "generator"})
#: Of a softmax: which of its dimensions makes no difference to its work.
_ANY_DIM = -1

#: Backends' batch norms as torch's own: its name, and which of their arguments it is given.
_NORMS = {
    **dict.fromkeys(
        ("cudnn_batch_norm", "miopen_batch_norm"), ("native_batch_norm", (0, 1, 2, 3, 4, 5, 6, 7))
    ),
    **dict.fromkeys(
        ("cudnn_batch_norm_backward", "miopen_batch_norm_backward"),
        ("native_batch_norm_backward", (1, 0, 2, 3, 4, 5, 6)),
    ),
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


def work_of(ops: Iterable[CalledOp]) -> dict[CalledOp, OpWork | str]:
    """Return the work of each op, or the reason why it is not known.

    `fused_bytes` are the least that the op can move: convolutions, products, attention and what
    cannot be fused read and write their own tensors once; a pointwise op may be taken in by its
    neighbours, so it moves nothing, but for what it must read again after a reduction of its own.
    Two arguments count as two tensors, even if they are one.
    """
    fake = FakeTensorMode(allow_fallback_kernels=False)
    with quiet_torch(), catch_warnings():
        simplefilter("ignore")  # torch's own, such as of outputs that a printed op resized
        return {op: _work_of(op, fake) for op in dict.fromkeys(ops)}


def _work_of(op: CalledOp, fake: FakeTensorMode) -> OpWork | str:
    if op.dims is None or op.types is None:
        return NO_SHAPES
    tracer = StepTracer()
    tracer.phase = op.phase or "forward"
    given = Arguments(op, fake)
    try:
        if is_convolution(op.name):
            tracer.record(convolution_call(op, given), tracer.phase)
        elif op.name in _ATTENTION:
            tracer.record(_attention_call(op, given), tracer.phase)
        else:
            _run(op, given, tracer, fake)
    except UnknownError as error:
        return str(error)
    except UserError as error:
        return str(error).partition(";")[0].removeprefix("the model runs ")
    except Exception as error:  # torch's own, of any kind: shapes that do not fit, no fake op
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        return f"cannot be run on its shapes: {reason[:120]}"
    return _sum(tracer)


def _sum(tracer: StepTracer) -> OpWork:
    sizes_bytes = tracer.values.sizes_bytes
    placed = schedule(tracer.passes)
    first = placed[0][1]
    fused = 0
    for item, kernel in placed:
        if item.role in BIG:
            fused += eager_bytes(item, sizes_bytes)
        elif kernel is not first:  # it waits for a reduction, so its input comes from memory again
            fused += sum(access.size_bytes for access in item.reads)
    eager = sum(eager_bytes(item, sizes_bytes) for item in tracer.passes)
    return OpWork(
        label=tracer.calls[0].label,
        flops=sum(2 * item.macs for item in tracer.passes),
        elementwise_flops=sum(item.elementwise_flops for item in tracer.passes),
        eager_bytes=eager,
        fused_bytes=min(fused, eager),
        causal_skipped_flops=sum(2 * item.causal_skipped_macs for item in tracer.passes),
    )


def _attention_call(op: CalledOp, given: Arguments) -> OpCall:
    """The call under the name of torch's own op, whose shapes are (batch, heads, length, width)."""
    first, causal = _ATTENTION[op.name]
    tensors = [given.tensor(index) for index in range(first, first + 3)]
    shaped = [tensor.transpose(1, 2) for tensor in tensors if tensor is not None]
    if len(shaped) < 3 or any(tensor.dim() != 4 for tensor in shaped):
        raise UnknownError("packed sequences: their lengths are not in the trace")
    arguments: dict[str, Any] = dict(zip(("query", "key", "value"), shaped, strict=True))
    arguments["is_causal"] = given.has_values and causal < len(given) and given.value(causal)
    name = "_scaled_dot_product_flash_attention"
    outputs = [given.made(shaped[0].shape, given.type_name(first))]
    if first:
        name += "_backward"
        arguments["grad_out"] = given.tensor(0)
        outputs += [given.made(tensor.shape, given.type_name(first)) for tensor in shaped[1:]]
    return OpCall(name, name, False, arguments, frozenset(), tuple(outputs))


def _run(op: CalledOp, given: Arguments, tracer: StepTracer, fake: FakeTensorMode) -> None:
    """Raises `UnknownError` unless the op is dispatched as it is."""
    name, order = _NORMS.get(op.name, (op.name, tuple(range(len(given)))))
    if "." in name:
        raise UnknownError("an op of a library, whose work is not known")
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        raise UnknownError(_UNKNOWN_OP)
    why = _UNKNOWN_OP
    for overload in _overloads(packet, len(order)):
        try:
            arguments = _bound(overload, given, order)
        except UnknownError as error:
            why = str(error)
            continue
        if arguments is None:
            continue
        schema = overload._schema.arguments
        positional = [value for each, value in zip(schema, arguments, strict=True)
                      if not each.kwarg_only]  # fmt: skip
        by_name = {each.name: value for each, value in zip(schema, arguments, strict=True)
                   if each.kwarg_only}  # fmt: skip
        with fake, tracer:
            overload(*positional, **by_name)
        if not tracer.calls:
            raise UnknownError(_MOVES_NOTHING)
        if [call.op for call in tracer.calls] != [name]:
            raise UnknownError(_OTHER_OPS)
        return
    raise UnknownError(why)


def _overloads(packet: Any, count: int) -> Iterator[Any]:
    """Those that take `count` arguments, then those with more, which have come in later versions.

    A backend's batch norm is given fewer: the rest is what torch's own takes beside them.
    """
    overloads = [getattr(packet, name) for name in packet.overloads()]
    longer = (each for each in overloads if len(each._schema.arguments) >= count)
    yield from sorted(longer, key=lambda each: len(each._schema.arguments))


def _bound(overload: Any, given: Arguments, order: tuple[int, ...]) -> list[Any] | None:
    """One value per argument of `overload`; None where what was printed is not for it."""
    values = []
    for position, argument in enumerate(overload._schema.arguments):
        kind, index = str(argument.type), order[position] if position < len(order) else None
        if index is None or index >= len(given):
            values.append(_without(argument, kind, given))
        elif given.is_tensor(index):
            if "Tensor" not in kind or "List" in kind:
                return None
            values.append(given.tensor(index))
        elif given.type_name(index) == "TensorList":
            if "List[" not in kind or "Tensor" not in kind:
                return None
            raise UnknownError(_NO_LIST)
        elif kind == "Tensor":
            return None
        elif "Tensor" in kind:
            values.append(None)
        else:
            values.append(_value(argument, kind, given, index))
    return values


def _value(argument: Any, kind: str, given: Arguments, index: int) -> Any:
    if argument.name in _PLACES:
        return None
    if not given.has_values:
        return _without(argument, kind, given)
    value = given.value(index)
    if value is None:
        return argument.default_value if argument.has_default_value() else None
    if "dtype" in argument.name:
        return _SCALAR_TYPES.get(value)
    if "List" in kind:
        return list(value) if isinstance(value, (list, tuple)) else [value]
    return value


def _without(argument: Any, kind: str, given: Arguments) -> Any:
    """A value for an argument that was not printed; raises `UnknownError` where work depends on it.

    It does not on numbers that are multiplied, added or compared.
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
    if given.name in ROWWISE and argument.name in ("dim", "half_to_float"):
        return _ANY_DIM if argument.name == "dim" else False
    raise UnknownError(NO_VALUES)
