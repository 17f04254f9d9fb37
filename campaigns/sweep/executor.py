"""Where a sweep measures: what an executor is, and those of installed distributions."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from importlib.metadata import entry_points
from typing import Protocol

from bench.errors import UserError
from bench.records import Environment
from campaigns.sweep.local import Deliver, SweepOrder, SweepWatch, Turn

#: Under which a distribution names a `RemoteExecutor`.
ENTRY_POINTS = "mlproject.executors"


class Executor(Protocol):
    """Measures the runs of a plan somewhere.

    `environments` are those of its devices, empty where they differ; `backends` can be planned for.
    """

    place: str  # in messages
    environments: tuple[Environment, ...]
    backends: set[str]

    def sweep(self, order: SweepOrder, deliver: Deliver, watch: SweepWatch) -> Generator[Turn]:
        """Measure what is not measured yet; yield what became of each run, as it ends.

        The record is on disk before `deliver` sees it.
        """


class RemoteExecutor(Executor, Protocol):
    """One that measures on other machines, at an address; `note` receives a line per problem."""

    def __init__(self, address: str, *, node_wait_s: float, note: Callable[[str], None]) -> None:
        """A run waits `node_wait_s` seconds for a machine that has its device."""

    def connected(self, campaign: str) -> AbstractContextManager[Executor]:
        """Be the one who sweeps `campaign` there. Raises `UserError` where nobody answers."""


def remote_executor(name: str) -> type[RemoteExecutor]:
    """Return the executor that an installed distribution names so. Raises `UserError`."""
    try:
        [found] = entry_points(group=ENTRY_POINTS, name=name)
    except ValueError:
        raise UserError(
            f"executor={name!r}: its plug-in is not installed; in a clone `make setup`, or "
            "pip install -e . -e contrib"
        ) from None
    try:
        executor: type[RemoteExecutor] = found.load()
    except ImportError as error:
        raise UserError(
            f"executor={name!r}: {error}; pip install 'mlproject[{name}]', or in a clone "
            f"uv pip install -e '.[{name}]'"
        ) from None
    return executor
