"""Records a training step as torch dispatches it, on fake tensors or as a user runs it.

Both recorders write the same: calls in order, each with its passes over memory. They differ in who
says which phase runs, and in what they do with an op that cannot be counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type
from typing_extensions import Self

from bench.cost.op_calls import OpCall, OpMode, bind
from bench.cost.op_table import refuse_uncounted
from bench.cost.passes import Access, Pass, Role, Values
from bench.cost.splitting import TensorPass, split
from bench.cost.traffic import eager_bytes
from bench.errors import UserError, one_line
from bench.records import Phase

ASK_VALUE = torch.ops.aten._local_scalar_dense.default
_BATCH_NORM = torch.ops.aten.native_batch_norm.default

#: Where torch's checkpoints compute again: `use_reentrant=True`, and False.
_CHECKPOINTS = {("torch.utils.checkpoint", name) for name in ("backward", "unpack_hook")}
#: What processes send each other is no work of the device's memory or arithmetic.
_COMMUNICATION = frozenset({"c10d", "c10d_functional", "_c10d_functional"})


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
        }

    def in_phase(self, phase: Phase) -> RecordedCall:
        """Return the call as one of another phase."""
        passes = tuple(replace(item, phase=phase) for item in self.passes)
        return replace(self, phase=phase, passes=passes)


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


class StepTracer(OpMode):
    """While active, records what is dispatched in `phase`; None records nothing.

    `module_now` says to which module of a model a call belongs.
    """

    def __init__(self, module_now: Callable[[], str | None] = lambda: None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._module_now = module_now
        self.phase: Phase | None = None
        self.calls: list[RecordedCall] = []
        self.values = Values()
        self._weights: set[int] = set()  # storages that hold weights, or copies of them alone

    def recorded(self, lasting: frozenset[int]) -> RecordedCalls:
        """Return what was recorded so far; `lasting` are the values that outlive it."""
        return RecordedCalls(tuple(self.calls), tuple(self.values.sizes_bytes), lasting)

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
        asks_fake = func is ASK_VALUE and isinstance(args[0], FakeTensor)
        # An optimizer's count of steps has a value.
        if self.phase == "optimizer" and asks_fake and args[0].constant is None:
            return 0.0  # a loss scaler asks for overflown gradients: there are none
        if isinstance(func, torch._ops.HigherOrderOperator):
            refuse_uncounted(f"torch.{func._name}")
        module = self._module_now()
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
        inputs = set(map(self.values.key, call.tensors()))
        fresh = [tensor for tensor in call.outputs if self.values.key(tensor) not in inputs]
        for tensor in fresh:
            self.values.declare_empty(tensor)
        writes = [*call.mutated(), *fresh]
        if call.known.allocates or not writes:
            return  # a view, or a query about a tensor
        passes = [self._pass(call.name, phase, item) for item in self._split(call, writes)]
        label = call.label(phase)
        if torch.is_grad_enabled() and in_recomputation():
            passes = [
                replace(each, macs=0, elementwise_flops=0, causal_skipped_macs=0,
                        recomputed_macs=each.macs)
                for each in passes
            ]  # fmt: skip
            label = f"recomputed {label}"
        self.calls.append(RecordedCall(call.name, phase, call.shapes, label, module, tuple(passes)))

    def _split(self, call: OpCall, writes: list[torch.Tensor]) -> list[TensorPass]:
        return split(call, writes)

    def _pass(self, op: str, phase: Phase, item: TensorPass) -> Pass:
        reads, writes = list(item.reads), list(item.writes)
        accesses = [access for tensor in reads if (access := self.values.read(tensor))]
        # The rest of a storage of which a part is written is neither read nor written, but it must
        # be there: an access of no bytes. Such a pass stays a kernel of its own.
        parts = [tensor for tensor in writes if not self.values.covers(tensor)]
        rests = [self.values.read(tensor) for tensor in parts]
        kept = [Access(rest.value, "rest", 0) for rest in rests if rest is not None]
        if reads and all(map(self.is_weight, reads)):
            self._weights.update(map(self.values.key, writes))
        return Pass(
            op,
            phase,
            Role.OPAQUE if kept and item.role is Role.POINTWISE else item.role,
            reads=(*accesses, *kept),
            writes=tuple(map(self.values.write, writes)),
            macs=item.macs,
            elementwise_flops=item.elementwise_flops,
            causal_skipped_macs=item.causal_skipped_macs,
        )


class LiveStepTracer(StepTracer):  # type: ignore[no-untyped-call]
    """While active, records every op that torch dispatches; each runs once, as without it.

    Backward is what autograd's engine runs. Optimizer is what runs in the step of an optimizer,
    and what reads gradients outside of autograd: clipping, unscaling. Forward is all else.
    `uncounted` has the ops without a formula, each with the reason.
    """

    def __init__(self) -> None:
        super().__init__()
        self.uncounted: dict[str, str] = {}
        self._updates: list[bool] = []  # optimizers whose step runs: whether it has a closure
        self._gradients: set[int] = set()  # values made in the backward pass, or of such values

    def __enter__(self) -> Self:
        self._hooks = (
            register_optimizer_step_pre_hook(self._begin_update),
            register_optimizer_step_post_hook(self._end_update),
        )
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # it dispatches the ops of the tensors that it is made of
        return self.dispatch(func, args, kwargs or {})

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
        update = (call for call in self.calls if call.phase == "optimizer")
        updated = {
            access.value for call in update for item in call.passes for access in item.writes
        }
        return frozenset(self.values.living(made=False) | self.values.living(made=True) & updated)

    def _split(self, call: OpCall, writes: list[torch.Tensor]) -> list[TensorPass]:
        """Bytes alone where the FLOP of `call` cannot be counted."""
        try:
            return split(call, writes)
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
            self.calls[-1] = last.in_phase("backward")
        self.record(call, phase)
        if phase == "backward" or (phase == "optimizer" and not self._updates):
            made = (item for each in self.calls[count:] for item in each.passes)
            self._gradients.update(access.value for item in made for access in item.writes)

    def _phase_of(self, call: OpCall) -> Phase:
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        in_closure = any(self._updates) and torch.is_grad_enabled()
        if self._updates and not in_closure:
            return "optimizer"
        if not torch.is_grad_enabled() and any(map(self._is_gradient, call.tensors())):
            return "optimizer"
        return "forward"

    def _is_gradient(self, tensor: torch.Tensor) -> bool:
        access = self.values.read(tensor)
        return access is not None and access.value in self._gradients

    def _begin_update(
        self, optimizer: object, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._updates.append(any(map(callable, (*args[1:], *kwargs.values()))))

    def _end_update(self, *_: object) -> None:
        self._updates.pop()


def in_recomputation() -> bool:
    """Return whether what is recorded for autograd now is computed again in the backward pass.

    Autograd records nothing of what it computes itself, unless gradients are to have gradients. It
    keeps the graph for these: then only torch's own checkpoints are known, by their calls.
    """
    if torch._C._current_graph_task_id() == -1:
        return False
    if not torch._C._autograd._get_current_graph_task_keep_graph():
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) in _CHECKPOINTS:
            return True
        frame = frame.f_back
    return False


def _in_32_bits(statistic: torch.Tensor) -> torch.Tensor:
    return statistic.to(torch.promote_types(statistic.dtype, torch.float32))
