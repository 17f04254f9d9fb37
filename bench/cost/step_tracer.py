"""Records a training step as torch dispatches it: its calls in order, each with its passes.

Most ops are one pass over memory. A training batch norm needs its statistics before it can
normalise, so it reads its input twice; its backward likewise; and the backward of a convolution is
up to three products or sums, each of which reads the output's gradient.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import BackwardCFunction
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

from bench.cost.flops import NORM_FLOPS, contraction_macs, convolution_macs, elementwise_flops
from bench.cost.masks import SEEN, Hidden, KnownValues
from bench.cost.op_table import OpCall, OpMode, bind, refuse_uncounted
from bench.cost.traffic import Access, Pass, Role, eager_bytes
from bench.errors import UserError, one_line
from bench.records import Phase

ASK_VALUE = torch.ops.aten._local_scalar_dense.default
_BATCH_NORM = torch.ops.aten.native_batch_norm.default
#: Where torch's checkpoints compute again: `use_reentrant=True`, and False.
_CHECKPOINTS = {("torch.utils.checkpoint", name) for name in ("backward", "unpack_hook")}
_ENGINE = {("torch.autograd", name) for name in ("backward", "grad")}


@dataclass(frozen=True)
class RecordedCall:
    """One call that moves something, and its passes; the other facts as in `CallWork`."""

    op: str
    phase: Phase
    shapes: tuple[tuple[int, ...], ...]
    label: str
    module: str | None
    passes: tuple[Pass, ...]

    def work(self, sizes_bytes: Sequence[int]) -> dict[str, int]:
        """Return the counts of `OpWork`, by name, but for the fused bytes."""
        return {
            "flops": 2 * sum(item.macs for item in self.passes),
            "elementwise_flops": sum(item.elementwise_flops for item in self.passes),
            "eager_bytes": sum(eager_bytes(item, sizes_bytes) for item in self.passes),
            "causal_skipped_flops": 2 * sum(item.causal_skipped_macs for item in self.passes),
            "fp32_flops": 2 * sum(item.fp32_macs for item in self.passes),
        }


@dataclass(frozen=True)
class RecordedCalls:
    """The calls of a step in order.

    `sizes_bytes` are the sizes of all values, `lasting` the values that outlive the step.
    """

    calls: tuple[RecordedCall, ...]
    sizes_bytes: tuple[int, ...]
    lasting: frozenset[int]

    @property
    def passes(self) -> list[Pass]:
        """The passes of all calls."""
        return [item for call in self.calls for item in call.passes]


class Values:
    """Numbers the contents of storages: each write to a storage makes a new value.

    Storages are held by weak references: these keep an address from becoming another storage's,
    and free its memory all the same. Contents of `torch.empty` were written by no op: reading them
    moves nothing. `peak_bytes` is the most that the storages held at once.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._held_bytes = 0
        self._ends: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.sizes_bytes: list[int] = []
        self._current: dict[int, int | None] = {}
        self._seen: dict[int, StorageWeakRef] = {}
        self._made: set[int] = set()

    def key(self, tensor: torch.Tensor) -> int:
        """Return the identity of the storage of `tensor`, which views share."""
        storage = tensor.untyped_storage()
        address: int = storage._cdata
        if address not in self._current:
            self._seen[address] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            self._current[address] = self._number(storage)
            self._hold(storage, storage.nbytes())
        return address

    def _hold(self, storage: torch.UntypedStorage, size_bytes: int) -> None:
        def end(_: object) -> None:
            self._held_bytes -= size_bytes

        self._ends[storage._cdata] = weakref.ref(storage, end)
        self._held_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self._held_bytes)

    def declare_empty(self, tensor: torch.Tensor) -> None:
        """Note that `tensor` is new, and that nothing was written to it yet."""
        key = self.key(tensor)
        self._made.add(key)
        self._current[key] = None

    def read(self, tensor: torch.Tensor) -> Access | None:
        """Return the access of a pass that reads `tensor`; None if nothing was written there."""
        value = self._current[self.key(tensor)]
        return None if value is None else self._access(value, tensor)

    def write(self, tensor: torch.Tensor) -> Access:
        """Return the access of a pass that writes `tensor`, which is a new value from now on."""
        key = self.key(tensor)
        value = self._current[key] = self._number(tensor.untyped_storage())
        return self._access(value, tensor)

    def living(self, *, made: bool) -> dict[int, int]:
        """Return what the storages in use hold, of those that an op has made, or of the others."""
        return {
            key: value
            for key, value in self._current.items()
            if value is not None and (key in self._made) is made
            if not self._seen[key].expired()  # type: ignore[no-untyped-call]
        }

    def _number(self, storage: torch.UntypedStorage) -> int:
        self.sizes_bytes.append(storage.nbytes())
        return len(self.sizes_bytes) - 1

    def _access(self, value: int, tensor: torch.Tensor) -> Access:
        view = (tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))
        size_bytes = min(_distinct_bytes(tensor), self.sizes_bytes[value])
        return Access(value, view, size_bytes, tensor.numel())


