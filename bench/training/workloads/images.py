"""Models that classify images: torchvision's and timm's, by name, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from bench.errors import UserError, one_line
from bench.training.workloads import Batch, ImageInput, Workload

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


#: Inception v3 was published for 299 pixels a side (arXiv 1512.00567), all others are used at 224.
_IMAGE_SIZES = {"inception_v3": 299}

#: These two warn and initialise slowly unless asked; torch's own initialisation is the coming
#: default, as their warning says.
_INIT_WEIGHTS_ASKED = frozenset({"googlenet", "inception_v3"})


def torchvision_workload(name: str, image_size: int | None = None) -> ImageClassification:
    """Return the workload of a torchvision model; images have its own size by default."""
    size = image_size or _IMAGE_SIZES.get(name, DEFAULT_IMAGE_SIZE)
    return ImageClassification(ImageInput(size, DEFAULT_CLASSES), partial(_build_torchvision, name))


def _build_torchvision(name: str) -> torch.nn.Module:
    from torchvision import models  # here, because a user's own model may not need it

    try:
        builder = models.get_model_builder(name)
    except ValueError:
        raise UserError(f"arch={name!r}: not a torchvision model; try resnet50") from None
    options = {"init_weights": False} if name in _INIT_WEIGHTS_ASKED else {}
    model: torch.nn.Module = builder(weights=None, num_classes=DEFAULT_CLASSES, **options)
    return model


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
    return ImageClassification(image, partial(_build_timm, name, image.classes, options))


def _build_timm(name: str, classes: int, options: dict[str, Any]) -> torch.nn.Module:
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
