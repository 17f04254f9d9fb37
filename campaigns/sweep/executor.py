"""Where a sweep's runs are measured: on this machine, or on the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.records import Environment
from campaigns.sweep.past_run import PastRun
from campaigns.sweep.plan import Plan
from campaigns.sweep.run import Deliver, SweepWatch, Turn


@dataclass(frozen=True)
class SweepOrder:
    """A plan, and what becomes of its records."""

    plan: Plan
    campaign: str
    records: Path
    retry_failed: bool
    settle_s: float


class Executor(Protocol):
    """Measures what of a plan is not measured yet."""

    place: str  # in messages
    backends: Collection[str]  # what can be planned for
    environments: tuple[Environment, ...]  # of what times are estimated; none where they differ

    def sweep(
        self,
        order: SweepOrder,
        elsewhere: Iterable[PastRun],
        deliver: Deliver,
        watch: SweepWatch,
    ) -> Generator[Turn]:
        """Yield what became of each run; `elsewhere` are runs that only the server knows."""
