"""Which module of a model an op belongs to, in the forward pass and in the backward pass."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from typing_extensions import Self


class NamedParameter(NamedTuple):
    """A parameter by one of its names; a tied one has others, `first_name` is the first."""

    name: str
    first_name: str
    elements: int


@dataclass(frozen=True)
class ModuleTree:
    """The modules of a model, as it lists them: the class of each by its path, and parameters."""

    kinds: Mapping[str, str]
    parameters: tuple[NamedParameter, ...]

    @classmethod
    def of(cls, model: torch.nn.Module) -> Self:
        """Return the tree of `model`; a parameter that it has twice is there under both names."""
        first: dict[int, str] = {}
        return cls(
            kinds={path: type(module).__name__ for path, module in model.named_modules()},
            parameters=tuple(
                NamedParameter(name, first.setdefault(id(parameter), name), parameter.numel())
                for name, parameter in model.named_parameters(remove_duplicate=False)
            ),
        )


class ModulePaths:
    """While active, follows which modules of `model` run, by their paths in it.

    An op of the forward pass belongs to the innermost module that runs. autograd numbers its nodes
    in the order in which the forward pass makes them, so that the number of a node that runs says
    which module made it. A sum of gradients of one tensor belongs to the module whose gradient came
    last. A module that the model has twice is known by its first path.

    Numbers are each thread's own: forward and backward pass must run in one, as on a CPU.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._owners = {
            id(parameter): name.rpartition(".")[0] for name, parameter in model.named_parameters()
        }
        self._running: list[str | None] = []
        self._first_nodes: list[int] = []
        self._makers: list[str | None] = []

    def __enter__(self) -> Self:
        self._hooks = (
            register_module_forward_pre_hook(self._begin),
            register_module_forward_hook(self._end, always_call=True),
        )
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def current(self) -> str | None:
        """Return the path of the module that the op belongs to; None outside of the model."""
        if self._running:
            return self._running[-1]
        node = torch._C._current_autograd_node()
        return None if node is None else self._maker(node)

    def _maker(self, node: Any) -> str | None:
        owner = self._owners.get(id(getattr(node, "variable", None)))
        if owner is not None:  # it adds to a parameter's gradient
            return owner
        index = bisect_right(self._first_nodes, node._sequence_nr()) - 1
        return self._makers[index] if index >= 0 else None

    def _begin(self, module: torch.nn.Module, args: object) -> None:
        enclosing = self._running[-1] if self._running else None
        self._running.append(self._paths.get(id(module), enclosing))
        self._note()

    def _end(self, module: torch.nn.Module, args: object, output: object) -> None:
        self._running.pop()
        self._note()

    def _note(self) -> None:
        """The nodes that come now are made by the module that runs now."""
        self._first_nodes.append(torch._C._autograd._get_sequence_nr())
        self._makers.append(self._running[-1] if self._running else None)
