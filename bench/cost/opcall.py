"""One call of an aten op, its arguments by name: what it reads and what it writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from bench.cost.families import ALLOCATIONS, OVERWRITES, UNREAD_ARGUMENTS


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
    def allocates(self) -> bool:
        """Whether the outputs are storage without contents."""
        return self.op in ALLOCATIONS

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the tensor arguments, without those in lists and those of no dimension.

        This is what torch's profiler tells of a call, too: it prints scalars and lists alike as
        nothing.
        """
        given = (value for value in self.arguments.values() if isinstance(value, torch.Tensor))
        return tuple(tuple(tensor.shape) for tensor in given if tensor.dim())

    def inputs(self) -> list[torch.Tensor]:
        """Return every tensor argument."""
        return [tensor for value in self.arguments.values() for tensor in tensors_in(value)]

    def reads(self) -> list[torch.Tensor]:
        """Return the tensors whose contents the op needs."""
        ignored = UNREAD_ARGUMENTS.get(self.op, set())
        if self.op in OVERWRITES:
            ignored = ignored | self.mutable
        return [
            tensor
            for name, value in self.arguments.items()
            if name not in ignored
            for tensor in tensors_in(value)
        ]

    def mutated(self) -> list[torch.Tensor]:
        """Return the tensor arguments that the op writes."""
        written = self.mutable
        if self.op.startswith("_fused_") and self.arguments.get("grad_scale") is None:
            written = written - {"grads"}  # it unscales them, or only reads them
        return [tensor for name in written for tensor in tensors_in(self.arguments.get(name))]


def bind(
    func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> OpCall:
    """Return the call of `func` that gave `result`, defaults of `func` left out."""
    names, mutable = _signature(func)
    packet: str = func.overloadpacket.__name__
    name = packet if func.namespace == "aten" else f"{func.namespace}.{packet}"
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


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an argument or a result, lists included."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
