"""A user's own model or training step: what `module:callable` returns."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, get_args

import torch

from bench.config import Sample
from bench.errors import UserError
from bench.training.workloads import Batch, ImageInput, Workload, blamed, described
from bench.training.workloads.images import DEFAULT_IMAGE_SIZE, ImageClassification

_STEP = ("model", "batch", "loss")
_SAMPLES = [name for name in get_args(Sample) if name != "step"]


def own_workload(arch: str, image_size: int | None = None) -> Workload:
    """Import `module:callable`, the current directory included, and call it without arguments.

    It returns a `torch.nn.Module` from images to logits, or a training step: an object with
    `model`, `batch(n)` and `loss(output, batch)`. Raises `UserError`.
    """
    made = _call(arch)
    if all(hasattr(made, name) for name in _STEP):
        return OwnStep(arch, made)
    if isinstance(made, torch.nn.Module):
        size = image_size or DEFAULT_IMAGE_SIZE
        return ImageClassification(ImageInput(size, _classes(arch, made, size)), lambda: made)
    raise UserError(
        f"arch={arch!r}: {arch.partition(':')[2]}() returned a {type(made).__name__}; make it "
        "return a torch.nn.Module, or an object with model, batch(n) and loss(output, batch)"
    )


class OwnStep(Workload):
    """A user's own step.

    A batch that is a tensor is given to the model as it is, a dictionary by its names; of a tuple
    the model is given the first part. What a sample is called, and how many tokens it has, is what
    the object says under `sample` and `tokens_per_sample`.
    """

    def __init__(self, arch: str, step: Any) -> None:
        self._arch = arch
        self.step = step
        self.sample = getattr(step, "sample", "sample")
        self.tokens_per_sample = getattr(step, "tokens_per_sample", None)
        if not isinstance(step.model, torch.nn.Module):
            raise UserError(
                f"arch={arch!r}: its model is a {type(step.model).__name__}; "
                "make it a torch.nn.Module"
            )
        if self.sample not in _SAMPLES:
            raise UserError(f"arch={arch!r}: sample={self.sample!r}: give {', '.join(_SAMPLES)}")
        tokens = self.tokens_per_sample
        if tokens is not None and (not isinstance(tokens, int) or tokens < 1):
            raise UserError(
                f"arch={arch!r}: tokens_per_sample={tokens!r}: give a whole number above 0, or None"
            )

    def build(self) -> torch.nn.Module:
        """Return the model in training mode."""
        model: torch.nn.Module = self.step.model
        return model.train()

    def batch(self, samples: int) -> Batch:
        """Return what the user's `batch` makes: a tensor, a tuple, a list or a dictionary."""
        with blamed(f"arch={self._arch!r}: batch({samples}) raised"):
            batch = self.step.batch(samples)
        if not isinstance(batch, torch.Tensor | tuple | list | dict):
            raise UserError(
                f"arch={self._arch!r}: batch({samples}) returned a {type(batch).__name__}; "
                "make it return a tensor, a tuple or a dictionary"
            )
        return batch

    def output(self, model: Callable[..., Any], batch: Batch) -> Any:
        """Return what the model makes of the batch."""
        if isinstance(batch, dict):
            return model(**batch)
        return model(batch if isinstance(batch, torch.Tensor) else batch[0])

    def loss(self, output: Any, batch: Batch) -> torch.Tensor:
        """Return what the user's `loss` makes."""
        loss = self.step.loss(output, batch)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise UserError(
                f"arch={self._arch!r}: loss() returned {_kind(loss)}; "
                "make it return a tensor of one number"
            )
        return loss


def _classes(arch: str, model: torch.nn.Module, size: int) -> int:
    """Return how many logits `model` gives an image.

    A model that cannot run where it was built, such as one of kernels for GPUs, says it by
    `num_classes`.
    """
    parameter = next(model.parameters(), torch.empty(0))
    try:
        # Of one image, since a batch norm in evaluation does not mind, and leaving no trace.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            logits = model.eval()(torch.randn(1, 3, size, size).to(parameter.device))
    except (MemoryError, torch.OutOfMemoryError):
        raise  # a result of its own, not a mistake
    except Exception as error:
        stated = getattr(model, "num_classes", None)
        if isinstance(stated, int) and stated > 0:
            return stated
        raise UserError(
            f"arch={arch!r}: its model cannot take an image of {size} pixels a side "
            f"({described(error)}); give another image_size, give the model num_classes if it "
            f"does not run on {parameter.device.type}, or return an object with model, batch(n) "
            "and loss(output, batch)"
        ) from error
    if not isinstance(logits, torch.Tensor) or logits.dim() != 2:
        raise UserError(
            f"arch={arch!r}: its model returned {_kind(logits)}: make it return logits of "
            "shape (images, classes), or return an object with model, batch(n) and "
            "loss(output, batch)"
        )
    return int(logits.shape[1])


def _call(arch: str) -> Any:
    module_name, _, attribute = arch.partition(":")
    module = _import(arch, module_name)
    try:
        factory = reduce(getattr, attribute.split("."), module)
    except AttributeError:
        remedy = _hidden(module_name) or "check the spelling"
        raise UserError(
            f"arch={arch!r}: module {module_name} has no {attribute!r}; {remedy}"
        ) from None
    if not callable(factory):
        raise UserError(f"arch={arch!r}: {attribute} is a {type(factory).__name__}, not a callable")
    with blamed(f"arch={arch!r}: {attribute}() raised"):
        return factory()


def _import(arch: str, module_name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:  # last: no file of the user's takes the place of another module
        sys.path.append(here)
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent and f"{module_name}.".startswith(f"{absent}."):
            remedy = _hidden(absent) or "run from the folder that holds it, or install it"
            raise UserError(f"arch={arch!r}: no module named {absent!r} here; {remedy}") from None
        raise UserError(f"arch={arch!r}: importing it raised {described(error)}") from error


def _hidden(module_name: str) -> str | None:
    """What to do where another module of that name was taken for the user's own, or None."""
    name = module_name.partition(".")[0]
    taken = getattr(sys.modules.get(name), "__file__", None)
    own = Path(name) if Path(name).is_dir() else Path(f"{name}.py")
    if taken is None or not own.exists() or Path(taken).resolve().is_relative_to(Path.cwd()):
        return None
    return f"{own} here has the name of another module, {taken}, which goes first; rename yours"


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
