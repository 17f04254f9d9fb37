"""What launcher and workers tell each other: `config.json`, `worker.json` and `rank-N.json`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from typing_extensions import Self

from bench.config import ResolvedConfig, RunConfig
from bench.records.base import Count, Facts, Outcome, Record
from bench.records.complexity import Complexity
from bench.records.environment import Environment
from bench.records.measurement import CacheRoof, Ceiling, CeilingSample, Measurement
from bench.records.profile import OpProfile, ToolName, WorkSet


class Job(Record):
    """What was asked for: the file `config.json` of a record folder.

    Of `ceilings` the configuration's backend counts alone, of a `machine` its label.
    """

    kind: Literal["measurement", "profile", "ceilings", "machine"] = "measurement"
    config: RunConfig
    tool: ToolName | None = None  # of one worker of a profile
    #: What its tool asks of that worker, or `mlproject watch` of a script.
    task: dict[str, str] = Field(default_factory=dict)


class Account(Facts):
    """What a worker saw, however it ended: the file `worker.json`. Its job says of what."""

    outcome: Outcome
    reason: str | None
    resolved: ResolvedConfig | None
    environment: Environment | None
    complexity: Complexity | None
    measurement: Measurement | None
    script: dict[str, str] = Field(default_factory=dict)  # as in `RunRecord`
    # Of a profile:
    work: WorkSet | None
    iterations: Count | None  # steps inside the profiled window
    window_s: float | None  # wall time of that window
    ops: OpProfile | None
    # Of roofs:
    ceilings: tuple[Ceiling, ...] = ()
    samples: tuple[CeilingSample, ...] = ()
    cache_roofs: tuple[CacheRoof, ...] = ()
    # Of a machine: of each device, what `auto` takes first.
    environments: tuple[Environment, ...] = ()

    @classmethod
    def of_none(cls, outcome: Outcome, reason: str) -> Self:
        """Return the account of a worker that wrote nothing."""
        return cls.of(reason, outcome=outcome, reason=reason)


class RankAccount(Facts):
    """How one rank ended: the file `rank-N.json` of a record folder."""

    kind: Literal["rank"] = "rank"
    rank: Count
    outcome: Outcome
    reason: str | None
    #: own: it failed by itself; killed: another process reports it; lost: the others went away.
    cause: Literal["own", "killed", "lost"]
    ended_unix_s: float
