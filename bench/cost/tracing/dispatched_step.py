"""Records a user's own training step while it runs, on any device, its phases found on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type
from typing_extensions import Self

from bench.cost.op_calls import OpCall, bind
from bench.cost.passes import Role
from bench.cost.tracing.splitting import Work
from bench.cost.tracing.step_tracer import StepTracer
from bench.errors import UserError, one_line
from bench.records import Phase

#: What processes send each other is no work of the device's memory or arithmetic.
_COMMUNICATION = frozenset({"c10d", "c10d_functional", "_c10d_functional"})


class DispatchedStep(StepTracer):  # type: ignore[no-untyped-call]
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

    def works_of(self, call: OpCall, writes: list[torch.Tensor]) -> list[Work]:
        """Return the passes of `call`: its bytes alone where its FLOP cannot be counted."""
        try:
            return super().works_of(call, writes)
        except UserError:
            self.uncounted[call.name] = "there is no formula for its FLOP"
        except Exception as error:  # a formula met arguments that it was not written for
            self.uncounted[call.name] = f"its formula failed: {one_line(error)}"
        return [Work(Role.OPAQUE, call.reads(), writes)]

    def lasting(self) -> frozenset[int]:
        """Return the values that outlive the step, as far as it has run.

        Those are in storages that are in use now, and were there before the step (weights,
        statistics of batch norms, momentum) or were made by the optimizer (its state, if this is
        its first step).
        """
        updated = {
            access.value
            for item in self.passes
            if item.phase == "optimizer"
            for access in item.writes
        }
        return frozenset(self.values.living(made=False) | self.values.living(made=True) & updated)

    def _note(self, call: OpCall) -> None:
        phase = self._phase_of(call)
        begin = len(self.passes)
        if phase == "backward" and self.calls and self.calls[-1].phase == "forward":
            self._claim_first_gradient()
        self.record(call, phase)
        if phase == "backward" or (phase == "optimizer" and not self._updates):
            made = (access.value for item in self.passes[begin:] for access in item.writes)
            self._gradients.update(made)

    def _phase_of(self, call: OpCall) -> Phase:
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        in_closure = any(self._updates) and torch.is_grad_enabled()
        if self._updates and not in_closure:
            return "optimizer"
        if not torch.is_grad_enabled() and any(map(self._is_gradient, call.inputs())):
            return "optimizer"
        return "forward"

    def _is_gradient(self, tensor: torch.Tensor) -> bool:
        access = self.values.read(tensor)
        return access is not None and access.value in self._gradients

    def _claim_first_gradient(self) -> None:
        """The ones that are the loss's gradient are made just before autograd's engine starts."""
        if self.calls[-1].op == "ones_like":
            self.calls[-1] = replace(self.calls[-1], phase="backward")
            self.passes[-1] = replace(self.passes[-1], phase="backward")

    def _begin_update(
        self, optimizer: object, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._updates.append(any(map(callable, (*args[1:], *kwargs.values()))))

    def _end_update(self, *_: object) -> None:
        self._updates.pop()
