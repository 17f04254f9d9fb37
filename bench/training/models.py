"""Models by torchvision name or `module:callable`, and the loss that trains them."""

from __future__ import annotations

import importlib
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from bench.errors import UserError, one_line

#: Classes of ImageNet-1k: every torchvision name is built with this many outputs.
NUM_CLASSES = 1000

#: Inception v3 was published for 299 pixels a side (arXiv 1512.00567), all others are used at 224.
_IMAGE_SIZES = {"inception_v3": 299}
_DEFAULT_IMAGE_SIZE = 224

#: These two warn and initialise slowly unless asked; torch's own initialisation is the coming
#: default, as their warning says.
_INIT_WEIGHTS_ASKED = frozenset({"googlenet", "inception_v3"})

#: Weight of each auxiliary classifier's loss, by the name of the outputs: 0.3 in section 5 of the
#: GoogLeNet paper (arXiv 1409.4842); 0.4 for Inception v3 in PyTorch's fine-tuning tutorial.
_AUXILIARY_WEIGHTS = {"GoogLeNetOutputs": 0.3, "InceptionOutputs": 0.4}


def default_image_size(arch: str) -> int:
    """Return the pixels a side that `arch` is trained at."""
    return _IMAGE_SIZES.get(arch, _DEFAULT_IMAGE_SIZE)


def build_model(arch: str) -> torch.nn.Module:
    """Return a freshly initialised model in training mode.

    A torchvision name has 1000 classes and no pretrained weights; `module:callable` is imported,
    the current directory included, and called without arguments. Raises `UserError`.
    """
    model = _call_users(arch) if ":" in arch else _torchvision_model(arch)
    return model.train()


def training_loss(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of logits (batch, classes) against labels (batch,).

    GoogLeNet and Inception v3 return auxiliary logits too in training: their losses are added with
    the weights of their papers. Raises `UserError` for any other kind of output.
    """
    if isinstance(outputs, torch.Tensor):
        return functional.cross_entropy(outputs, labels)
    kind = type(outputs).__name__
    if kind not in _AUXILIARY_WEIGHTS:
        raise UserError(f"the model returned {kind}: make it return a tensor of logits")
    logits, *auxiliary = outputs
    loss = functional.cross_entropy(logits, labels)
    for extra in auxiliary:
        if extra is not None:
            loss = loss + _AUXILIARY_WEIGHTS[kind] * functional.cross_entropy(extra, labels)
    return loss


def _torchvision_model(arch: str) -> torch.nn.Module:
    from torchvision import models  # here, because a user's own model may not need it

    try:
        builder = models.get_model_builder(arch)
    except ValueError:
        raise UserError(f"arch={arch!r}: not a torchvision model; try resnet50") from None
    options = {"init_weights": False} if arch in _INIT_WEIGHTS_ASKED else {}
    model: torch.nn.Module = builder(weights=None, num_classes=NUM_CLASSES, **options)
    return model


def _call_users(arch: str) -> torch.nn.Module:
    module_name, _, attribute = arch.partition(":")
    module = _import(arch, module_name)
    try:
        factory = reduce(getattr, attribute.split("."), module)
    except AttributeError:
        raise UserError(
            f"arch={arch!r}: module {module_name} has no {attribute!r}; check the spelling"
        ) from None
    if not callable(factory):
        raise UserError(f"arch={arch!r}: {attribute} is a {type(factory).__name__}, not a callable")
    try:
        model = factory()
    except (MemoryError, torch.OutOfMemoryError):
        raise  # a result of its own, not a mistake
    except Exception as error:
        raise UserError(f"arch={arch!r}: {attribute}() raised {_described(error)}") from error
    if not isinstance(model, torch.nn.Module):
        raise UserError(
            f"arch={arch!r}: {attribute}() returned a {type(model).__name__}; "
            "make it return a torch.nn.Module"
        )
    return model


def _import(arch: str, module_name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:  # as `python -m` has it, and the installed command has not
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent and f"{module_name}.".startswith(f"{absent}."):
            raise UserError(
                f"arch={arch!r}: no module named {absent!r} here; "
                "run from the folder that holds it, or install it"
            ) from None
        raise UserError(f"arch={arch!r}: importing it raised {_described(error)}") from error


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error)}"
