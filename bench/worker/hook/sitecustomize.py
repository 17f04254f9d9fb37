"""Python imports this at its start: it waits for torch, then for the first step of an optimizer.

It runs in every Python of a watched script, whatever that is, and must not be seen. It imports the
standard library alone, and this project only in the process that trains. There the project's
package `bench` has that name only while it is needed: the script may have one of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import sys
import time
from functools import reduce, wraps
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_PROJECT = str(_HERE.parents[2])
_OF_FUNCTION = 2  # a flag of code: CO_NEWLOCALS, which the body of a class lacks


class _Ours:
    """For a block this project's modules have their names, which are the script's otherwise.

    The clocks are Python's own again, and what it could import at its start it can.
    """

    def __init__(self) -> None:
        self._modules: dict[str, Any] = {}
        self._path = [*sys.path]
        self._clocks = self._clocks_now()

    def __enter__(self) -> None:
        self._theirs = self._taken(), self._clocks_now(), sys.path
        sys.modules.update(self._modules)
        sys.path = [_PROJECT, *sys.path, *self._path]
        vars(time).update(self._clocks)

    def __exit__(self, *error: object) -> None:
        modules, clocks, sys.path = self._theirs
        vars(time).update(clocks)
        self._modules = self._taken()
        sys.modules.update(modules)

    def _clocks_now(self) -> dict[str, Any]:
        return {name: getattr(time, name) for name in ("perf_counter", "monotonic", "time")}

    def _taken(self) -> dict[str, Any]:
        names = [name for name in [*sys.modules] if name.partition(".")[0] == "bench"]
        return {name: sys.modules.pop(name) for name in names}


class _Hook:
    """A finder of modules that finds none: it only looks whether torch has optimizers yet.

    Then it is taken out, and waits in torch's own hooks. Of the processes of a machine the first of
    rank 0 in which an optimizer steps is measured. Once that has ended without having been measured
    to the end, or has replaced itself, the next is.
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
        code = frame.f_code
        names = code.co_name, frame.f_globals.get("__name__")
        if event != "call" or names != (name, self._module):
            return
        if sys.getprofile() == self._look_for_function:  # the script may have set its own
            sys.setprofile(None)
        asked, self._function = self._function, ""
        try:
            self._stand_around(reduce(getattr, outer, sys.modules[self._module]), name)
        except Exception:
            what = "function" if code.co_flags & _OF_FUNCTION else "class"
            called = getattr(code, "co_qualname", name)
            self._note(
                f"step-of={self._module}:{asked}: {asked} is no function of {self._module}, but "
                f"the {what} {called}; give module:function, or module:Class.method, of what is "
                "not made within a function"
            )

    def _stand_around(self, holder: Any, name: str) -> None:
        from inspect import getattr_static

        defined = getattr_static(holder, name)
        is_wrapped = isinstance(defined, staticmethod | classmethod)
        function = getattr(defined, "__func__", defined)
        if not callable(function):
            raise TypeError(name)

        @wraps(function)
        def stepping(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self._call("stepped")
            return result

        setattr(holder, name, type(defined)(stepping) if is_wrapped else stepping)
        for place in [*sys.modules.values()]:  # other modules may have imported it
            if getattr(place, "__dict__", {}).get(name) is defined:  # a lazy one imports nothing
                setattr(place, name, stepping)

    def _before(self, *about: Any) -> None:
        if self._meter is not None:
            self._call("before", *about)

    def _after(self, *about: Any) -> None:
        self._call("after", *about)

    def _call(self, name: str, *about: Any) -> None:
        """Act; a script may compile its whole step, the optimizer's and so this hook too."""
        if not self._is_idle:
            disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
            if self._act is None or (disable is not None and not self._is_uncompiled):
                self._is_uncompiled = disable is not None
                self._act = disable(self._do) if disable is not None else self._do
            self._act(name, *about)

    def _do(self, name: str, *about: Any) -> None:
        """Whatever goes wrong here, the script goes on."""
        try:
            if self._meter is None and not self._begins():
                return
            with contextlib.nullcontext() if self._meter.is_timing else self._ours:
                getattr(self._meter, name)(*about)
            self._is_idle = self._meter.has_ended
        except Exception as error:
            self._is_idle = True
            self._note(f"no more is measured: {error!r}")

    def _begins(self) -> bool:
        """Measure in this process, unless another one does."""
        self._is_idle = True
        if int(os.environ.get("LOCAL_RANK") or 0) or _rank():
            return self._follows()
        try:
            with self._ours:
                if self._claims():
                    from bench.records.folders import RecordFolder
                    from bench.worker.script import ScriptMeter

                    self._meter = ScriptMeter(RecordFolder(self._folder))
                    self._begun()
        except ImportError as error:
            self._note(f"{error}; install mlproject in the environment of {sys.executable}")
        except OSError:  # another process was faster, or the folder is gone
            pass
        return not self._is_idle

    def _follows(self) -> bool:
        """Note the steps of another rank; take part where something is to be taken out of them."""
        with self._ours:
            if os.environ.get("MLPROJECT_WITHOUT"):
                from bench.worker.turns import Follower as Meter
            else:
                from bench.worker.rank_meter import RankMeter as Meter  # type: ignore[assignment]
            by_function = bool(os.environ.get("MLPROJECT_STEP_OF"))
            self._meter = Meter(self._folder, by_function=by_function)
        self._begun()
        return True

    def _begun(self) -> None:
        """Have what is measured written however the process ends."""
        self._is_idle = False
        atexit.register(self._close)
        with contextlib.suppress(ValueError):  # not in the main thread
            if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._end)

    def _claims(self) -> bool:
        """Whether no other process measures, or has done so to the end."""
        claimed, account = self._folder / "claimed", self._folder / "worker.json"
        if claimed.exists():
            from bench.records.folders import is_running

            pid = int(claimed.read_text("utf-8") or os.getppid())
            is_whole = account.exists() and json.loads(account.read_bytes())["outcome"] == "ok"
            if is_whole or (pid != os.getpid() and is_running(pid)):
                return False
            claimed.unlink()
            account.unlink(missing_ok=True)
        with claimed.open("x") as file:
            file.write(f"{os.getpid()}")
        return True

    def _close(self, error: BaseException | None = None) -> None:
        if self._meter is not None:  # not in what this process has forked
            self._is_idle = False
            last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
            self._call("close", error or last)

    def _end(self, number: int, _: object) -> None:
        """End by the signal, as without us; what was measured is written before."""
        signal.signal(number, signal.SIG_IGN)  # a whole group may get it twice
        self._close(KeyboardInterrupt())
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _forked(self) -> None:
        """Measure nothing that the parent does, and leave alone what it holds open."""
        self._of_parent, self._meter, self._is_idle = self._meter, None, False

    def _note(self, problem: str) -> None:
        """Leave for the launcher why nothing is measured; the first reason is the one."""
        with contextlib.suppress(OSError), (self._folder / "problem").open("x") as file:
            file.write(problem)


def _rank() -> int:
    """The rank, where the script's own code has started its processes."""
    distributed: Any = sys.modules.get("torch.distributed")
    is_one = distributed and distributed.is_available() and distributed.is_initialized()
    return int(distributed.get_rank()) if is_one and "LOCAL_RANK" not in os.environ else 0


def _chain() -> None:
    """Import the `sitecustomize` that Python would have found without this one."""
    sys.path[:] = [path for path in sys.path if path != str(_HERE)]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


if _record := os.environ.get("MLPROJECT_WATCH"):
    with contextlib.suppress(OSError):
        (Path(_record) / "hooked").touch()
        _Hook(Path(_record), os.environ.get("MLPROJECT_STEP_OF", ""))
_chain()
