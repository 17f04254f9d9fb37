"""Where each kind of op stands under the roof: its FLOP over its time, its FLOP over its bytes.

No counter is needed: time is a profiler's, work the cost model's. An op that ran by itself moved
its eager bytes; the fused ones are what would be left of them if its neighbours took it in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from analysis.roofs.roof import CEILING_MARGIN, Roof
from bench.records import Finding, OpProfile, OpTime, Phase
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
    time: OpTime
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
        """The op and its part of the step."""
        return f"{self.time.label} {self.part}"

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


@dataclass(frozen=True)
class OpPlaces:
    """All ops of a profile, the longest first."""

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


def place_ops(profile: OpProfile, roof: Roof | None) -> OpPlaces:
    """Place the ops of `profile`; `roof` is the device's, None where it is not known."""
    ordered = sorted(profile.ops, key=lambda op: op.time_s, reverse=True)
    total_s = profile.ops_time_s
    return OpPlaces(tuple(_place(rank, op, total_s, roof) for rank, op in enumerate(ordered, 1)))


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


def _place(rank: int, op: OpTime, total_s: float, roof: Roof | None) -> OpPlace:
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


def _from_cache(op: OpTime, roof: Roof | None) -> bool | None:
    if roof is None or op.eager_bytes is None or not op.time_s:
        return None
    return op.eager_bytes / op.time_s > CEILING_MARGIN * roof.most_bytes_per_s
