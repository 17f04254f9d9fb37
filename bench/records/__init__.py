"""What was measured: the frozen records that are the whole interface to everything after.

Raw values are stored and statistics derived (`bench.records.verdict.figures`). Times are seconds,
sizes bytes, rates per second; a multiply-add is 2 FLOP, and a MAC count is called MAC. Instants
named `*_clock_s` are readings of `time.perf_counter`, whose zero every process of one boot shares.
"""

from bench.records.base import Backend, Facts, Level, MathMode, Outcome, Phase, Record, worst
from bench.records.ceilings import CacheRoof, Ceiling, CeilingSample, CeilingsRecord
from bench.records.complexity import Complexity, MemoryFootprint, OpCost
from bench.records.counters import Counters, CpuCounters, KernelTotals
from bench.records.environment import DeviceInfo, Environment, Machine
from bench.records.finding import Finding, Verdict
from bench.records.imported import ImportedRecord, SourceFormat
from bench.records.measurement import Measurement, ResolvedConfig
from bench.records.ops import Copies, OpProfile, OpTime
from bench.records.process import ProcessFigures, Series, Telemetry
from bench.records.profile import ProfiledStep, ProfileRecord, ToolName
from bench.records.ranks import DistributedFigures, RankAccount, RankFigures
from bench.records.run import LAUNCHER_FACTS, RunRecord
from bench.records.work import WorkSet

__all__ = [
    "LAUNCHER_FACTS",
    "Backend",
    "CacheRoof",
    "Ceiling",
    "CeilingSample",
    "CeilingsRecord",
    "Complexity",
    "Copies",
    "Counters",
    "CpuCounters",
    "DeviceInfo",
    "DistributedFigures",
    "Environment",
    "Facts",
    "Finding",
    "ImportedRecord",
    "KernelTotals",
    "Level",
    "Machine",
    "MathMode",
    "Measurement",
    "MemoryFootprint",
    "OpCost",
    "OpProfile",
    "OpTime",
    "Outcome",
    "Phase",
    "ProcessFigures",
    "ProfileRecord",
    "ProfiledStep",
    "RankAccount",
    "RankFigures",
    "Record",
    "ResolvedConfig",
    "RunRecord",
    "Series",
    "SourceFormat",
    "Telemetry",
    "ToolName",
    "Verdict",
    "WorkSet",
    "worst",
]
