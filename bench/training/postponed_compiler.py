"""torch's compiler, imported by what compiles and by nothing else.

`torch._dynamo` and `torch._inductor` import over 1,000 modules and take as long as torch itself. A
plain training step imports them too: torchvision takes a function for later, the first use of an
optimizer asks to be left alone, and torch's profiler looks at a setting. So does a fake copy of a
tensor, which may have to name what its shape comes from. Here these few questions are answered
without them. Whatever else is asked of the packages, or of a module in them, imports them as if
nothing had been answered before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_loader
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch._guards import Source

F = TypeVar("F", bound=Callable[..., Any])

_DYNAMO, _INDUCTOR = "torch._dynamo", "torch._inductor"
#: Modules of settings, which do without the rest of their package.
_SETTINGS = {
    _DYNAMO: (f"{_DYNAMO}.config",),
    _INDUCTOR: (f"{_INDUCTOR}.config", f"{_INDUCTOR}.custom_graph_pass"),
}
#: Where torch keeps, on a function, what the compiler made of it (`torch._compile`).
_MADE_OF_IT = "__dynamo_disable"


def postpone_compiler() -> None:
    """Import torch, and its compiler only once something asks for more than is answered here."""
    for name in _SETTINGS:
        spec = find_spec(name)
        if name in sys.modules or spec is None or spec.loader is None:
            continue
        package = module_from_spec(spec)
        package.__class__ = _PostponedPackage
        sys.modules[name] = package
        setattr(torch, name.removeprefix("torch."), package)
        sys.meta_path.insert(0, _Postponed(package, spec.loader))


class _Postponed(MetaPathFinder, Loader):
    """Executes a package at the first import of one of its modules, but for those of settings."""

    def __init__(self, package: ModuleType, loader: Loader) -> None:
        self.package = package
        self._loader = loader

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = self.package.__name__
        if not name.startswith(f"{package}.") or name in _SETTINGS[package]:
            return None
        if name in _MODULES:
            return spec_from_loader(name, self)
        self.execute()
        module = sys.modules.get(name)
        return None if module is None else spec_from_loader(name, _Executed(module))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return what stands for a module of which torch needs little."""
        return _PostponedModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is."""

    def execute(self) -> None:
        """Do what the first import of the package would have done."""
        if self not in sys.meta_path:
            return
        sys.meta_path.remove(self)
        self.package.__class__ = ModuleType
        for name in _MODULES:
            if isinstance(sys.modules.get(name), _PostponedModule):
                del sys.modules[name]
                vars(sys.modules[_DYNAMO]).pop(name.removeprefix(f"{_DYNAMO}."), None)
        while _left_alone:
            vars(_left_alone.pop()).pop(_MADE_OF_IT, None)
        self._loader.exec_module(self.package)


class _Executed(Loader):
    """Gives an import the module that was imported with its package just now."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back, in whose place the import put another."""
        module.__spec__ = self._spec


def _execute(name: str) -> ModuleType:
    """Return the package, executed."""
    package = sys.modules[name]
    for finder in list(sys.meta_path):
        if isinstance(finder, _Postponed) and finder.package is package:
            finder.execute()
    return package


#: Functions that asked to be left alone; a compiler that comes later shall be asked again.
_left_alone: list[Callable[..., Any]] = []


def _disable(function: F, recursive: bool = True, **_: Any) -> F:
    """Stand for `torch._dynamo.disable` where nothing is compiled."""
    _left_alone.append(function)
    return function


def _graph_break(msg: str = "") -> None:
    """Stand for `torch._dynamo.graph_break`, which does nothing outside a graph."""


def _is_compile_supported(device_type: str) -> bool:
    """Ask `torch._dynamo.utils`, imported now."""
    return bool(_execute(_DYNAMO).utils.is_compile_supported(device_type))


def _constant_source(source_name: str) -> Source:
    """Stand for `ConstantSource`: where the shape of a tensor is known, its name is not asked."""
    return Source()


class _CompilersSource(Source):
    """Stands for the sources that only the compiler gives."""


#: Modules of which torch needs so much while nothing is compiled.
_MODULES: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    # torchvision takes it for later
    f"{_DYNAMO}.utils": {"is_compile_supported": _is_compile_supported},
    # fake tensors
    f"{_DYNAMO}.source": {
        "ConstantSource": _constant_source,
        **dict.fromkeys(
            ("RandomValueSource", "FloatTensorSource", "CallMethodItemSource"), _CompilersSource
        ),
    },
}

_ANSWERS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    _DYNAMO: {"disable": _disable, "graph_break": _graph_break},
    _INDUCTOR: {},
}


class _PostponedPackage(ModuleType):
    """A package before it is executed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _ANSWERS[self.__name__]:
            return _ANSWERS[self.__name__][name]
        if f"{self.__name__}.{name}" in _SETTINGS[self.__name__]:
            return import_module(f"{self.__name__}.{name}")
        return getattr(_execute(self.__name__), name)


class _PostponedModule(ModuleType):
    """A module of `torch._dynamo` before that is executed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _MODULES[self.__name__]:
            return _MODULES[self.__name__][name]
        _execute(_DYNAMO)
        return getattr(import_module(self.__name__), name)
