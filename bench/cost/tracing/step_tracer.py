"""Records a training step as torch dispatches it: its passes, and the tensors that it saves."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from bench.cost.flops import refuse_uncounted
from bench.cost.op_calls import OpCall, OpMode, bind, label_of
from bench.cost.passes import Access, Pass, Role, Values
from bench.cost.tracing.module_paths import ModulePaths
from bench.cost.tracing.splitting import Work, split
from bench.records import Phase
from bench.records.complexity import DispatchedCall

_ASK_VALUE = torch.ops.aten._local_scalar_dense.default
_BATCH_NORM = torch.ops.aten.native_batch_norm.default

#: Where torch's checkpoints compute again: `use_reentrant=True`, and False.
_CHECKPOINTS = {("torch.utils.checkpoint", name) for name in ("backward", "unpack_hook")}


@dataclass(frozen=True)
class RecordedPasses:
    """The passes of a step in order, and the calls that they belong to.

    `sizes_bytes` are the sizes of all values, `lasting` the values that outlive the step.
    """

    passes: tuple[Pass, ...]
    calls: tuple[DispatchedCall, ...]
    sizes_bytes: tuple[int, ...]
    lasting: frozenset[int]


class StepTracer(OpMode):
    """While active, records what is dispatched in `phase`; None records nothing.

    Every call of `calls` is one or more of `passes`, in the same order. `modules` says to which
    module a call belongs.
    """

    def __init__(self, modules: ModulePaths | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._modules = modules
        self.phase: Phase | None = None
        self.passes: list[Pass] = []
        self.calls: list[DispatchedCall] = []
        self.values = Values()
        self._weights: set[int] = set()  # storages that hold weights, or copies of them alone

    def declare_weight(self, tensor: torch.Tensor) -> None:
        """Note that `tensor` is a weight: what is computed from weights alone is one too."""
        self._weights.add(self.values.key(tensor))

    def is_weight(self, tensor: torch.Tensor) -> bool:
        """Return whether `tensor` holds a weight or something computed from weights alone."""
        return self.values.key(tensor) in self._weights

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the op and record it."""
        if func is torch.ops.prim.device.default:
            return args[0].fake_device  # the most frequent call: answered without torch
        if self.phase == "optimizer" and func is _ASK_VALUE and _is_unknown(args[0]):
            return 0.0  # a loss scaler asks for overflown gradients: there are none
        if isinstance(func, torch._ops.HigherOrderOperator):
            refuse_uncounted(f"torch.{func._name}")
        module = None if self._modules is None else self._modules.current()
        # Fake tensors have nothing to update in place, and torch has no fake fused optimizers.
        updates_only = func.namespace == "aten" and not func._schema.returns
        result: Any = None if updates_only else func(*args, **kwargs)
        if func is _BATCH_NORM:
            # Under autocast devices keep a batch's statistics in fp32, fake tensors in 16 bits.
            result = (result[0], *map(_in_32_bits, result[1:]))
        if self.phase is not None:
            self.record(bind(func, args, kwargs, result), self.phase, module)
        return result

    def record(self, call: OpCall, phase: Phase, module: str | None = None) -> None:
        """Record one call that was made, or that is known to be made, in `phase`."""
        inputs = {self.values.key(tensor) for tensor in call.inputs()}
        fresh = [tensor for tensor in call.outputs if self.values.key(tensor) not in inputs]
        for tensor in fresh:
            self.values.declare_empty(tensor)
        if call.allocates:
            return
        writes = [*call.mutated(), *fresh]
        if not writes:
            return  # a view, or a query about a tensor
        works = self.works_of(call, writes)
        passes = [self._pass(call.name, phase, work, first=not i) for i, work in enumerate(works)]
        label = label_of(call, phase)
        if torch.is_grad_enabled() and in_recomputation():
            passes = [_recomputed(item) for item in passes]
            label = f"recomputed {label}"
        self.calls.append(DispatchedCall(call.name, phase, call.shapes, label, module))
        self.passes += passes

    def works_of(self, call: OpCall, writes: list[torch.Tensor]) -> list[Work]:
        """Return the passes of `call`; raises `UserError` where its FLOP cannot be counted."""
        return split(call, writes)

    def _pass(self, op: str, phase: Phase, work: Work, *, first: bool) -> Pass:
        reads, writes = list(work.reads), list(work.writes)
        accesses = [access for tensor in reads if (access := self.values.read(tensor))]
        role, kept = self._kept_contents(work.role, writes)
        if reads and all(map(self.is_weight, reads)):
            self._weights.update(map(self.values.key, writes))
        written = tuple(map(self.values.write, writes))
        return Pass(
            op,
            phase,
            role,
            (*accesses, *kept),
            written,
            work.macs,
            work.elementwise_flops,
            first,
            causal_skipped_macs=work.causal_skipped_macs,
        )

    def _kept_contents(self, role: Role, writes: list[torch.Tensor]) -> tuple[Role, list[Access]]:
        """Return how a pass over part of a storage depends on the rest of it.

        The rest is neither read nor written, but it must be there: an access of no bytes. Such a
        pass stays a kernel of its own.
        """
        parts = [tensor for tensor in writes if not self.values.covers(tensor)]
        rests = [self.values.read(tensor) for tensor in parts]
        kept = [Access(rest.value, "rest", 0) for rest in rests if rest is not None]
        return (Role.OPAQUE if kept and role is Role.POINTWISE else role), kept


