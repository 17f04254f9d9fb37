"""Which profile explains which run, and where the ops and kernels of its step stand under roofs.

Of an op no counter is needed: time is a profiler's, work the cost model's. An op that ran by itself
moved its eager bytes; the fused ones are what would be left of them if its neighbours took it in.

A kernel has one height (executed FLOP over its own time) and an intensity per memory level
(executed FLOP over the bytes that the level moved): C. Yang, Hierarchical Roofline Analysis: How to
Collect Data using Performance Tools on Intel CPUs and NVIDIA GPUs, 2020.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from analysis.roofs import CEILING_MARGIN, Roof, UsedCeiling
from bench.records import (
    CacheRoof,
    Finding,
    GpuCounters,
    KernelTotals,
    OpTime,
    Phase,
    ProfileRecord,
    RunRecord,
    TracedOp,
)
from bench.records.base import Fact, ratio
from bench.records.environment import same_device
from bench.records.metrics import executed_flops
from bench.records.step_settings import is_of_step

#: How the reasons begin for which a run has no counted bytes, where no counters looked at it.
NOT_PROFILED = "not profiled: mlproject profile counts the bytes of one step"
NO_COUNTERS = "no counters: "


@dataclass(frozen=True)
class ProfiledStep:
    """What was seen of one step of a run beside its times; bytes are None with the reason.

    FLOP and busy time are None where no profile without a fault has them. The device's busy time
    leaves out communication that nothing hides.
    """

    dram_bytes: int | None
    dram_bytes_missing: str
    executed_flops: float | None
    device_busy_s: float | None
    counted_by: str = "ncu"


#: Of a step that no profile looked at.
NOT_SEEN = ProfiledStep(None, NOT_PROFILED, None, None)


def explains(profile: ProfileRecord, record: RunRecord) -> bool:
    """Whether the profile was made of this run, or of the same step on the same device."""
    if profile.timed_record_id == record.record_id:
        return True
    theirs, ours = profile.environment, record.environment
    alike = theirs is not None and ours is not None and same_device(theirs, ours)
    return alike and is_of_step(profile, record)


def profiles_of(record: RunRecord, profiles: Sequence[ProfileRecord]) -> list[ProfileRecord]:
    """Return the profiles that explain `record`: those made of it first, then the newest first."""
    return sorted(
        (profile for profile in profiles if explains(profile, record)),
        key=lambda profile: (profile.timed_record_id == record.record_id, profile.created),
        reverse=True,
    )


def profiled_step(
    record: RunRecord, step_s: float, used: UsedCeiling, profiles: Sequence[ProfileRecord]
) -> ProfiledStep:
    """Return what the best of the profiles that explain `record` saw of its step.

    Bytes are taken only from a profile that passes every check against this very run and its roof.
    """
    fitting = profiles_of(record, profiles)
    faults = {profile.record_id: _fault(profile, record, step_s, used) for profile in fitting}
    sound = [profile for profile in fitting if faults[profile.record_id] is None]
    executed = (executed_flops(profile) for profile in sound)
    busy = (profile.ops.computing_s for profile in sound if profile.ops is not None)
    counted = (profile.counters.dram_bytes for profile in sound if profile.counters is not None)
    dram_bytes = next(filter(None, counted), None)
    # A fault of counters that are there says more than that another profile has none.
    with_counters_first = sorted(fitting, key=lambda profile: profile.counters is None)
    reasons = (_why_no_bytes(profile, faults[profile.record_id]) for profile in with_counters_first)
    return ProfiledStep(
        dram_bytes=dram_bytes,
        dram_bytes_missing="" if dram_bytes else next(filter(None, reasons), NOT_PROFILED),
        executed_flops=next((flops for flops in executed if flops is not None), None),
        device_busy_s=next((busy_s for busy_s in busy if busy_s is not None), None),
    )


def _why_no_bytes(profile: ProfileRecord, fault: str | None) -> str | None:
    if fault is not None:
        return f"profile {profile.record_id} rejected: {fault}"
    if profile.counters is None:
        return f"{NO_COUNTERS}{profile.missing['counters']}"
    if profile.counters.dram_bytes is None:
        return f"no DRAM bytes: {profile.counters.missing['dram_bytes']}"
    return None if profile.counters.dram_bytes else "the counters saw no DRAM traffic at all"


def _fault(
    profile: ProfileRecord, record: RunRecord, step_s: float, used: UsedCeiling
) -> str | None:
    """What makes the profile's numbers unusable; a metric that is absent is no fault of others."""
    from bench.records.verdict import judge

    findings = list(judge(profile, record).findings)
    if profile.counters is not None:
        findings += check_counters(profile.counters, used.roof, used.cache_roofs, step_s)
    harmless = {"metric-missing", profile.outcome}
    faults = (f.sentence for f in findings if f.level == "invalid" and f.code not in harmless)
    return next(faults, None)


