"""What each process knows of a window that several devices measured together.

A rank is one process with one device; ranks count from 0 over all nodes. Rank 0 tells the times of
the whole.
"""

from __future__ import annotations

import statistics
from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from bench.records.base import Count, Facts, Outcome, Seconds


class RankFigures(Facts):
    """One rank's own times of the common window, and its device's peak memory."""

    rank: Count
    node: Count
    device: str  # its name
    device_uuid: str | None
    iteration_times_s: Annotated[tuple[Seconds, ...], Field(min_length=1)]
    data_wait_s: tuple[Seconds, ...]
    peak_memory_allocated_bytes: Count | None
    peak_memory_reserved_bytes: Count | None


class DistributedFigures(Facts):
    """Every rank's figures, and a few steps after the window with and without communication.

    `synced_step_s` are whole steps, `local_step_s` the same steps without the exchange of gradients
    (DistributedDataParallel's `no_sync`). All ranks begin each of them together with their devices
    idle; a time is that of the slowest rank.
    """

    communication: Literal["nccl", "gloo"]
    ranks: Annotated[tuple[RankFigures, ...], Field(min_length=2)]
    synced_step_s: Annotated[tuple[Seconds, ...], Field(min_length=1)]
    local_step_s: Annotated[tuple[Seconds, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _all_ranks_in_order(self) -> Self:
        if [one.rank for one in self.ranks] != list(range(len(self.ranks))):
            raise ValueError("ranks are not 0, 1, 2 and so on")
        if len({len(one.iteration_times_s) for one in self.ranks}) > 1:
            raise ValueError("ranks differ in their number of iterations")
        return self

    @property
    def communication_share(self) -> float:
        """Share of a step that communication adds: 1 - median(local) / median(synced).

        Only what is exposed counts: communication that runs beside the backward pass costs
        nothing, unless it slows that down. A value a little below 0 means none, and noise.
        """
        return 1 - statistics.median(self.local_step_s) / statistics.median(self.synced_step_s)


class RankAccount(Facts):
    """How one rank ended: the file `rank-N.json` of a record folder."""

    kind: Literal["rank"] = "rank"
    rank: Count
    outcome: Outcome
    reason: str | None
    #: own: it failed by itself; killed: another process tells it; lost: the others went away.
    cause: Literal["own", "killed", "lost"]
    ended_unix_s: float
