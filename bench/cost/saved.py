"""What the forward pass saves for the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch

from bench.cost.trace import StepTracer


class SavedTensors:
    """Notes the distinct storages saved while `watch()` is active, weights apart."""

    def __init__(self, tracer: StepTracer, weights: Sequence[torch.Tensor]) -> None:
        self._tracer = tracer
        for tensor in weights:
            tracer.declare_weight(tensor)
        self._given = {tracer.values.key(tensor) for tensor in weights}
        self._copies_bytes: dict[int, int] = {}
        self._elements: dict[int, int] = {}
        self._sizes_bytes: dict[int, int] = {}

    def watch(self) -> AbstractContextManager[object]:
        """Return a context in which every saved tensor is noted."""
        return torch.autograd.graph.saved_tensors_hooks(self._note, lambda tensor: tensor)

    @property
    def activations(self) -> int:
        """Elements saved, weights left out, and vectors: these are not an image's.

        They hold the statistics of a batch norm's channels, or the labels.
        """
        return sum(self._elements.values())

    @property
    def activations_bytes(self) -> int:
        """Bytes saved, weights left out."""
        return sum(self._sizes_bytes.values())

    @property
    def weight_copies_bytes(self) -> int:
        """Bytes saved that hold copies of weights, such as those cast to 16 bits."""
        return sum(self._copies_bytes.values())

    def _note(self, tensor: torch.Tensor) -> torch.Tensor:
        key = self._tracer.values.key(tensor)
        size_bytes = tensor.untyped_storage().nbytes()
        if not self._tracer.is_weight(tensor):
            self._sizes_bytes[key] = size_bytes
            if tensor.dim() > 1:
                self._elements[key] = size_bytes // tensor.element_size()
        elif key not in self._given:
            self._copies_bytes[key] = size_bytes
        return tensor