#: A cache's roof is measured by reading. Reads and writes have paths of their own, so up to twice
#: of it can be, and is only suspect.
_READ_AND_WRITE = 2.0


def check_counters(
    counters: GpuCounters, roof: Roof, cache_roofs: Sequence[CacheRoof], step_s: float | None
) -> tuple[Finding, ...]:
    """Return findings for rates over 103 % of a ceiling; cache levels count where measured.

    A kernel's rate is its own counts over its own duration, both of the profile. The step's is
    the counts over `step_s`, the timed run's; None where no run was timed.
    """
    # what, the counter held against it, its rate, and from how much of that on it cannot be
    ceilings = [("compute", "flops", roof.most_flops_per_s, 1.0)]
    ceilings.append(("memory", "dram_bytes", roof.most_bytes_per_s, 1.0))
    for cache in cache_roofs:
        if cache.level in ("L1", "L2") and cache.peak_bytes_per_s is not None:
            field = f"{cache.level.lower()}_bytes"
            ceilings.append((cache.level, field, cache.peak_bytes_per_s, _READ_AND_WRITE))
    findings = []
    for which, field, peak, possible in ceilings:
        for scope, (share, named) in _worst_shares(counters, step_s, field, peak).items():
            if share <= CEILING_MARGIN:
                continue
            level: Literal["invalid", "suspect"] = "suspect"
            why = "more than reading alone, by which that ceiling was measured"
            if share > CEILING_MARGIN * possible:
                level, why = "invalid", "impossible; the counters or the ceiling are wrong"
            named["percent"], named["ceiling"] = 100 * share, which
            findings.append(Finding.of(f"{scope}-above-{which}-roof", level, why=why, **named))
    return tuple(findings)


def _worst_shares(
    counters: GpuCounters, step_s: float | None, field: str, peak: float
) -> dict[str, tuple[float, dict[str, Fact]]]:
    """Of a ceiling, with facts; 0 where a counter or the duration is not known."""

    def share_of(counts: KernelTotals | GpuCounters, seconds: float | None) -> float:
        return (ratio(getattr(counts, field), seconds) or 0.0) / peak

    whole: dict[str, tuple[float, dict[str, Fact]]] = {"step": (share_of(counters, step_s), {})}
    per_kernel = counters.per_kernel
    kernels = {kernel.name: share_of(kernel, kernel.duration_s) for kernel in per_kernel}
    if not kernels:
        return whole
    worst = max(kernels, key=kernels.__getitem__)
    above = sum(share > CEILING_MARGIN for share in kernels.values())
    named: dict[str, Fact] = {"kernel": short_kernel_name(worst)}
    if above > 1:
        named["number"] = above
    return {"kernel": (kernels[worst], named), **whole}


# Ops and kernels

#: algorithmic: of convolutions and products. elementwise: of ops that have no others.
FlopKind = Literal["algorithmic", "elementwise"]
#: A step that is replayed whole, by a CUDA graph, does not show its phases.
StepPart = Phase | Literal["whole step"]
#: A GPU has no L3; a processor does.
MemoryLevel = Literal["L1", "L2", "L3", "DRAM"]