def _distinct_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the elements of `tensor`; an expanded dimension repeats the same ones."""
    size_bytes = tensor.element_size()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size_bytes *= length if stride != 0 else min(length, 1)
    return size_bytes


class StepTracer(OpMode):
    """While active, records what is dispatched in `phase`; None records nothing.

    `module_now` says to which module of a model a call belongs. `weights` are the storages that
    hold weights: what is computed from weights alone is one too.
    """

    def __init__(
        self,
        module_now: Callable[[], str | None] = lambda: None,
        known: KnownValues | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._module_now = module_now
        self.phase: Phase | None = None
        self.makes_batch = False
        self.calls: list[RecordedCall] = []
        self.values = Values()
        self.known = known or KnownValues()
        self.weights: set[int] = set()

    def recorded(self, lasting: frozenset[int]) -> RecordedCalls:
        """Return what was recorded so far; `lasting` are the values that outlive it."""
        return RecordedCalls(tuple(self.calls), tuple(self.values.sizes_bytes), lasting)

    def is_weight(self, tensor: torch.Tensor) -> bool:
        """Return whether `tensor` holds a weight or something computed from weights alone."""
        return self.values.key(tensor) in self.weights

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the op and record it."""
        if func is torch.ops.prim.device.default:
            return args[0].fake_device  # the most frequent call: answered without torch
        if func is ASK_VALUE and isinstance(args[0], FakeTensor):
            args[0].constant = self.known.exact.get(args[0], args[0].constant)
            # A count of steps has a value; a loss scaler asks for overflown gradients.
            if self.phase == "optimizer" and args[0].constant is None:
                return 0.0
        if isinstance(func, torch._ops.HigherOrderOperator):
            refuse_uncounted(f"torch.{func._name}")
        if kwargs.get("device") == torch.device("meta"):  # a prim's, which mixes it with others
            kwargs = kwargs | {"device": torch.device("cpu")}
        module = self._module_now()
        # Fake tensors have nothing to update in place, and torch has no fake fused optimizers.
        updates_only = func.namespace == "aten" and not func._schema.returns
        result: Any = None if updates_only else func(*args, **kwargs)
        if func is _BATCH_NORM:
            # Under autocast devices keep a batch's statistics in fp32, fake tensors in 16 bits.
            wide = (kept.to(torch.promote_types(kept.dtype, torch.float32)) for kept in result[1:])
            result = (result[0], *wide)
        if self.phase is not None:
            self.record(bind(func, args, kwargs, result), self.phase, module)
        elif self.makes_batch:  # with masks, perhaps
            self.known.follow(bind(func, args, kwargs, result))
        return result

    def record(self, call: OpCall, phase: Phase, module: str | None = None) -> None:
        """Record one call that was made, or that is known to be made, in `phase`."""
        if phase != "optimizer":
            self.known.follow(call)
        inputs = set(map(self.values.key, call.tensors()))
        fresh = [tensor for tensor in call.outputs if self.values.key(tensor) not in inputs]
        for tensor in fresh:
            self.values.declare_empty(tensor)
        writes = [*call.mutated(), *fresh]
        if call.known.allocates or not writes:
            return  # a view, or a query about a tensor
        passes = [self._pass(call.name, phase, item) for item in self.split(call, writes)]
        label = call.label(phase)
        if in_recomputation(recorded=torch.is_grad_enabled()):
            passes = [
                replace(item, macs=0, elementwise_flops=0, causal_skipped_macs=0, fp32_macs=0,
                        recomputed_macs=item.macs)
                for item in passes
            ]  # fmt: skip
            label = f"recomputed {label}"
        self.calls.append(RecordedCall(call.name, phase, call.shapes, label, module, tuple(passes)))

    def split(self, call: OpCall, writes: list[torch.Tensor]) -> list[TensorPass]:
        """Return the passes of `call`, which writes `writes`.

        Raises `UserError` where its FLOP cannot be counted.
        """
        facts = call.known
        if facts.formula in _SPLITTERS:
            return _SPLITTERS[facts.formula](call)
        role = facts.role or (Role.POINTWISE if call.pointwise else Role.OPAQUE)
        if role is Role.OPAQUE:
            refuse_uncounted(call.op)
        macs = contraction_macs(call.op, call.arguments, writes) if role is Role.CONTRACTION else 0
        flops = elementwise_flops(call, role, writes)
        hidden = self.known.hidden(call)
        # Fused kernels (flash, memory-efficient, cuDNN's) pass over what a causal mask hides, in
        # blocks: this is the most that they leave out. None is known to do so by another mask.
        skips = call.arguments.get("is_causal", False) and "math" not in call.op
        skipped = int(macs * (hidden or SEEN)) if skips else 0
        return [TensorPass(role, call.reads(), writes, macs, flops, skipped, hidden)]

    def _pass(self, op: str, phase: Phase, item: TensorPass) -> Pass:
        reads, writes = list(item.reads), list(item.writes)
        accesses = [access for tensor in reads if (access := self.values.read(tensor))]
        # The rest of a storage of which a part is written is neither read nor written, but it must
        # be there: an access of no bytes. Such a pass stays a kernel of its own.
        parts = (to for to in writes if _distinct_bytes(to) < to.untyped_storage().nbytes())
        kept = [Access(rest.value, "rest", 0) for part in parts if (rest := self.values.read(part))]
        real = (tensor.dtype.to_real() for tensor in reads)
        sizes = (dtype.itemsize for dtype in real if dtype.is_floating_point)
        if reads and all(map(self.is_weight, reads)):
            self.weights.update(map(self.values.key, writes))
        return Pass(
            op,
            phase,
            Role.OPAQUE if kept and item.role is Role.POINTWISE else item.role,
            reads=(*accesses, *kept),
            writes=tuple(map(self.values.write, writes)),
            macs=item.macs,
            elementwise_flops=item.elementwise_flops,
            causal_skipped_macs=item.causal_skipped_macs,
            fp32_macs=item.macs if min(sizes, default=0) == torch.float32.itemsize else 0,
            hidden=item.hidden,
        )


