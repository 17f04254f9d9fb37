"""What one configuration's step did inside, beside the timed run that it explains."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from bench.config import RunConfig
from bench.records.base import Facts, Outcome
from bench.records.complexity import Complexity
from bench.records.counters import Counters, CpuCounters
from bench.records.environment import Environment
from bench.records.finding import Verdict
from bench.records.measurement import ResolvedConfig
from bench.records.ops import OpProfile
from bench.records.upgrade import KeptRecord
from bench.records.work import WorkSet

#: The tools that look inside a step; each has a section of a profile.
ToolName = Literal["torch", "ncu", "perf"]


class ProfiledStep(Facts):
    """One worker's account of the step that it ran under one tool: `worker.json`."""

    schema_version: Literal[2] = 2
    kind: Literal["profiled_step"] = "profiled_step"
    tool: ToolName
    outcome: Outcome
    reason: str | None
    resolved: ResolvedConfig | None
    environment: Environment | None
    complexity: Complexity | None
    work: WorkSet | None
    iterations: int | None  # steps inside the profiled window
    window_s: float | None  # wall time of that window
    ops: OpProfile | None


class ProfileRecord(KeptRecord):
    """One configuration, profiled: the file `record.json` of a record folder.

    Each tool's section is None with the tool's own reason and remedy. Times in it are a profiled
    step's; how fast the configuration is, the timed run says.
    """

    schema_version: Literal[2] = 2
    kind: Literal["profile"] = "profile"
    record_id: str
    created: datetime  # UTC
    config: RunConfig
    config_id: str
    timed_record_id: str | None  # the measurement of the same configuration on this device
    outcome: Outcome
    reason: str | None
    resolved: ResolvedConfig | None
    environment: Environment | None
    complexity: Complexity | None
    work: WorkSet | None
    ops: OpProfile | None
    counters: Counters | None
    cpu_counters: CpuCounters | None
    verdict: Verdict | None
