"""What was measured: the frozen records that are the whole interface to everything after.

Raw values are stored and statistics derived (`bench.records.metrics`). Times are
seconds, sizes bytes, rates per second; a multiply-add is 2 FLOP, and a MAC count is called MAC.
Instants named `*_clock_s` are readings of `time.perf_counter`, whose zero every process of one boot
shares.
"""

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
from bench.records.environment import (
    CLOCK_SETTING,
    POWER_LIMIT,
    DeviceInfo,
    Environment,
    ModelCode,
    ProcessFigures,
    Series,
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
    Counters,
    CpuCounters,
    KernelTotals,
    OpProfile,
    OpTime,
    ProfileRecord,
    ToolName,
    WorkSet,
)
from bench.records.trace import IdleTime, TracedOp, TracedStep, TraceRecord
