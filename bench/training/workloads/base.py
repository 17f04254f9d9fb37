"""What is trained: a model, the batches that it takes, and its loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from bench.config import Sample

#: Tensors of one batch: a tensor, a tuple of them, or a dictionary of them by name.
Batch = Any


class ImageInput(NamedTuple):
    """The images that a model takes: float32 [N, 3, size, size] of `classes` kinds.

    `mean` and `std` of R, G and B, of levels from 0 to 1; by default ImageNet's, from torchvision's
    training references.
    """

    size: int
    classes: int
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)


class Workload(ABC):
    """What a training step needs to know of what it trains.

    `image` says what real images are made into; a workload without it trains on random batches
    alone. `seq_len` is there where `--seq-len` decides it.
    """

    sample: Sample
    image: ImageInput | None = None
    seq_len: int | None = None
    tokens_per_sample: int | None = None

    @abstractmethod
    def build(self) -> torch.nn.Module:
        """Return the model, its weights random, in training mode. Raises `UserError`."""

    @abstractmethod
    def batch(self, samples: int) -> Batch:
        """Return a random batch, drawn by torch's global generators on its default device."""

    @abstractmethod
    def output(self, model: Callable[..., Any], batch: Batch) -> Any:
        """Return what `model`, which may be wrapped or compiled, makes of `batch`."""

    @abstractmethod
    def loss(self, output: Any, batch: Batch) -> torch.Tensor:
        """Return the loss, a tensor of one number. Raises `UserError` for an unusable output."""
