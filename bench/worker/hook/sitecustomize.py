"""Python imports this at its start: it waits for torch, then for the first step of an optimizer.

It runs in every Python of a watched script, whatever that is, and must not be seen. It imports the
standard library alone, and this project only in the process that trains. There the project's
package `bench` has that name only while it is needed: the script may have one of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from functools import reduce, wraps
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_PROJECT = str(_HERE.parents[2])


class _Ours:
    """For a block this project's modules have their names, which are the script's otherwise."""

    def __init__(self) -> None:
        self._modules: dict[str, Any] = {}

    def __enter__(self) -> None:
        self._theirs = self._taken()
        sys.modules.update(self._modules)
        sys.path.insert(0, _PROJECT)

    def __exit__(self, *error: object) -> None:
        sys.path.remove(_PROJECT)
        self._modules = self._taken()
        sys.modules.update(self._theirs)

    def _taken(self) -> dict[str, Any]:
        names = [name for name in sys.modules if name.partition(".")[0] == "bench"]
        return {name: sys.modules.pop(name) for name in names}


class _Hook:
    """A finder of modules that finds none: it only looks whether torch has optimizers yet.

    Then it is taken out, and waits in torch's own hooks. Of the processes of a machine the first of
    rank 0 in which an optimizer steps is measured; one that it forks is not.
    """

    def __init__(self, folder: Path, step_of: str) -> None:
        self._folder, self._ours = folder, _Ours()
        self._meter: Any = None
        self._is_idle = self._is_uncompiled = False
        self._act: Any = None
        self._module, _, self._function = step_of.partition(":")
        sys.meta_path.insert(0, self)
        if step_of:
            sys.setprofile(self._look_for_function)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Find nothing."""
        optimizers: Any = sys.modules.get("torch.optim.optimizer")
        register = getattr(optimizers, "register_optimizer_step_post_hook", None)
        if register is not None and self in sys.meta_path:
            sys.meta_path.remove(self)
            register(self._after)
            optimizers.register_optimizer_step_pre_hook(self._before)

    def _look_for_function(self, frame: Any, event: str, _: object) -> None:
        """Put a hook around the function of --step-of when it is called for the first time."""
        *outer, name = self._function.split(".")
        names = frame.f_code.co_name, frame.f_globals.get("__name__")
        if event != "call" or names != (name, self._module):
            return
        sys.setprofile(None)
        holder = reduce(getattr, outer, sys.modules[self._module])
        function = getattr(holder, name)

        @wraps(function)
        def stepping(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self._call("stepped")
            return result

        for place in [holder, *sys.modules.values()]:  # other modules may have imported it
            if getattr(place, name, None) is function:
                setattr(place, name, stepping)

    def _before(self, *about: Any) -> None:
        if self._meter is not None:
            self._meter.before(*about)

    def _after(self, *about: Any) -> None:
        self._call("after", *about)

    def _call(self, name: str, *about: Any) -> None:
        """Act; a script may compile its whole step, the optimizer's and so this hook too."""
        if not self._is_idle:
            dynamo = sys.modules.get("torch._dynamo")
            if self._act is None or (dynamo is not None and not self._is_uncompiled):
                self._is_uncompiled = dynamo is not None
                self._act = dynamo.disable(self._do) if dynamo is not None else self._do
            self._act(name, *about)

    def _do(self, name: str, *about: Any) -> None:
        """Whatever goes wrong here, the script goes on."""
        if self._meter is None and not self._begins():
            return
        try:
            with contextlib.nullcontext() if self._meter.is_timing else self._ours:
                getattr(self._meter, name)(*about)
            self._is_idle = self._meter.has_ended
        except Exception as error:
            self._is_idle = True
            print(f"mlproject: no more is measured: {error!r}", file=sys.stderr)

    def _begins(self) -> bool:
        """Measure in this process, unless another one does."""
        self._is_idle = True
        if int(os.environ.get("LOCAL_RANK", "0")) or _rank():
            return False
        try:
            (self._folder / "claimed").touch(exist_ok=False)
            with self._ours:
                from bench.records.folders import RecordFolder
                from bench.worker.script import ScriptMeter

                self._meter = ScriptMeter(RecordFolder(self._folder))
        except ImportError as error:
            text = f"{error}; install mlproject in the environment of {sys.executable}"
            (self._folder / "claimed").write_text(text)
        except OSError:
            pass
        else:
            self._is_idle = False
            atexit.register(self._close)
        return not self._is_idle

    def _close(self) -> None:
        self._is_idle = False
        self._call("close", getattr(sys, "last_exc", None) or getattr(sys, "last_value", None))

    def _forked(self) -> None:
        self._is_idle, self._meter = self._meter is not None, None


def _rank() -> int:
    """The rank, where the script's own code has started its processes."""
    distributed: Any = sys.modules.get("torch.distributed")
    is_one = distributed and distributed.is_available() and distributed.is_initialized()
    return int(distributed.get_rank()) if is_one and "LOCAL_RANK" not in os.environ else 0


def _chain() -> None:
    """Import the `sitecustomize` that Python would have found without this one."""
    sys.path[:] = [path for path in sys.path if not path or Path(path).resolve() != _HERE]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


if _record := os.environ.get("MLPROJECT_WATCH"):
    with contextlib.suppress(OSError):
        (Path(_record) / "hooked").touch()
        _Hook(Path(_record), os.environ.get("MLPROJECT_STEP_OF", ""))
_chain()
