"""What a profile asks of a tool that looks inside a step; and PyTorch's own, for any device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

from bench.errors import UserError
from bench.records import Account, Backend, CpuCounters, GpuCounters, OpProfile, ToolName

Section = GpuCounters | CpuCounters | OpProfile


class ToolWorker(NamedTuple):
    """The worker under the tool.

    `name` is its folder's, below the profile's own; it is started as
    `prefix + [python, bench/worker/__main__.py, profile, FOLDER]` with `environment` on top of the
    launcher's, and reads `task` from its `config.json`.
    """

    name: str
    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    task: Mapping[str, str] = {}


class Tool(ABC):
    """A tool: whether it can work here, what it starts, and what it found."""

    name: ClassVar[ToolName]
    #: Whether it can examine every process of a step on several devices.
    counts_ranks: ClassVar[bool] = False

    def obstacle(self, backend: Backend) -> str | None:
        """Return why it cannot work here, with the remedy, or None if it is worth trying."""
        return None

    @abstractmethod
    def worker(self, folder: Path) -> ToolWorker:
        """Return the worker to start; `folder` is the profile's, where files go."""

    def explain(self, console: str) -> str | None:
        """Return cause and remedy of a failure that `console` shows, or None if unknown."""
        return None

    @abstractmethod
    def read(self, folder: Path, step: Account) -> Section:
        """Return what was found; `step` is the worker's account.

        Raises `UserError` naming file and cause where a number cannot be read.
        """


class TorchTool(Tool):
    """The worker times its own ops (`bench.profilers.torch_profiler.profile_ops`)."""

    name: ClassVar[ToolName] = "torch"
    counts_ranks: ClassVar[bool] = True

    def worker(self, folder: Path) -> ToolWorker:
        """Return the worker, which leaves the trace of a step in `folder`."""
        return ToolWorker(self.name, task={"trace": str(folder / "trace.json")})

    def read(self, folder: Path, step: Account) -> OpProfile:
        """Return the worker's op times. Raises `UserError` with its reason if it has none."""
        if step.ops is None:
            raise UserError(f"{folder / self.name}: no op times: {step.missing['ops']}")
        return step.ops
