"""Image classification: pictures in, logits out, and the cross entropy of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from bench.errors import UserError
from bench.training.workloads.base import Batch, ImageInput, Workload

#: Pixels a side and classes where a model does not say them: ImageNet-1k's.
DEFAULT_IMAGE_SIZE, DEFAULT_CLASSES = 224, 1000

#: Weight of each auxiliary classifier's loss, by the name of the outputs: 0.3 in section 5 of the
#: GoogLeNet paper (arXiv 1409.4842); 0.4 for Inception v3 in PyTorch's fine-tuning tutorial.
_AUXILIARY_WEIGHTS = {"GoogLeNetOutputs": 0.3, "InceptionOutputs": 0.4}


def random_images(image: ImageInput, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return normal images, float32 [N, 3, S, S], and random labels, int64 [N].

    Never zeros: multiplying them takes less power, so clocks rise and the step looks faster.
    """
    images = torch.randn(samples, 3, image.size, image.size)
    return images, torch.randint(image.classes, (samples,))


class ImageClassification(Workload):
    """A model from images to logits; a batch is images and labels, int64 [N]."""

    sample = "image"
    image: ImageInput

    def __init__(self, image: ImageInput, build: Callable[[], torch.nn.Module]) -> None:
        self.image = image
        self._build = build

    def build(self) -> torch.nn.Module:
        """Return the model in training mode."""
        return self._build().train()

    def batch(self, samples: int) -> Batch:
        """Return normal images and random labels."""
        return random_images(self.image, samples)

    def output(self, model: Callable[..., Any], batch: Batch) -> Any:
        """Return the model's logits, or what holds them."""
        return model(batch[0])

    def loss(self, output: Any, batch: Batch) -> torch.Tensor:
        """Return the mean cross entropy of logits [N, classes] against labels [N].

        GoogLeNet and Inception v3 return auxiliary logits too in training: their losses are added
        with the weights of their papers. Raises `UserError` for any other kind of output.
        """
        labels = batch[1]
        if isinstance(output, torch.Tensor):
            return functional.cross_entropy(output, labels)
        kind = type(output).__name__
        if kind not in _AUXILIARY_WEIGHTS:
            raise UserError(
                f"the model returned {kind}: make it return a tensor of logits, or return a "
                "workload with a loss of its own"
            )
        logits, *auxiliary = output
        loss = functional.cross_entropy(logits, labels)
        for extra in auxiliary:
            if extra is not None:
                loss = loss + _AUXILIARY_WEIGHTS[kind] * functional.cross_entropy(extra, labels)
        return loss
