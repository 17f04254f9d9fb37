"""Model names, checked without importing torch (which takes seconds)."""

from __future__ import annotations

import difflib
import importlib.util
import re
from functools import cache
from pathlib import Path

_REGISTERED = re.compile(
    r"^@register_model\((?:name=)?[\"']?(\w*)[\"']?\)\n(?:@.*\n)*def (\w+)", re.M
)
_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_CALLABLE = re.compile(rf"{_DOTTED}:{_DOTTED}")


@cache
def torchvision_architectures() -> tuple[str, ...]:
    """Names of torchvision's classification models, read from its source.

    The same names as `torchvision.models.list_models(module=torchvision.models)`; empty where
    torchvision is not installed.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        return ()
    folder = Path(spec.submodule_search_locations[0]) / "models"
    names = {
        match[1] or match[2]
        for source in folder.glob("*.py")
        for match in _REGISTERED.finditer(source.read_text(encoding="utf-8"))
    }
    return tuple(sorted(names))


def check_architecture(arch: str) -> str:
    """Return `arch`; raise `ValueError`, with the nearest names, if it cannot name a model."""
    if ":" in arch:
        if not _CALLABLE.fullmatch(arch):
            raise ValueError("write your own model as module:callable, like mymodels.nets:tiny")
        return arch
    known = torchvision_architectures()
    if not known:
        raise ValueError("torchvision is not installed: run make setup")
    if arch not in known:
        near = difflib.get_close_matches(arch.lower(), known, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "try resnet50, vgg16, mobilenet_v2"
        raise ValueError(f"not a torchvision classification model; {hint}")
    return arch
