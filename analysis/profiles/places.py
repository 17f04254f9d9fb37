"""Where a step's ops and kernels stand under the roof, by a profile of it.

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
from typing import Any, Literal

from analysis.roofs.roof import CEILING_MARGIN, Roof
from bench.records import Counters, Finding, KernelTotals, OpTime, Phase, TracedOp
from bench.records.base import ratio

#: algorithmic: of convolutions and products. elementwise: of ops that have no others.
FlopKind = Literal["algorithmic", "elementwise"]
#: A step that is replayed whole, by a CUDA graph, does not show its phases.
StepPart = Phase | Literal["whole step"]

#: Ops with less of the ops' time than this are too short to be held to a roof's percent.
_LONG_ENOUGH_SHARE = 0.01

#: Why kernels execute fewer FLOP than are counted, by what the label of their op contains.
_FEWER_EXECUTED = {"convolution": "Winograd", "attention": "a causal mask"}


@dataclass(frozen=True, kw_only=True)
class OpPlace:
    """One kind of op in one phase; `rank` counts from 1 by time, the longest first.

    Without FLOP, or without work known to the cost model, there is no place: `kind`,
    `flops_per_s` and `intensity_min` are None. `intensity_max` is None as well where a fused op
    would move no byte of its own.
    """

    rank: int
    time: OpTime | TracedOp
    share: float  # of the time of all ops
    kind: FlopKind | None
    flops_per_s: float | None
    intensity_min: float | None  # eager bytes
    intensity_max: float | None  # fused bytes
    from_cache: bool | None  # its eager bytes came faster than DRAM gives; None without a roof

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
        if self.kind is not None:
            return None
        if self.time.flops is None:
            return self.time.missing["flops"]
        if not (self.time.flops or self.time.elementwise_flops):
            return "no FLOP"
        return "no time" if not self.time.time_s else "no bytes"

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


@dataclass(frozen=True)
class OpPlaces:
    """All ops of a profile or a trace, the longest first."""

    ops: tuple[OpPlace, ...]

    @property
    def placed(self) -> tuple[OpPlace, ...]:
        """Those with a place."""
        return tuple(op for op in self.ops if op.kind is not None)

    @property
    def without_flops_share(self) -> float:
        """Share of the ops' time that went to ops known to compute nothing: copies, fills."""
        return sum(op.share for op in self.ops if op.why_no_place == "no FLOP")

    @property
    def unmatched(self) -> tuple[OpPlace, ...]:
        """Those whose work the cost model does not know."""
        return tuple(op for op in self.ops if op.time.flops is None)

    @property
    def unmatched_share(self) -> float:
        """Share of the ops' time that they took."""
        return sum(op.share for op in self.unmatched)


def place_ops(ops: Sequence[OpTime | TracedOp], roof: Roof | None) -> OpPlaces:
    """Place ops of one step; `roof` is the device's, None where it is not known."""
    ordered = sorted(ops, key=lambda op: op.time_s, reverse=True)
    total_s = sum(op.time_s for op in ops)
    return OpPlaces(tuple(_place_op(rank, op, total_s, roof) for rank, op in enumerate(ordered, 1)))


def check_ops(places: OpPlaces, roof: Roof) -> tuple[Finding, ...]:
    """Return a finding where an op seems to compute faster than its device can.

    Suspect, not impossible: FLOP are counted by definition, and some kernels execute fewer. Above
    the memory roof is no fault: small tensors stay in a cache.
    """
    rates = (
        (op.least_flops_per_s, op)
        for op in places.placed
        if op.least_flops_per_s is not None and op.share >= _LONG_ENOUGH_SHARE
    )
    fastest, op = max(rates, key=lambda rate: rate[0], default=(0.0, None))
    if op is None or fastest <= CEILING_MARGIN * roof.most_flops_per_s:
        return ()
    percent = 100 * fastest / roof.most_flops_per_s
    whys = [why for label, why in _FEWER_EXECUTED.items() if label in op.time.label]
    if op.time.causal_skipped_flops:
        whys = []  # taken off already
    fewer = "".join(f"fewer were executed ({why}), or " for why in whys)
    message = (
        f"{op.name}: {percent:.0f} % of the compute ceiling by its {op.kind} FLOP; "
        f"{fewer}its time or the ceiling is wrong"
    )
    return (Finding(code="op-above-compute-roof", level="suspect", message=message),)


