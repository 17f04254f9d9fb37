"""What is trained: a model, the batches that it takes, and its loss; found by its `--arch`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from bench.config import RunConfig, Sample, split_arch
from bench.errors import UserError, one_line

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


@contextmanager
def blamed(what: str) -> Iterator[None]:
    """Raise `UserError`, `what` and the error, for any error but that memory ran out."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise  # a result of its own, not a mistake
    except (Exception, SystemExit) as error:
        raise UserError(f"{what} {described(error)}") from error


def described(error: BaseException) -> str:
    """Return the kind of an error and its words, in one line."""
    if isinstance(error, SystemExit):
        return f"SystemExit: it ended the process with sys.exit({error.code!r})"
    return f"{type(error).__name__}: {one_line(error)}"


def workload_of(config: RunConfig) -> Workload:
    """Return the workload that `config` trains. Raises as `find_workload`."""
    return find_workload(
        config.arch,
        image_size=None if config.image_size == "auto" else config.image_size,
        seq_len=None if config.seq_len == "auto" else config.seq_len,
    )


def find_workload(
    arch: str, *, image_size: int | None = None, seq_len: int | None = None
) -> Workload:
    """Return the workload of `arch`; pixels a side and tokens are the model's own by default.

    A user's own callable is called, so torch's generators must be seeded before. Raises
    `UserError`, also for a size that the model has no use for.
    """
    # What a family of models needs is imported where one of them is asked for.
    source, name = split_arch(arch)
    workload: Workload
    if source == "hf":
        from bench.training.workloads.hf_models import hf_workload

        workload = hf_workload(name, image_size=image_size, seq_len=seq_len)
    else:
        from bench.training.workloads import images

        makers = {"timm": images.timm_workload, "own": images.own_workload}
        workload = makers.get(source, images.torchvision_workload)(name, image_size)
    if image_size is not None and workload.image is None:
        raise UserError(f"image_size={image_size}: {arch} takes no --image-size; leave it out")
    if seq_len is not None and workload.seq_len is None:
        raise UserError(f"seq_len={seq_len}: {arch} takes no --seq-len; leave it out")
    return workload
