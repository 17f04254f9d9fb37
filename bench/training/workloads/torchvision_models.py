"""torchvision's classification models, by name."""

from __future__ import annotations

from functools import partial

import torch

from bench.errors import UserError
from bench.training.workloads.base import ImageInput
from bench.training.workloads.images import (
    DEFAULT_CLASSES,
    DEFAULT_IMAGE_SIZE,
    ImageClassification,
)

#: Inception v3 was published for 299 pixels a side (arXiv 1512.00567), all others are used at 224.
_IMAGE_SIZES = {"inception_v3": 299}

#: These two warn and initialise slowly unless asked; torch's own initialisation is the coming
#: default, as their warning says.
_INIT_WEIGHTS_ASKED = frozenset({"googlenet", "inception_v3"})


def torchvision_workload(name: str, image_size: int | None = None) -> ImageClassification:
    """Return the workload of a torchvision model; images have its own size by default."""
    size = image_size or _IMAGE_SIZES.get(name, DEFAULT_IMAGE_SIZE)
    return ImageClassification(ImageInput(size, DEFAULT_CLASSES), partial(_build, name))


def _build(name: str) -> torch.nn.Module:
    from torchvision import models  # here, because a user's own model may not need it

    try:
        builder = models.get_model_builder(name)
    except ValueError:
        raise UserError(f"arch={name!r}: not a torchvision model; try resnet50") from None
    options = {"init_weights": False} if name in _INIT_WEIGHTS_ASKED else {}
    model: torch.nn.Module = builder(weights=None, num_classes=DEFAULT_CLASSES, **options)
    return model
