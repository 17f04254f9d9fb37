"""One call of an aten op, its arguments by name: what it reads, what it writes, and its label."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.cost.op_table import Op, known_op
from bench.records import Phase
from bench.records.complexity import plain_label

_TORCH_LOG = logging.getLogger("torch._subclasses.fake_tensor")
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class OpMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, is given every op that torch dispatches; of control flow, the op itself.

    Under `torch.inference_mode` torch itself leaves ops whole that are made of others.
    """

    supports_higher_order_operators = True

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the op `func`; a mode that does more, or answers for it, has its own."""
        return func(*args, **kwargs)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _has_kernel(func, _COMPOSITE):
            devices = (each.device.type for each in tensors_in(args))
            own = map(torch._C._dispatch_key_for_device, islice(devices, 1))
            if not any(_has_kernel(func, key) for key in own):
                with self:
                    return func._op_dk(_COMPOSITE, *args, **(kwargs or {}))
        return self.dispatch(func, args, kwargs or {})


@cache
def _has_kernel(func: Any, key: Any) -> bool:
    named = isinstance(func, torch._ops.OpOverload) and func.namespace != "prim"
    return named and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


@dataclass(frozen=True)
class OpCall:
    """`name` is as printed (`relu_`); `op` is what it computes (`relu`), one tensor or a list."""

    name: str
    op: str
    pointwise: bool  # as torch tags it
    arguments: Mapping[str, Any]
    mutable: frozenset[str]
    outputs: tuple[torch.Tensor, ...]

    @property
    def known(self) -> Op:
        """What is known of the op."""
        return known_op(self.op)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the tensor arguments, without those in lists and those of no dimension.

        This is what torch's profiler reports of a call, too: it prints neither scalars nor lists.
        """
        given = (value for value in self.arguments.values() if isinstance(value, torch.Tensor))
        return tuple(tuple(tensor.shape) for tensor in given if tensor.dim())

    def tensors(self, *names: str) -> list[torch.Tensor]:
        """Return the tensors of these arguments, or of all."""
        asked = names or self.arguments
        return [tensor for name in asked for tensor in tensors_in(self.arguments.get(name))]

    def reads(self) -> list[torch.Tensor]:
        """Return the tensors whose contents the op needs."""
        known = self.known
        ignored = {known.unread, known.gathered} | (self.mutable if known.overwrites else set())
        names = [name for name in self.arguments if name not in ignored]
        whole = self.tensors(*names) if names else []
        if not known.gathered:
            return whole
        return [_some_of(self.arguments[known.gathered], self._chosen()), *whole]

    def _chosen(self) -> int:
        """Elements that a gathering op chooses: one per label, a row per index, or its result."""
        if self.op.startswith("nll_loss"):
            return int(self.arguments["target"].numel())
        if "embedding" in self.op:
            return int(self.arguments["indices"].numel() * self.arguments["weight"].shape[-1])
        return self.outputs[0].numel()

    def mutated(self) -> list[torch.Tensor]:
        """Return the tensor arguments that the op writes."""
        written = self.mutable
        if self.op.startswith("_fused_") and self.arguments.get("grad_scale") is None:
            written = written - {"grads"}  # it unscales them, or only reads them
        return [tensor for name in written for tensor in tensors_in(self.arguments.get(name))]

    def label(self, phase: Phase) -> str:
        """Return its kind: `depthwise convolution 3x3 stride 2`, `batch_norm`.

        A backward call has the name of the forward one that it belongs to.
        """
        if phase == "optimizer":
            return "optimizer"
        if self.op not in ("convolution", "convolution_backward"):
            return plain_label(self.name)
        weight, groups = self.arguments["weight"], self.arguments["groups"]
        kind = "transposed convolution" if self.arguments["transposed"] else "convolution"
        if groups > 1:
            # The weight is (out, in / groups, *kernel), transposed (in, out / groups, *kernel).
            kind = f"{'depthwise' if weight.shape[1] == 1 else 'grouped'} {kind}"
        words = [kind, "x".join(map(str, weight.shape[2:]))]
        for name in ("stride", "dilation"):
            steps = self.arguments[name]
            if any(step > 1 for step in steps):
                words += [name, "x".join(map(str, steps[:1] if len(set(steps)) == 1 else steps))]
        return " ".join(words)


def bind(
    func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> OpCall:
    """Return the call of `func` that gave `result`, defaults of `func` left out."""
    names, mutable = _signature(func)
    packet: str = func.overloadpacket.__name__
    name = packet if func.namespace in ("aten", "prims") else f"{func.namespace}.{packet}"
    op = name.removeprefix("_foreach_").rstrip("_")
    return OpCall(
        name=name,
        op=op,
        pointwise=torch.Tag.pointwise in func.tags or name.startswith("_foreach_"),
        arguments={**dict(zip(names, args, strict=False)), **kwargs},
        mutable=mutable,
        outputs=tuple(tensors_in(result)),
    )


@cache
def _signature(func: torch._ops.OpOverload) -> tuple[tuple[str, ...], frozenset[str]]:
    arguments = func._schema.arguments
    mutable = {
        argument.name
        for argument in arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    if torch.Tag.inplace_view in func.tags:
        mutable.clear()  # it changes shape and strides, no element
    return tuple(argument.name for argument in arguments), frozenset(mutable)


def _some_of(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return `tensor`, or where fewer elements are read of it a view of as many."""
    if count >= tensor.numel():
        return tensor
    room = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return tensor.as_strided((min(count, room),), (1,))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an argument or a result, lists included."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def first_line(error: Exception) -> str:
    """Return the first line of an error of torch's, or its kind."""
    return next(iter(str(error).splitlines()), type(error).__name__)


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Keep fake tensors from printing the traceback of an error that becomes one line."""
    level = _TORCH_LOG.level
    _TORCH_LOG.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        _TORCH_LOG.setLevel(level)
