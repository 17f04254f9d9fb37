"""Memory a training step holds: weights, gradients, optimizer state, and what forward saves."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch

from bench.complexity.trace import StepTracer
from bench.records import MemoryFootprint


class SavedTensors:
    """Distinct storages that the forward pass saves for the backward pass."""

    def __init__(self, tracer: StepTracer) -> None:
        self._tracer = tracer
        self._saved: dict[int, torch.Tensor] = {}

    def watch(self) -> AbstractContextManager[object]:
        """Return a context in which every saved tensor is noted."""
        return torch.autograd.graph.saved_tensors_hooks(self._note, lambda tensor: tensor)

    def _note(self, tensor: torch.Tensor) -> torch.Tensor:
        self._saved.setdefault(self._tracer.values.key(tensor), tensor)
        return tensor
