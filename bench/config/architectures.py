"""Model names, checked without importing torch (which takes seconds)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Literal

from bench.config.hf_names import find_hf_model, names_a_file
from bench.config.package_sources import extra_folder, nearest, package_folder

_REGISTERED = re.compile(
    r"^@register_model\((?:name=)?[\"']?(\w*)[\"']?\)\n(?:@.*\n)*def (\w+)", re.M
)
_OF_TIMM = re.compile(r"^@register_model\ndef (\w+)", re.M)
_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_CALLABLE = re.compile(rf"{_DOTTED}:{_DOTTED}")


#: Where a model comes from: a package, or a callable of the user's own.
ModelSource = Literal["torchvision", "timm", "hf", "own"]
_PREFIXES: tuple[ModelSource, ...] = ("timm", "hf")


def split_arch(arch: str) -> tuple[ModelSource, str]:
    """Return where the model `arch` comes from, and its name there.

    `timm:convnext_tiny` is `convnext_tiny` of timm; a torchvision name has no prefix, and any other
    colon stands in a callable of the user's own, whose name is all of `arch`.
    """
    prefix, colon, name = arch.partition(":")
    if not colon:
        return "torchvision", arch
    return next(((known, name) for known in _PREFIXES if prefix == known), ("own", arch))


def arch_label(arch: str) -> str:
    """Return `arch` for use in a name: a path's slashes and a callable's colon are not in it."""
    parts = re.split(r"[^A-Za-z0-9._-]+", arch.replace(":", "."))
    return "-".join(part for part in (part.strip(".") for part in parts) if part)


def package_of(arch: str) -> str | None:
    """Return the package that holds all of the model `arch`; None where a file of the user's does.

    transformers' configurations are in the package unless they are named by a path.
    """
    source, name = split_arch(arch)
    is_file = source == "own" or (source == "hf" and names_a_file(name))
    return None if is_file else {"hf": "transformers"}.get(source, source)


def missing_package(arch: str) -> str | None:
    """Return what to install for `arch` to be built here, or None where nothing is missing."""
    source, _ = split_arch(arch)
    extra = {"timm": "timm", "hf": "transformers"}.get(source)
    if extra is None or package_folder(extra) is not None:
        return None
    return f"{extra} (pip install 'mlproject[{source}]')"


@cache
def torchvision_architectures() -> tuple[str, ...]:
    """Names of torchvision's classification models, read from its source.

    The same names as `torchvision.models.list_models(module=torchvision.models)`; empty where
    torchvision is not installed.
    """
    folder = package_folder("torchvision")
    if folder is None:
        return ()
    names = {
        match[1] or match[2]
        for source in (folder / "models").glob("*.py")
        for match in _REGISTERED.finditer(source.read_text(encoding="utf-8"))
    }
    return tuple(sorted(names))


@cache
def timm_architectures() -> tuple[str, ...]:
    """Names of timm's models, read from its source: those of `timm.list_models()`.

    Raises `ValueError` where timm is not installed.
    """
    sources = (extra_folder("timm", "timm") / "models").glob("*.py")
    names = {name for file in sources for name in _OF_TIMM.findall(file.read_text("utf-8"))}
    return tuple(sorted(names))


def check_architecture(arch: str) -> str:
    """Return `arch`; raise `ValueError`, with the nearest names, if it cannot name a model."""
    source, name = split_arch(arch)
    _CHECKS[source](name)
    return arch


def _check_own(name: str) -> None:
    if not _CALLABLE.fullmatch(name):
        raise ValueError("write your own model as module:callable, like mymodels.nets:tiny")


def _check_torchvision(arch: str) -> None:
    known = torchvision_architectures()
    if not known:
        raise ValueError("torchvision is not installed: run make setup")
    if arch not in known:
        hint = nearest(arch, known, "try resnet50, vgg16, mobilenet_v2")
        raise ValueError(f"not a torchvision classification model; {hint}")


def _check_timm(name: str) -> None:
    model = name.partition(".")[0]  # behind the dot: which weights, whose images it takes
    known = timm_architectures()
    if model not in known:
        hint = nearest(model, known, "try convnext_tiny, efficientnet_b0, vit_base_patch16_224")
        raise ValueError(f"not a model of timm; {hint}")


def _check_hf(name: str) -> None:
    find_hf_model(name)


_CHECKS: dict[ModelSource, Callable[[str], None]] = {
    "torchvision": _check_torchvision,
    "timm": _check_timm,
    "hf": _check_hf,
    "own": _check_own,
}