#: Ops with less of the ops' time than this are too short to be held to a roof's percent.
_LONG_ENOUGH_SHARE = 0.01
#: Why kernels execute fewer FLOP than are counted, by what the label of their op contains.
_FEWER_EXECUTED = {"convolution": "Winograd", "attention": "a causal mask"}
#: Levels from the arithmetic outwards, and the counter of each.
_BYTES: dict[MemoryLevel, str] = {"L1": "l1_bytes", "L2": "l2_bytes", "DRAM": "dram_bytes"}


@dataclass(frozen=True, kw_only=True)
class OpPlace:
    """One kind of op in one phase; `rank` counts from 1 by time, the longest first.

    Without a place, `kind`, `flops_per_s` and both intensities are None. `intensity_max` is None as
    well where a fused op would move no byte of its own.
    """

    rank: int
    time: OpTime | TracedOp
    share: float  # of the time of all ops
    known_flops: float | None  # elementwise ones where it has no others
    kind: FlopKind | None
    flops_per_s: float | None
    intensity_min: float | None  # eager bytes
    intensity_max: float | None  # fused bytes
    from_cache: bool | None  # its eager bytes came faster than DRAM gives; None without a roof

    @property
    def placed(self) -> bool:
        """Whether it has a place."""
        return self.kind is not None

    @property
    def part(self) -> StepPart:
        """The part of the step that it belongs to."""
        return self.time.phase or "whole step"

    @property
    def least_flops_per_s(self) -> float | None:
        """Its rate where its kernels skip what a causal mask leaves out, to hold against a roof."""
        if self.flops_per_s is None or not self.time.flops:
            return self.flops_per_s
        return self.flops_per_s * (1 - self.time.causal_skipped_flops / self.time.flops)

    @property
    def name(self) -> str:
        """The op, its shapes where it has one set of them, and its part of the step."""
        return " ".join(filter(None, (self.time.label, self.shapes, self.part)))

    @property
    def shapes(self) -> str:
        """Those of its tensors, such as `32x3x224x224, 64x3x7x7`; empty where they differ."""
        return self.time.shapes if isinstance(self.time, TracedOp) else ""

    @property
    def why_no_place(self) -> str | None:
        """Why it has no place, or None if it has one."""
        if self.placed or not self.known_flops:
            return None if self.placed else self.time.missing.get("flops", "no FLOP")
        return "no bytes" if self.time.time_s else "no time"

    @property
    def row(self) -> dict[str, Any]:
        """Its time, its work, and where it stands under the roof, by the names of columns."""
        time = self.time
        remark = "faster than DRAM: partly from a cache" if self.from_cache else None
        return {
            "number": self.rank,
            "label": time.label,
            "op": time.op,
            "phase": self.part,
            "calls": time.calls,
            "time_ms": time.time_s * 1e3,
            "time_share": self.share,
            "gflop": ratio(time.flops, 1e9),
            "elementwise_gflop": ratio(time.elementwise_flops, 1e9),
            "attained_gflops": ratio(self.flops_per_s, 1e9),
            "intensity_min": self.intensity_min if self.kind else None,
            "intensity_max": self.intensity_max if self.kind else None,
            "eager_gb_per_s": ratio(ratio(time.eager_bytes, time.time_s), 1e9),
            "remark": self.why_no_place or remark,
        }


