"""What was measured: the frozen records that are the whole interface to everything after.

Raw values are stored and statistics derived (`bench.records.metrics`). Times are
seconds, sizes bytes, rates per second; a multiply-add is 2 FLOP, and a MAC count is called MAC.
Instants named `*_clock_s` are readings of `time.perf_counter`, whose zero every process of one boot
shares.

Each name is imported when it is first used: a reader of counters needs three of these modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.config.resolved import Backend, MathMode, ResolvedConfig
    from bench.records.base import (
        Facts,
        Finding,
        Level,
        Outcome,
        Phase,
        Verdict,
        findings_text,
        worst,
    )
    from bench.records.complexity import Complexity, MemoryFootprint, OpCost, StepSpec
    from bench.records.counters import CpuCounters, GpuCounters, KernelTotals
    from bench.records.environment import (
        CLOCK_SETTING,
        POWER_LIMIT,
        DeviceInfo,
        Environment,
        ModelCode,
        ProcessFigures,
        SampledSeries,
        Telemetry,
    )
    from bench.records.measurement import (
        Account,
        CacheRoof,
        Ceiling,
        CeilingSample,
        CeilingsRecord,
        DistributedFigures,
        ImportedRecord,
        Job,
        Measurement,
        RankAccount,
        RankFigures,
        RunRecord,
    )
    from bench.records.profile import (
        Copies,
        OpProfile,
        OpTime,
        ProfileRecord,
        ToolName,
        WorkSet,
    )
    from bench.records.trace import IdleTime, TracedOp, TracedStep, TraceRecord

#: Where a name is looked for, in this order.
_MODULES = ("base", "counters", "complexity", "environment", "profile", "measurement", "trace")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        for module in _MODULES:
            names = vars(import_module(f"{__name__}.{module}"))
            if name in names:
                return names[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