def in_recomputation(*, recorded: bool) -> bool:
    """Return whether what runs now is what a checkpoint computes again in the backward pass.

    Torch's checkpoints are known by their calls. Any other is a function whose backward computes
    what is `recorded` for autograd, though nobody asked the pass for gradients of gradients.
    """
    if torch._C._current_graph_task_id() == -1:
        return False
    in_function, called = False, None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        here = frame.f_globals.get("__name__"), frame.f_code.co_name
        if here in _CHECKPOINTS and called not in _ENGINE:  # the reentrant one starts a pass, too
            return True
        if here in _ENGINE:
            if in_function and not frame.f_locals["create_graph"]:
                return True
            in_function = False
        elif frame.f_code is BackwardCFunction.apply.__code__:
            in_function = recorded
        called, frame = here, frame.f_back
    # A device's own thread does not show who started the pass.
    return in_function and not torch._C._autograd._get_current_graph_task_keep_graph()


@dataclass(frozen=True)
class TensorPass:
    """One pass of a call, in tensors."""

    role: Role
    reads: Iterable[torch.Tensor]
    writes: Iterable[torch.Tensor]
    macs: int = 0
    elementwise_flops: int = 0
    causal_skipped_macs: int = 0
    hidden: Hidden = SEEN


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
    asked = [(Role.CONTRACTION, [grad, weight], macs, 0)] * to_input
    asked += [(Role.CONTRACTION, [grad, inputs], macs, 0)] * to_weight
    asked += [(Role.REDUCTION, [grad], 0, grad.numel())] * to_bias
    return [
        TensorPass(role, reads, [output], macs, flops)
        for (role, reads, macs, flops), output in zip(asked, call.outputs, strict=False)
    ]


