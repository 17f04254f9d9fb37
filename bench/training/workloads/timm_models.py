"""timm's models by name: random weights, and images as the model was published with."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from bench.errors import UserError, one_line
from bench.training.workloads.base import ImageInput
from bench.training.workloads.images import DEFAULT_CLASSES, ImageClassification


def timm_workload(name: str, image_size: int | None = None) -> ImageClassification:
    """Return the workload of a timm model, whose name may end with a tag, as in `vgg16.tv_in1k`.

    Size, mean, standard deviation and classes are those of timm's default configuration. Raises
    `UserError` for a model whose own images are not square.
    """
    from timm.models import get_pretrained_cfg  # takes seconds

    try:
        published = get_pretrained_cfg(name)
    except RuntimeError:  # the part behind the dot
        raise UserError(f"arch='timm:{name}': timm has no such tag; leave it out") from None
    _, height, width = published.input_size  # of all of timm's, three channels
    if image_size is None and height != width:
        raise UserError(
            f"arch='timm:{name}': its own images are not square ({height} x {width}); "
            "give image_size"
        )
    size = image_size or height
    classes = published.num_classes or DEFAULT_CLASSES  # DINOv2's, for one, have none
    image = ImageInput(size, classes, published.mean, published.std)
    # Weights that depend on the size are made for it.
    is_resized = published.fixed_input_size and (size, size) != (height, width)
    options = {"img_size": size} if is_resized else {}
    return ImageClassification(image, partial(_build, name, image.classes, options))


def _build(name: str, classes: int, options: dict[str, Any]) -> torch.nn.Module:
    import timm

    try:
        model: torch.nn.Module = timm.create_model(
            name, pretrained=False, num_classes=classes, **options
        )
    except (MemoryError, torch.OutOfMemoryError):
        raise  # a result of its own, not a mistake
    except Exception as error:
        if not options:
            raise
        raise UserError(
            f"arch='timm:{name}' image_size={options['img_size']}: it cannot be built for that "
            f"size ({one_line(error)}); try another, or leave image_size out"
        ) from error
    return model