def in_recomputation() -> bool:
    """Return whether what is recorded for autograd now is computed again in the backward pass.

    Autograd records nothing of what it computes itself, unless gradients are to have gradients. It
    keeps the graph for these: then only torch's own checkpoints are known, by their calls.
    """
    if torch._C._current_graph_task_id() == -1:
        return False
    return not torch._C._autograd._get_current_graph_task_keep_graph() or _in_checkpoint()


def _in_checkpoint() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) in _CHECKPOINTS:
            return True
        frame = frame.f_back
    return False


def _recomputed(item: Pass) -> Pass:
    return replace(
        item, macs=0, causal_skipped_macs=0, elementwise_flops=0, recomputed_macs=item.macs
    )


def _is_unknown(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is fake and made of others; an optimizer's count of steps has a value."""
    return isinstance(tensor, FakeTensor) and tensor.constant is None


def _in_32_bits(statistic: torch.Tensor) -> torch.Tensor:
    return statistic.to(torch.promote_types(statistic.dtype, torch.float32))


class SavedTensors:
    """The distinct storages saved while `watch()` is active, by their keys, weights left out.

    What the backward pass computes again is not kept between the two passes, so it does not count.
    `elements` has no vectors either: these are not an image's, but the statistics of a batch norm's
    channels, or the labels. `copies_bytes` are copies of weights, such as those cast to 16 bits.
    """

    def __init__(self, tracer: StepTracer, weights: Sequence[torch.Tensor]) -> None:
        self._tracer = tracer
        for tensor in weights:
            tracer.declare_weight(tensor)
        self._given = {tracer.values.key(tensor) for tensor in weights}
        self.copies_bytes: dict[int, int] = {}
        self.elements: dict[int, int] = {}
        self.sizes_bytes: dict[int, int] = {}

    def watch(self) -> AbstractContextManager[object]:
        """Return a context in which every saved tensor is noted."""
        return torch.autograd.graph.saved_tensors_hooks(self._note, lambda tensor: tensor)

    def _note(self, tensor: torch.Tensor) -> torch.Tensor:
        if in_recomputation():  # hooks run with gradients off, but only for what is recorded
            return tensor
        key = self._tracer.values.key(tensor)
        size_bytes = tensor.untyped_storage().nbytes()
        if not self._tracer.is_weight(tensor):
            self.sizes_bytes[key] = size_bytes
            if tensor.dim() > 1:
                self.elements[key] = size_bytes // tensor.element_size()
        elif key not in self._given:
            self.copies_bytes[key] = size_bytes
        return tensor
