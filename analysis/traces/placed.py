"""A trace in a report: its record, the roof of its device, and its ops under it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from analysis.profiles.op_places import OpPlace, OpPlaces, place_ops
from analysis.roofs.by_name import ceiling_by_name
from analysis.roofs.ceilings import NoCeiling, UsedCeiling
from analysis.roofs.peaks import Peaks
from bench.records import CeilingsRecord, DeviceInfo, OpProfile, OpTime, TracedOp, TraceRecord

#: A trace names its device, and neither its driver nor its power limit.
_BY_NAME = "the trace names its device alone: a device of that name has this roof"


@dataclass(frozen=True)
class PlacedTrace:
    """A trace's record with the roof of its device, or why there is none.

    `number` is the trace's in a report, counted from 1.
    """

    number: int
    record: TraceRecord
    ceiling: UsedCeiling | NoCeiling

    @property
    def used(self) -> UsedCeiling | None:
        """The roof of its device, if there is one."""
        return self.ceiling if isinstance(self.ceiling, UsedCeiling) else None

    @property
    def label(self) -> str:
        """What was traced where, for people."""
        record = self.record
        model = f"{record.arch} batch {record.batch_size}, " if record.arch else ""
        rank = "" if record.rank is None or not record.world_size else f", rank {record.rank}"
        return f"{model}{record.device or 'device unknown'}{rank} ({record.source_file})"

    @cached_property
    def ops(self) -> OpPlaces:
        """Its ops under the roof, a place per op and shape, by the own time of their kernels."""
        return self._placed(map(_of_shape, self.record.ops))

    @cached_property
    def kinds(self) -> OpPlaces:
        """The same, a place per kind of op and phase."""
        return self._placed(_of_kinds(self.record.ops))

    def _placed(self, ops: Iterable[OpTime]) -> OpPlaces:
        roof = self.used.roof if self.used else None
        return place_ops(_profile(self.record, tuple(ops)), roof)

    @property
    def placed_ops(self) -> list[tuple[TracedOp, OpPlace]]:
        """Each op with its place, longest first."""
        by_time = sorted(self.record.ops, key=lambda op: op.time_s, reverse=True)
        return list(zip(by_time, self.ops.ops, strict=True))


def place_traces(
    records: Sequence[TraceRecord],
    ceilings: Sequence[CeilingsRecord] = (),
    peaks: Sequence[Peaks] = (),
) -> list[PlacedTrace]:
    """Place every trace under the roof of its device; `peaks` are a user's own datasheet figures.

    The roof is the newest one measured on a device of that name, with as many multiprocessors
    where both are known, else the datasheet's.
    """
    return [
        PlacedTrace(number, record, roof_of(record, ceilings, peaks))
        for number, record in enumerate(records, 1)
    ]


def roof_of(
    record: TraceRecord, ceilings: Sequence[CeilingsRecord], peaks: Sequence[Peaks]
) -> UsedCeiling | NoCeiling:
    """Return the roof of the trace's device in the trace's arithmetic, or why there is none."""
    if record.device is None:
        return NoCeiling(f"which device it is: {record.missing['device']}")
    if record.math_mode is None:
        return NoCeiling(f"in which arithmetic it computes: {record.missing['math_mode']}")
    device = DeviceInfo.of(  # ROCm's devices are called cuda too
        "the trace does not say", name=record.device, backend="cuda", cores=record.device_cores
    )
    return ceiling_by_name(device, record.math_mode, ceilings, peaks, because=_BY_NAME)


def _profile(record: TraceRecord, ops: Sequence[OpTime]) -> OpProfile:
    walls_s = sorted(step.wall_s for step in record.steps)
    return OpProfile.of(
        "a trace's steps overlap: their own figures say it",
        method="the kernels' own durations in the trace",
        iterations=len(record.steps),
        step_time_s=walls_s[len(walls_s) // 2] if walls_s else 0.0,
        ops=tuple(ops),
    )


def _of_shape(one: TracedOp) -> OpTime:
    """One op with one set of shapes, as a profile's."""
    return _op_time(f"{one.label} {one.shapes}".rstrip(), [one])


def _of_kinds(ops: Sequence[TracedOp]) -> list[OpTime]:
    """The ops of one kind and phase added up, whatever their shapes, as in a profile."""
    kinds: defaultdict[tuple[str, str, str | None, bool], list[TracedOp]] = defaultdict(list)
    for one in ops:
        kinds[one.label, one.op, one.phase, one.flops is None].append(one)
    return [_op_time(label, alike) for (label, *_), alike in kinds.items()]


def _op_time(label: str, alike: Sequence[TracedOp]) -> OpTime:
    def total(name: str) -> int | None:
        values = [getattr(one, name) for one in alike]
        return None if None in values else round(sum(values))

    return OpTime(
        label=label,
        op=alike[0].op,
        phase=alike[0].phase,
        calls=max(1, round(sum(one.calls for one in alike))),
        time_s=sum(one.time_s for one in alike),
        exclusive_s=sum(one.exclusive_s for one in alike),
        flops=total("flops"),
        elementwise_flops=total("elementwise_flops"),
        eager_bytes=total("eager_bytes"),
        fused_bytes=total("fused_bytes"),
        causal_skipped_flops=round(sum(one.causal_skipped_flops for one in alike)),
        missing=alike[0].missing,
    )