@dataclass(frozen=True, kw_only=True)
class KernelPlace:
    """All launches of one kernel; `rank` counts from 1 by time, the longest first.

    `intensities` holds the levels that moved bytes which were counted. `flops_per_s` is None
    without counted FLOP and time. With `at_least` some FLOP were not counted: both are lower
    bounds, to be drawn as such and never told as values.
    """

    rank: int
    totals: KernelTotals
    share: float | None  # of the time of all kernels
    known_flops: int | None
    flops_per_s: float | None
    intensities: dict[MemoryLevel, float]
    at_least: bool

    @property
    def name(self) -> str:
        """Its short name; `totals.name` is the whole one."""
        return short_kernel_name(self.totals.name)

    @property
    def placed(self) -> bool:
        """Whether it has a place at any level."""
        return self.flops_per_s is not None and bool(self.intensities)

    @property
    def row(self) -> dict[str, Any]:
        """Its time and what was counted, by the names of columns; without lower bounds."""
        totals = self.totals
        row = {
            "number": self.rank,
            "kernel": self.name,
            "launches": totals.launches,
            "duration_ms": ratio(totals.duration_s, 1e-3),
            "time_share": self.share,
            "executed_gflop": ratio(totals.flops, 1e9),
            "tensor_gflop": ratio(totals.tensor_flops, 1e9),
            "dram_gb_per_s": ratio(ratio(totals.dram_bytes, totals.duration_s), 1e9),
            "name": totals.name,
        }
        return row if self.at_least else row | self.rates

    @property
    def rates(self) -> dict[str, float | None]:
        """Its height and its intensities by the names of columns, of a lower bound too."""
        named = {f"intensity_{level.lower()}": x for level, x in self.intensities.items()}
        return {"executed_gflops": ratio(self.flops_per_s, 1e9), **named}


Placed = TypeVar("Placed", OpPlace, KernelPlace)


class Places(tuple[Placed, ...]):
    """All ops or kernels of a step, the longest first."""

    @property
    def placed(self) -> tuple[Placed, ...]:
        """Those with a place, or a lower bound of it."""
        return tuple(place for place in self if place.placed)

    @property
    def without_flops(self) -> tuple[Placed, ...]:
        """Those known to compute nothing: copies, fills, index arithmetic."""
        return tuple(place for place in self if place.known_flops == 0)

    @property
    def unknown(self) -> tuple[Placed, ...]:
        """Ops whose work the cost model does not know; kernels without counted FLOP or time."""
        return tuple(place for place in self if place.known_flops is None or place.share is None)


def time_share(places: Sequence[OpPlace | KernelPlace]) -> float:
    """Return the share of all ops' or kernels' time that these took."""
    return sum(place.share or 0.0 for place in places)


def place_ops(ops: Sequence[OpTime | TracedOp], roof: Roof | None) -> Places[OpPlace]:
    """Place ops of one step; `roof` is the device's, None where it is not known."""
    total_s, places = sum(op.time_s for op in ops), []
    for rank, op in enumerate(sorted(ops, key=lambda op: op.time_s, reverse=True), 1):
        flops = None if op.flops is None else op.flops or op.elementwise_flops or 0
        placed = flops if op.eager_bytes and op.time_s else None
        bytes_per_s = ratio(op.eager_bytes, op.time_s)
        kind: FlopKind = "algorithmic" if op.flops else "elementwise"
        from_cache = None
        if roof is not None and bytes_per_s is not None:
            from_cache = bytes_per_s > CEILING_MARGIN * roof.most_bytes_per_s
        places.append(
            OpPlace(
                rank=rank,
                time=op,
                share=op.time_s / total_s if total_s else 0.0,
                known_flops=flops,
                kind=kind if placed else None,
                flops_per_s=ratio(placed or None, op.time_s),
                intensity_min=ratio(placed or None, op.eager_bytes),
                intensity_max=ratio(placed or None, op.fused_bytes),
                from_cache=from_cache,
            )
        )
    return Places(places)