def _channel_norm(call: OpCall) -> list[TensorPass]:
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


# A step that runs

#: What processes send each other is no work of the device's memory or arithmetic.
_COMMUNICATION = frozenset({"c10d", "c10d_functional", "_c10d_functional"})


class LiveStepTracer(StepTracer):  # type: ignore[no-untyped-call]
    """While active, records every op that torch dispatches; each runs once, as without it.

    Backward is what autograd's engine runs. Optimizer is what runs in the step of an optimizer,
    and what reads gradients outside of autograd: clipping, unscaling. Forward is all else.
    `begin_update` and `end_update` are for torch's hooks around each optimizer's step. `uncounted`
    has the ops without a formula, each with the reason. `saved_bytes` is what the forward pass has
    made and still holds when the backward pass begins.
    """

    saved_bytes: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.uncounted: dict[str, str] = {}
        self._updates: list[bool] = []  # optimizers whose step runs: whether it has a closure
        self._gradients: set[int] = set()  # values made in the backward pass, or of such values

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # it dispatches the ops of the tensors that it is made of
        return super().__torch_dispatch__(func, types, args, kwargs)

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the op and record it."""
        result = func(*args, **kwargs)
        if isinstance(func, torch._ops.HigherOrderOperator):
            self.uncounted[func._name] = "what it calls is not seen"
        elif func.namespace not in _COMMUNICATION:
            try:
                self._note(bind(func, args, kwargs, result))
            except Exception as error:  # of any kind: the user's step goes on, its count says so
                self.uncounted[str(func)] = f"its tensors cannot be read: {one_line(error)}"
        return result

    def lasting(self) -> frozenset[int]:
        """Return the values that outlive the step, as far as it has run.

        Those are in storages that are in use now, and were there before the step (weights,
        statistics of batch norms, momentum) or were made by the optimizer (its state, if this is
        its first step).
        """
        passes = (item for call in self.calls if call.phase == "optimizer" for item in call.passes)
        updated = {access.value for item in passes for access in item.writes}
        found, made = (set(self.values.living(made=is_made).values()) for is_made in (False, True))
        return frozenset(found | made & updated)

    def split(self, call: OpCall, writes: list[torch.Tensor]) -> list[TensorPass]:
        """Bytes alone where the FLOP of `call` cannot be counted."""
        try:
            return super().split(call, writes)
        except UserError:
            self.uncounted[call.name] = "there is no formula for its FLOP"
        except Exception as error:  # a formula met arguments that it was not written for
            self.uncounted[call.name] = f"its formula failed: {one_line(error)}"
        return [TensorPass(Role.OPAQUE, call.reads(), writes)]

    def _note(self, call: OpCall) -> None:
        phase = self._phase_of(call)
        count = len(self.calls)
        # The ones that are the loss's gradient are made just before autograd's engine starts.
        last = self.calls[-1] if count else None
        if phase == "backward" and last and (last.op, last.phase) == ("ones_like", "forward"):
            passes = tuple(replace(item, phase=phase) for item in last.passes)
            self.calls[-1] = replace(last, phase=phase, passes=passes)
        if phase == "backward" and self.saved_bytes is None:
            living = self.values.living(made=True).values()
            self.saved_bytes = sum(self.values.sizes_bytes[value] for value in living)
        self.record(call, phase)
        if phase == "backward" or (phase == "optimizer" and not self._updates):
            made = (item for call in self.calls[count:] for item in call.passes)
            self._gradients.update(access.value for item in made for access in item.writes)

    def _phase_of(self, call: OpCall) -> Phase:
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        in_closure = any(self._updates) and torch.is_grad_enabled()
        if self._updates and not in_closure:
            return "optimizer"
        read = filter(None, map(self.values.read, call.tensors()))
        if not torch.is_grad_enabled() and any(access.value in self._gradients for access in read):
            return "optimizer"
        return "forward"

    def begin_update(
        self, optimizer: object, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Note that the step of an optimizer begins."""
        self._updates.append(any(map(callable, (*args[1:], *kwargs.values()))))

    def end_update(self, *_: object) -> None:
        """Note that it has ended."""
        self._updates.pop()
