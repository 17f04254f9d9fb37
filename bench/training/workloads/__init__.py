"""What is trained: a model, the batches that it takes, and its loss; found by its `--arch`.

Models of torchvision and timm by name, and a user's own model or step; those of transformers
stand in a module of their own.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from torch.nn import functional

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


@dataclass(frozen=True)
class Workload:
    """What a training step needs to know of what it trains.

    `image` says what real images are made into; a workload without it trains on random batches
    alone. `seq_len` is there where `--seq-len` decides it. A user's own step is kept as `step`.
    """

    sample: Sample
    #: Returns the model, its weights random, in training mode. Raises `UserError`.
    build: Callable[[], torch.nn.Module]
    #: Returns a random batch, drawn by torch's global generators on its default device.
    batch: Callable[[int], Batch]
    #: Returns what a model, which may be wrapped or compiled, makes of a batch.
    output: Callable[[Callable[..., Any], Batch], Any]
    #: Returns the loss, a tensor of one number. Raises `UserError` for an unusable output.
    loss: Callable[[Any, Batch], torch.Tensor]
    image: ImageInput | None = None
    seq_len: int | None = None
    tokens_per_sample: int | None = None
    step: Any = None


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
        makers = {"timm": timm_workload, "own": own_workload}
        workload = makers.get(source, torchvision_workload)(name, image_size)
    if image_size is not None and workload.image is None:
        raise UserError(f"image_size={image_size}: {arch} takes no --image-size; leave it out")
    if seq_len is not None and workload.seq_len is None:
        raise UserError(f"seq_len={seq_len}: {arch} takes no --seq-len; leave it out")
    return workload


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


def classifier(image: ImageInput, build: Callable[[], torch.nn.Module]) -> Workload:
    """Return the training of a model from images to logits; a batch is images and labels."""
    batch = partial(random_images, image)
    return Workload("image", lambda: build().train(), batch, _of_first, classifier_loss, image)


def _of_first(model: Callable[..., Any], batch: Batch) -> Any:
    return model(batch[0])


def classifier_loss(output: Any, batch: Batch) -> torch.Tensor:
    """Return the mean cross entropy of logits [N, classes] against labels, int64 [N].

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


def torchvision_workload(name: str, image_size: int | None = None) -> Workload:
    """Return the workload of a torchvision model; images have its own size by default."""
    size = image_size or _IMAGE_SIZES.get(name, DEFAULT_IMAGE_SIZE)
    return classifier(ImageInput(size, DEFAULT_CLASSES), partial(_build_torchvision, name))


def _build_torchvision(name: str) -> torch.nn.Module:
    from torchvision import models  # here, because a user's own model may not need it

    try:
        builder = models.get_model_builder(name)
    except ValueError:
        raise UserError(f"arch={name!r}: not a torchvision model; try resnet50") from None
    options = {"init_weights": False} if name in _INIT_WEIGHTS_ASKED else {}
    model: torch.nn.Module = builder(weights=None, num_classes=DEFAULT_CLASSES, **options)
    return model


def timm_workload(name: str, image_size: int | None = None) -> Workload:
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
    return classifier(image, partial(_build_timm, name, image.classes, options))


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


_STEP = ("model", "batch", "loss")
_SAMPLES = [name for name in get_args(Sample) if name != "step"]


def own_workload(arch: str, image_size: int | None = None) -> Workload:
    """Import `module:callable`, the current directory included, and call it without arguments.

    It returns a `torch.nn.Module` from images to logits, or a training step: an object with
    `model`, `batch(n)` and `loss(output, batch)`. Raises `UserError`.
    """
    made = _call(arch)
    if all(hasattr(made, name) for name in _STEP):
        return own_step(arch, made)
    if isinstance(made, torch.nn.Module):
        size = image_size or DEFAULT_IMAGE_SIZE
        return classifier(ImageInput(size, _classes(arch, made, size)), lambda: made)
    raise UserError(
        f"arch={arch!r}: {arch.partition(':')[2]}() returned a {type(made).__name__}; make it "
        "return a torch.nn.Module, or an object with model, batch(n) and loss(output, batch)"
    )


def own_step(arch: str, step: Any) -> Workload:
    """Return the training of a user's own step.

    A batch that is a tensor is given to the model as it is, a dictionary by its names; of a tuple
    the model is given the first part. What a sample is called, and how many tokens it has, is what
    the object says under `sample` and `tokens_per_sample`.
    """
    sample: Any = getattr(step, "sample", "sample")
    tokens: Any = getattr(step, "tokens_per_sample", None)
    if not isinstance(step.model, torch.nn.Module):
        kind = type(step.model).__name__
        raise UserError(f"arch={arch!r}: its model is a {kind}; make it a torch.nn.Module")
    if sample not in _SAMPLES:
        raise UserError(f"arch={arch!r}: sample={sample!r}: give {', '.join(_SAMPLES)}")
    if tokens is not None and (not isinstance(tokens, int) or tokens < 1):
        raise UserError(
            f"arch={arch!r}: tokens_per_sample={tokens!r}: give a whole number above 0, or None"
        )
    # No closures over the step: a copy of the workload has a copy of it.
    return Workload(
        sample,
        partial(_own_model, step),
        partial(_own_batch, arch, step),
        _by_form,
        partial(_own_loss, arch, step),
        tokens_per_sample=tokens,
        step=step,
    )


def _own_model(step: Any) -> torch.nn.Module:
    model: torch.nn.Module = step.model
    return model.train()


def _own_batch(arch: str, step: Any, samples: int) -> Batch:
    with blamed(f"arch={arch!r}: batch({samples}) raised"):
        batch = step.batch(samples)
    if not isinstance(batch, torch.Tensor | tuple | list | dict):
        raise UserError(
            f"arch={arch!r}: batch({samples}) returned a {type(batch).__name__}; "
            "make it return a tensor, a tuple or a dictionary"
        )
    return batch


def _by_form(model: Callable[..., Any], batch: Batch) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    return model(batch if isinstance(batch, torch.Tensor) else batch[0])


def _own_loss(arch: str, step: Any, output: Any, batch: Batch) -> torch.Tensor:
    loss = step.loss(output, batch)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise UserError(
            f"arch={arch!r}: loss() returned {_kind(loss)}; make it return a tensor of one number"
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
        raise UserError(
            f"arch={arch!r}: module {module_name} has no {attribute!r}; check the spelling, and "
            f"rename yours if this is another's: {getattr(module, '__file__', None)}"
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
            raise UserError(
                f"arch={arch!r}: no module named {absent!r} here; run from the folder that holds "
                "it, install it, or rename it if another module has its name"
            ) from None
        raise UserError(f"arch={arch!r}: importing it raised {described(error)}") from error


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