def _place_op(rank: int, op: OpTime | TracedOp, total_s: float, roof: Roof | None) -> OpPlace:
    kind: FlopKind = "algorithmic" if op.flops else "elementwise"
    flops = None
    if op.flops is not None and op.eager_bytes and op.time_s:
        flops = op.flops or op.elementwise_flops or None
    return OpPlace(
        rank=rank,
        time=op,
        share=op.time_s / total_s if total_s else 0.0,
        kind=kind if flops else None,
        flops_per_s=ratio(flops, op.time_s),
        intensity_min=ratio(flops, op.eager_bytes),
        intensity_max=ratio(flops, op.fused_bytes),
        from_cache=_from_cache(op, roof),
    )


def _from_cache(op: OpTime | TracedOp, roof: Roof | None) -> bool | None:
    if roof is None or op.eager_bytes is None or not op.time_s:
        return None
    return op.eager_bytes / op.time_s > CEILING_MARGIN * roof.most_bytes_per_s


#: A GPU has no L3; a processor does.
MemoryLevel = Literal["L1", "L2", "L3", "DRAM"]

#: Levels from the arithmetic outwards, and the counter of each.
_BYTES: dict[MemoryLevel, str] = {"L1": "l1_bytes", "L2": "l2_bytes", "DRAM": "dram_bytes"}


@dataclass(frozen=True, kw_only=True)
class KernelPlace:
    """All launches of one kernel; `rank` counts from 1 by time, the longest first.

    `intensities` holds the levels whose bytes were counted and moved any. `flops_per_s` is None
    without FLOP, or where FLOP or time were not counted. With `at_least` some FLOP were not
    counted: both are lower bounds, to be drawn as such and never told as values.
    """

    rank: int
    totals: KernelTotals
    share: float | None  # of the time of all kernels
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


@dataclass(frozen=True)
class KernelPlaces:
    """All kernels of a profile, the longest first."""

    kernels: tuple[KernelPlace, ...]

    @property
    def placed(self) -> tuple[KernelPlace, ...]:
        """Those with a place at some level, or a lower bound of it."""
        return tuple(kernel for kernel in self.kernels if kernel.placed)

    @property
    def without_flops(self) -> tuple[KernelPlace, ...]:
        """Those that executed no FLOP: copies, index arithmetic."""
        return tuple(kernel for kernel in self.kernels if kernel.totals.flops == 0)

    @property
    def without_flops_share(self) -> float:
        """Share of the kernels' time that they took."""
        return sum(kernel.share or 0.0 for kernel in self.without_flops)

    @property
    def unknown(self) -> tuple[KernelPlace, ...]:
        """Those whose FLOP or time were not counted."""
        return tuple(
            kernel
            for kernel in self.kernels
            if kernel.totals.flops is None or kernel.totals.duration_s is None
        )


def place_kernels(counters: Counters) -> KernelPlaces:
    """Place every kernel name of `counters`."""
    ordered = sorted(counters.per_kernel, key=lambda kernel: kernel.duration_s or 0.0, reverse=True)
    total_s = sum(kernel.duration_s or 0.0 for kernel in ordered)
    return KernelPlaces(
        tuple(_place_kernel(rank, kernel, total_s) for rank, kernel in enumerate(ordered, 1))
    )


def _place_kernel(rank: int, kernel: KernelTotals, total_s: float) -> KernelPlace:
    at_least = kernel.flops is None
    flops = (kernel.flops_at_least if at_least else kernel.flops) or None
    counts = {level: getattr(kernel, field) for level, field in _BYTES.items()}
    return KernelPlace(
        rank=rank,
        totals=kernel,
        share=ratio(kernel.duration_s, total_s),
        flops_per_s=ratio(flops, kernel.duration_s),
        intensities={level: flops / count for level, count in counts.items() if flops and count},
        at_least=at_least,
    )


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
    functors = [found for found in _FUNCTOR.findall(arguments) if found not in _GENERIC]
    if functors:
        return str(functors[-1])
    maker = _MAKER.search(_ANONYMOUS.sub("", arguments))
    return maker[1] if maker else ""


def _last_part(qualified: str) -> str:
    return qualified.rstrip(":").rsplit("::", 1)[-1]
