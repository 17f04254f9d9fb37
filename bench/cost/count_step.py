"""Counts what a user's own training step computes and moves, while it runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

from bench.cost.estimate import counts_of
from bench.cost.op_calls import OpCall, bind
from bench.cost.step_tracer import StepTracer, TensorPass
from bench.cost.traffic import Role
from bench.errors import UserError, one_line
from bench.records import OpCost, Phase
from bench.records.complexity import DEFAULT_CACHE_BYTES, NO_WORK, Work, by_phase

#: What processes send each other is no work of the device's memory or arithmetic.
_COMMUNICATION = frozenset({"c10d", "c10d_functional", "_c10d_functional"})


@contextmanager
def count_step(*, cache_bytes: int = DEFAULT_CACHE_BYTES) -> Iterator[CountedStep]:
    """Count what a block of code computes and moves, on any device.

    `with count_step() as cost:` stands around one training step, or any part of one. Every op runs
    once, as without it, and slower: Python is called for each. `cost` can be read after the block.
    An op without a formula is named in a warning and in `cost.uncounted`, and the FLOP are then a
    lower bound. `cache_bytes` is the cache of `cost.compulsory_bytes`.

    Only what torch dispatches is seen, so not the kernels of a replayed CUDA graph, or of a library
    that is called from Python. A compiled model runs, and counts, op by op within the block.
    """
    cost, step = CountedStep(cache_bytes), LiveStepTracer()
    hooks = (
        register_optimizer_step_pre_hook(step.begin_update),
        register_optimizer_step_post_hook(step.end_update),
    )
    try:
        # Torch compiles nothing while ops are counted, but fails where one graph is asked for.
        with torch.compiler.set_stance("force_eager"), step:
            yield cost
    finally:
        for hook in hooks:
            hook.remove()
    cost.close(step)
    if step.uncounted:
        warnings.warn(f"count_step: {cost.why_incomplete}", stacklevel=3)


class CountedStep:
    """What a step must compute and move, of the whole batch; a multiply-add is 2 FLOP.

    Its counts are those of `mlproject complexity`, under the same names. `uncounted` has the ops
    whose FLOP are missing, by name with the reason: empty where the count is complete.
    """

    forward_macs: int  # multiply-adds of convolutions, products and attention, forward
    step_flops: int  # algorithmic FLOP of the same, in all phases
    recomputed_flops: int  # of what checkpoints compute again; not in step_flops
    causal_skipped_flops: int  # the part of step_flops that fused attention may skip
    fp32_flops: int  # the part of step_flops that is of 32-bit numbers
    elementwise_flops: int  # of everything else, by the conventions of `bench.cost.flops`
    eager_bytes: int  # DRAM traffic if every op reads its inputs and writes its outputs
    fused_bytes: int  # the same if all small ops are folded into their neighbours
    compulsory_bytes: int  # what a cache of `cache_bytes` cannot save: a floor
    ops: tuple[OpCost, ...]  # the counts of every op in every phase

    def __init__(self, cache_bytes: int) -> None:
        self.cache_bytes = cache_bytes
        self.uncounted: dict[str, str] = {}

    def close(self, step: LiveStepTracer) -> None:
        """Count what was recorded: it can be read from now on."""
        self.uncounted = step.uncounted
        vars(self).update(counts_of(step.recorded(step.lasting()), self.cache_bytes))

    def __getattr__(self, name: str) -> Any:
        if name not in type(self).__annotations__:
            raise AttributeError(f"a counted step has no {name!r}")
        raise UserError("count_step: nothing is counted yet; read the cost after the with block")

    @property
    def is_complete(self) -> bool:
        """Whether the FLOP of every op were counted."""
        return not self.uncounted

    @property
    def why_incomplete(self) -> str | None:
        """Which ops lack a count, and why; None where the count is complete."""
        if self.is_complete:
            return None
        ops = "; ".join(f"{op}, {reason}" for op, reason in self.uncounted.items())
        return f"the FLOP are a lower bound, without those of {ops}"

    @property
    def phases(self) -> dict[Phase, Work]:
        """Work of forward, backward and optimizer; their sum is the step's."""
        return by_phase(self.ops)

    def __str__(self) -> str:
        """Return a table of the phases, and what is missing."""
        header = ("GFLOP", "small GFLOP", "fused MB", "eager MB")
        lines = [f"{'':9}" + "".join(f"{word:>14}" for word in header)]
        for name, work in (*self.phases.items(), ("step", sum(self.ops, NO_WORK))):
            giga = (work.flops / 1e9, work.elementwise_flops / 1e9)
            numbers = (*giga, work.fused_bytes / 1e6, work.eager_bytes / 1e6)
            lines.append(f"{name:9}" + "".join(f"{number:14,.3f}" for number in numbers))
        return "\n".join([*lines, *filter(None, [self.why_incomplete])])


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
        update = (call for call in self.calls if call.phase == "optimizer")
        updated = {
            access.value for call in update for item in call.passes for access in item.writes
        }
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
            made = (item for each in self.calls[count:] for item in each.passes)
            self._gradients.update(access.value for item in made for access in item.writes)

    def _phase_of(self, call: OpCall) -> Phase:
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        in_closure = any(self._updates) and torch.is_grad_enabled()
        if self._updates and not in_closure:
            return "optimizer"
        read = filter(None, map(self.values.read, call.tensors()))
        if not torch.is_grad_enabled() and any(one.value in self._gradients for one in read):
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
