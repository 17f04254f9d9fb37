"""A model whose weights are fake: its shapes are there, its memory is not."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from bench.training.models import build_model

_ALLOCATE = frozenset({torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default})
_ASK_VALUE = torch.ops.aten._local_scalar_dense.default


def build_fake_model(arch: str, fake: FakeTensorMode) -> torch.nn.Module:
    """Return the model of `bench.training.models.build_model` with the fake tensors of `fake`.

    The state of torch's random numbers is left as it was. Raises `UserError`.
    """
    with torch.random.fork_rng(devices=[]):
        if ":" in arch:
            # A user's module may keep tensors, or look at their values: it is built for real.
            model = build_model(arch)
        else:
            with _FakeWeights(fake):
                model = build_model(arch)
    with FakeCopyMode(fake):
        return copy.deepcopy(model)


class _FakeWeights(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Allocates fake tensors, and leaves small computations on real ones as they are.

    Layers allocate their weights and then fill them; regnets compute their widths with tensors.
    """

    def __init__(self, fake: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fake = fake

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the op, for real or not."""
        del types
        kwargs = kwargs or {}
        if func in _ALLOCATE:
            with self._fake:
                return func(*args, **kwargs)
        asked = func is _ASK_VALUE and isinstance(args[0], FakeTensor)
        if asked and args[0].dtype == torch.bool:
            return False  # an initialiser asks whether to draw again: there is nothing to draw
        return func(*args, **kwargs)