def check_ops(places: Places[OpPlace], roof: Roof) -> tuple[Finding, ...]:
    """Return a finding where an op seems to compute faster than its device can.

    Suspect, not impossible: some kernels execute fewer FLOP than are counted by definition. Above
    the memory roof is no fault: small tensors stay in a cache.
    """
    long = (op for op in places.placed if op.share >= _LONG_ENOUGH_SHARE)
    op = max(long, key=lambda op: op.least_flops_per_s or 0.0, default=None)
    if op is not None:
        roof = roof.of_op(op.time)
    share = ((op and op.least_flops_per_s) or 0.0) / roof.most_flops_per_s
    if op is None or share <= CEILING_MARGIN:
        return ()
    whys = [why for label, why in _FEWER_EXECUTED.items() if label in op.time.label]
    skipped = op.time.causal_skipped_flops  # taken off already
    return (
        Finding.of(
            "op-above-compute-roof",
            op=op.name,
            percent=100 * share,
            kind=op.kind,
            skipped=None if skipped else next(iter(whys), None),
        ),
    )


def place_kernels(counters: GpuCounters) -> Places[KernelPlace]:
    """Place every kernel name of `counters`."""
    ordered = sorted(counters.per_kernel, key=lambda kernel: kernel.duration_s or 0.0, reverse=True)
    total_s, places = sum(kernel.duration_s or 0.0 for kernel in ordered), []
    for rank, kernel in enumerate(ordered, 1):
        at_least = kernel.flops is None
        flops = (kernel.flops_at_least if at_least else kernel.flops) or None
        counts = {level: getattr(kernel, field) for level, field in _BYTES.items()}
        places.append(
            KernelPlace(
                rank=rank,
                totals=kernel,
                share=ratio(kernel.duration_s, total_s),
                known_flops=kernel.flops,
                flops_per_s=ratio(flops, kernel.duration_s),
                intensities={k: flops / count for k, count in counts.items() if flops and count},
                at_least=at_least,
            )
        )
    return Places(places)


# Names of kernels

_NAME_LIMIT = 40

#: Wrappers that say how a kernel is launched, not what it computes.
_WRAPPERS = frozenset({"Kernel", "Kernel2"})
#: Template arguments that every kernel of a kind shares.
_GENERIC = frozenset(
    {"AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor", "UnaryFunctor", "ReduceOp"}
)
_FUNCTOR = re.compile(r"(?<!\w)\w*(?:[Ff]unctor|Ops?)(?:_\w+)?(?!\w)")
#: A function whose lambda is the kernel's body.
_MAKER = re.compile(r"([A-Za-z_]\w*)\((?=[^()]*\)::)")
_ANONYMOUS = re.compile(r"\(anonymous ?namespace\)")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def short_kernel_name(name: str, limit: int = _NAME_LIMIT) -> str:
    """Return what people call the kernel: its function, and what a template makes it do.

    `at::native::vectorized_elementwise_kernel<4,at::native::CUDAFunctor_add<float>,...>` becomes
    `vectorized_elementwise CUDAFunctor_add`. What is over `limit` characters is cut in the
    middle, since long names differ at their ends.
    """
    head, _, arguments = name.removeprefix("void ").partition("<")
    function = _last_part(head)
    if function in _WRAPPERS and (inner := _IDENTIFIER.search(arguments)):
        qualified = re.split(r"[<>,(]", arguments[inner.start() :], maxsplit=1)[0]
        return shortened(_last_part(qualified), limit)
    detail = shortened(_detail(arguments).removesuffix("_kernel_cuda"), limit // 2)
    if not function or not detail:
        return shortened(function or name, limit)
    function = function.removesuffix("_kernel")
    return f"{shortened(function, limit - len(detail) - 1)} {detail}"


def shortened(text: str, limit: int) -> str:
    """Return `text` with its middle left out if it is longer than `limit`."""
    if len(text) <= limit:
        return text
    end = (limit - 1) // 2
    return text[: limit - 1 - end] + "…" + text[len(text) - end :]


def _detail(arguments: str) -> str:
    """The innermost functor among the template arguments, else the maker of a lambda."""
    functors = [name for name in _FUNCTOR.findall(arguments) if name not in _GENERIC]
    if functors:
        return str(functors[-1])
    maker = _MAKER.search(_ANONYMOUS.sub("", arguments))
    return maker[1] if maker else ""


def _last_part(qualified: str) -> str:
    return qualified.rstrip(":").rsplit("::", 1)[-1]
