"""The versions that decide how fast a step runs. The only torch here is inside functions."""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from bench.machine.probes import Gathered, UnknownFactError, gather, value_or_none

#: Beside torch and torchvision; read from their metadata, without importing them.
_PACKAGES = ("mlflow", "numpy", "pillow", "triton")


def software_facts() -> Gathered:
    """Return `python`, `torch`, `torchvision`, `packages`, `cuda` and `cudnn`."""
    import torch

    versions = gather({name: partial(_installed, name) for name in _PACKAGES})
    known = {name: found for name, found in versions.values.items() if found is not None}
    always = {
        "python": platform.python_version(),
        # By its metadata too, which can be compared without importing torch; the CUDA that it was
        # built for, which torch's own version may add, is a fact of its own.
        "torch": value_or_none(partial(_installed, "torch")) or str(torch.__version__),
        "torchvision": value_or_none(partial(_installed, "torchvision")) or "not installed",
        "packages": known,
    }
    return Gathered(always, versions.missing) | gather({"cuda": _cuda, "cudnn": _cudnn})


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise UnknownFactError("not installed") from None


def _cuda() -> str:
    import torch

    if torch.version.cuda is None:
        raise UnknownFactError("this build of torch has no CUDA")
    return str(torch.version.cuda)


def _cudnn() -> str:
    import torch

    cudnn_version: Callable[[], int | None] = torch.backends.cudnn.version
    number = cudnn_version()
    if number is None:
        raise UnknownFactError("this build of torch has no cuDNN")
    return str(number)
