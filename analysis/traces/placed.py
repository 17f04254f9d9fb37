"""A trace under the roof of its device; and two traces: which ops became slower or faster."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import gcd
from typing import Any

import numpy as np

from analysis.account import HOST, Kind, Part, StepAccount, completed, parts_of_ops
from analysis.presentation.words import signed, three_digits
from analysis.profiles import OpPlace, Places, place_ops
from analysis.roofs import Peaks, UsedCeiling, ceiling_by_name
from bench.errors import Unknown
from bench.profilers.traces.intervals import Intervals
from bench.profilers.traces.steps import RankStep
from bench.records import CeilingsRecord, DeviceInfo, Finding, TracedOp, TraceRecord
from bench.records.measurement import RankFigures
from bench.records.profile import COMMUNICATION
from bench.records.slow_rank import mean_parts_ms, slow_rank

#: A trace names its device, and neither its driver nor its power limit.
_BY_NAME = "the trace names its device alone: a device of that name has this roof"
#: What is added up over ops that are alike.
_SUMMED = ("calls", "time_s", "exclusive_s", "flops", "elementwise_flops", "eager_bytes",
           "fused_bytes", "causal_skipped_flops")  # fmt: skip
#: Of the larger time; smaller differences are called equal.
_EQUAL = 0.02
#: Of a ratio of calls; and the share of the shared ops' time in which it must hold.
_SAME_RATIO, _MOST_OPS = 0.01, 0.9
#: Ops and idle time explain a difference if what they add up to is so near to it.
_EXPLAINED = 0.5
#: Of a step: less is no part of it.
_ROUNDING = 1e-9
FIRST = "the first step of the trace, against the others"
OUTSIDE = "outside all marks of steps"

_Pair = tuple[float, float]
_MaybePair = tuple[float | None, float | None]


@dataclass(frozen=True)
class PlacedTrace:
    """A trace's record with the roof of its device, or why there is none.

    `number` is the trace's in a report, counted from 1.
    """

    number: int
    record: TraceRecord
    ceiling: UsedCeiling | Unknown
    rank_steps: tuple[RankStep, ...] = ()  # of a file of one rank, while it is read

    @property
    def used(self) -> UsedCeiling | None:
        """The roof of its device, if there is one."""
        return self.ceiling or None

    @property
    def label(self) -> str:
        """What was traced where, for people."""
        record = self.record
        model = f"{record.arch} batch {record.batch_size}, " if record.arch else ""
        rank = "" if record.rank is None or not record.world_size else f", rank {record.rank}"
        return f"{model}{record.device or 'device unknown'}{rank} ({record.source_file})"

    @property
    def account(self) -> StepAccount:
        """Where the time of its mean step goes; without a roof ops are their whole time."""
        record, idle_s = self.record, defaultdict[str, float](float)
        parts = list(parts_of_ops(record.ops, self.used.roof if self.used else None))
        for step in record.known_steps:
            for cause, time_s in step.idle_s_by_cause.items():
                idle_s[cause] += time_s / len(record.known_steps)
        for cause, time_s in idle_s.items():
            kind: Kind = "input" if cause == "input" else "idle"
            parts.append(Part(f"device idle: {cause}", kind, time_s))
        if record.known_steps[0].device_time_s is not None:
            parts += _beside_steps(record)
        elif not any(op.kernels for op in record.ops):
            rest_s = record.step_time_s - sum(part.time_s for part in parts)
            parts.append(Part(HOST, "host", rest_s))
        return completed(record.step_time_s, parts, None)

    @cached_property
    def ops(self) -> Places[OpPlace]:
        """Its ops under the roof, a place per op and shape, by the own time of their kernels."""
        return place_ops(self.record.ops, self.used.roof if self.used else None)

    @cached_property
    def kinds(self) -> Places[OpPlace]:
        """The same, a place per kind of op and phase, whatever the shapes, as in a profile."""
        kinds: dict[tuple[object, ...], TracedOp] = {}
        for op in self.record.ops:
            kind = op.label, op.op, op.phase, frozenset(op.missing)
            total, known = kinds.get(kind), set(_SUMMED) - op.missing.keys()
            sums = {name: getattr(total, name) + getattr(op, name) for name in known if total}
            kinds[kind] = op.replaced(shapes="", **sums)
        return place_ops([*kinds.values()], self.used.roof if self.used else None)


def _beside_steps(record: TraceRecord) -> tuple[Part, Part]:
    """What a step's time has more than the steps' own times on the device, on average.

    It is from one's end to the next one's: the first step is not in it, what lies outside marks is.
    """
    own_s = [step.device_time_s or 0.0 for step in record.known_steps]
    later_s = own_s[1:] if record.known_steps[0] is record.steps[0] else own_s
    more_s = record.step_time_s - statistics.fmean(own_s)
    first_s = 0.0
    if later_s and abs(more_s) > _ROUNDING * record.step_time_s:
        first_s = statistics.fmean(later_s) - statistics.fmean(own_s)
    outside_s = max(more_s - first_s, 0.0)  # where steps overlap on the device it would be less
    return Part(FIRST, "profiling", first_s), Part(OUTSIDE, "not explained", outside_s)


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
        PlacedTrace(number, record, _roof_of(record, ceilings, peaks))
        for number, record in enumerate(records, 1)
    ]


def _roof_of(
    record: TraceRecord, ceilings: Sequence[CeilingsRecord], peaks: Sequence[Peaks]
) -> UsedCeiling | Unknown:
    if record.device is None:
        return Unknown(f"which device it is: {record.missing['device']}")
    if record.math_mode is None:
        return Unknown(f"in which arithmetic it computes: {record.missing['math_mode']}")
    device = DeviceInfo.of(  # ROCm's devices are called cuda too
        "the trace does not say", name=record.device, backend="cuda", cores=record.device_cores
    )
    return ceiling_by_name(device, record.math_mode, ceilings, peaks, because=_BY_NAME)


# Two traces


@dataclass(frozen=True)
class OpChange:
    """One op of one phase and shape in trace A and in trace B, per step; None where it is absent.

    `time_s` is the own time of its kernels, `exclusive_s` what it adds to the step, `difference_s`
    what it adds to B's over A's, `change` what became of it in a word or two.
    """

    label: str
    op: str
    phase: str | None
    shapes: str
    calls: _MaybePair
    time_s: _MaybePair
    exclusive_s: _Pair
    difference_s: float
    change: str


@dataclass(frozen=True)
class TraceComparison:
    """The steps of two traces and their ops, those that explain most of the difference first.

    Where one trace does the work of several repetitions, and the other that of more or fewer, every
    figure is of one repetition; else `repetitions` are 1. Step figures are medians over the steps;
    `step_s` is what one costs its device, or its mark's duration where the trace has no device.
    Differences are B's time less A's, of idle time None where a trace has no device. The ops'
    exclusive times and the idle time add up to a step of the device, so their differences add up to
    `explained_s`.
    """

    names: tuple[str, str]  # of their files
    step_s: _Pair
    idle_s: _MaybePair
    difference_s: float
    idle_difference_s: float | None
    explained_s: float
    ops: tuple[OpChange, ...]
    repetitions: _Pair
    steps: tuple[int, int]  # how many each trace has

    @property
    def changed(self) -> list[OpChange]:
        """The ops that are not in both as before."""
        return [op for op in self.ops if op.change != "as before" or op.difference_s]

    @property
    def summary(self) -> str:
        """How much longer a step of B is, and what explains it."""
        whole = set(self.repetitions) == {1}
        of_both = zip("AB", self.names, self.step_s, self.repetitions, strict=True)
        sides = "; ".join(
            f"{letter} {name}: {three_digits(1e3 * step_s)} ms a "
            f"{'step' if whole else f'repetition, of {repetitions:g}'}"
            for letter, name, step_s, repetitions in of_both
        )
        idle_s = self.idle_difference_s
        idle = "" if idle_s is None else f", {signed(1e3 * idle_s)} ms of it idle time"
        rest_s = abs(self.explained_s - self.difference_s)
        how, verb = "beside", "add up to"
        if rest_s <= _EXPLAINED * abs(self.difference_s):
            how, verb = "of", "explain"
        summary = (
            f"{sides}; B takes {signed(1e3 * self.difference_s)} ms, {how} which ops and idle time "
            f"{verb} {signed(1e3 * self.explained_s)} ms{idle}"
        )
        if min(self.steps) > 1:
            return summary
        return (
            f"{summary}. A trace of one step does not say how much is noise; "
            "mlproject compare holds timed runs against each other"
        )


def are_ranks(records: Sequence[TraceRecord]) -> bool:
    """Whether these are ranks of one job: of one world size and one kind of device.

    Where only their names say so, each has collectives.
    """
    ranks = {record.rank for record in records} - {None}
    jobs = {(record.world_size, record.device) for record in records}
    known = all(record.world_size for record in records)
    exchange = (any(op.label == COMMUNICATION for op in record.ops) for record in records)
    return len(ranks) == len(records) > 1 == len(jobs) and (known or all(exchange))


def compare_two(records: Sequence[TraceRecord]) -> TraceComparison | Unknown | None:
    """Return what the second of two traces has over the first, or the reason for no comparison.

    None for more or fewer traces. Not compared are ranks of one job, and steps of which one does
    only some of the other's work more often.
    """
    if len(records) != 2:
        return None
    a, b = records
    if are_ranks(records):
        return Unknown(f"ranks {a.rank} and {b.rank} of one job: neither is before the other")
    repetitions = _repetitions(_changes(records))
    if not repetitions:
        return repetitions
    changes = sorted(_changes(records, repetitions), key=lambda op: -abs(op.difference_s))
    step_s, idle_s = [], []
    for record, times in zip(records, repetitions, strict=True):
        # where the host runs ahead, its marks say nothing of the difference
        lengths_s = [step.device_time_s or step.wall_s for step in record.known_steps]
        known_s = [step.idle_s for step in record.known_steps if step.idle_s is not None]
        step_s.append(statistics.median(lengths_s) / times)
        idle_s.append(statistics.median(known_s) / times if known_s else None)
    before_s, after_s = idle_s
    idle_difference_s = None if before_s is None or after_s is None else after_s - before_s
    names = [record.source_file for record in records]
    if a.device != b.device:
        names = [
            f"{record.source_file} ({record.device or 'device unknown'})" for record in records
        ]
    return TraceComparison(
        names=(names[0], names[1]),
        step_s=(step_s[0], step_s[1]),
        idle_s=(before_s, after_s),
        difference_s=step_s[1] - step_s[0],
        idle_difference_s=idle_difference_s,
        explained_s=sum(op.difference_s for op in changes) + (idle_difference_s or 0.0),
        ops=tuple(changes),
        repetitions=repetitions,
        steps=(len(a.steps), len(b.steps)),
    )


# Ranks of one job


def rank_waits(
    traces: Sequence[PlacedTrace],
) -> tuple[list[dict[str, Any]], Finding | None] | Unknown | None:
    """Return a row for each rank, of mean steps in ms, and who makes the others wait, or why not.

    None for no ranks of one job, and for records alone: these hold no collectives.

    Clocks of several machines differ, so collectives are held against each other by how long they
    last: one ends for all ranks together, and is the shortest on the rank that arrives last. A wait
    is what the others last longer, while their rank computes nothing.
    """
    read = all(trace.rank_steps for trace in traces)
    if not read or not are_ranks([trace.record for trace in traces]):
        return None
    traced = [trace.record.steps for trace in traces]
    names = [[step.name for step in steps] for steps in traced]
    if any(steps != names[0] for steps in names):
        return Unknown("the ranks' files hold other steps: record the same ones on each")
    on_card = {step.device_time_s is not None for steps in traced for step in steps}
    if len(on_card) > 1 or any(step.step_s <= 0 for of in traces for step in of.rank_steps):
        return Unknown("of some steps the files do not hold the time")
    waits_s, last = [], Counter[int]()
    for name, *steps in zip(names[0], *(trace.rank_steps for trace in traces), strict=True):
        calls = [[call for call, *_ in step.collectives] for step in steps]
        if any(of_rank != calls[0] for of_rank in calls):
            return Unknown(f"the ranks do other collectives in {name}: stages of a pipeline?")
        waits_s.append(_step_waits_s(steps, last))
    if not last:
        return Unknown("the traces hold no collective")
    rows, ranks = [], []
    for number, trace in enumerate(traces):
        rank = RankFigures.of(
            "not in the rank's file",
            rank=trace.record.rank,
            node=0,
            iteration_times_s=[step.step_s for step in trace.rank_steps],
            data_wait_s=[step.loader_s for step in trace.rank_steps],
            exchange_wait_s=[of_ranks[number] for of_ranks in waits_s],
            processor_s=[step.computing.length / 1e6 for step in trace.rank_steps],
        )
        ranks.append(rank)
        rows.append({
            **{"rank": rank.rank, "source_file": trace.record.source_file},
            **mean_parts_ms(rank, on_card=True in on_card),
            "arrives_last_share": last[number] / last.total(),
        })  # fmt: skip
    return rows, slow_rank(ranks, on_card=True in on_card)


def _step_waits_s(steps: Sequence[RankStep], last: Counter[int]) -> list[float]:
    """Return each rank's wait in one step; count in `last` who arrives last at each collective."""
    waits_us: list[list[tuple[float, float]]] = [[] for _ in steps]
    for spans in zip(*(step.collectives for step in steps), strict=True):
        lasts_us = [end_us - begin_us for _, begin_us, end_us in spans]
        last[lasts_us.index(min(lasts_us))] += 1
        for waits, (_, begin_us, end_us) in zip(waits_us, spans, strict=True):
            waits.append((begin_us, end_us - min(lasts_us)))
    unions = (Intervals.union(*np.array(waits).reshape(-1, 2).T) for waits in waits_us)
    return [u.outside(step.computing) / 1e6 for step, u in zip(steps, unions, strict=True)]


def _changes(records: Sequence[TraceRecord], repetitions: _Pair = (1, 1)) -> list[OpChange]:
    """The ops of both by name, phase and shapes; one that is launched in several ways is one op."""
    sums: defaultdict[tuple[str, str, str | None, str], list[list[float]]]
    sums = defaultdict(lambda: [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    for side, (record, times) in enumerate(zip(records, repetitions, strict=True)):
        for op in record.ops:
            totals = sums[op.label, op.op, op.phase, op.shapes]
            for total, value in zip(totals, (op.calls, op.time_s, op.exclusive_s), strict=True):
                total[side] += value / times
    changes = []
    for identity, ((a, b), (a_s, b_s), (adds_a_s, adds_b_s)) in sums.items():
        calls, times_s = (a or None, b or None), (a_s if a else None, b_s if b else None)
        adds_s, change = (adds_a_s, adds_b_s), _change(calls, times_s)
        changes.append(OpChange(*identity, calls, times_s, adds_s, adds_b_s - adds_a_s, change))
    return changes


def _change(calls: _MaybePair, time_s: _MaybePair) -> str:
    """What became of an op, by its kernels' own time.

    Where the time follows the calls, and a call of B takes as long as one of A or changed the other
    way, it is the calls that changed.
    """
    (before, after), (before_s, after_s) = calls, time_s
    if before is None or before_s is None:
        return "appeared"
    if after is None or after_s is None:
        return "vanished"
    if abs(after_s - before_s) <= _EQUAL * max(before_s, after_s):
        return "as before"
    longer = after_s > before_s
    a_call_s, b_call_s = before_s / before, after_s / after
    equal = abs(b_call_s - a_call_s) <= _EQUAL * max(a_call_s, b_call_s)
    if before != after and (equal or (b_call_s > a_call_s) != longer):
        return "more calls" if longer else "fewer calls"
    return "slower" if longer else "faster"


def _repetitions(ops: Sequence[OpChange]) -> _Pair | Unknown:
    """How often each trace's step does the work of both, by the calls of the ops that both have.

    Unknown where these do not agree.
    """
    shared = [
        (after / before, sum(op.exclusive_s), op)
        for op in ops
        for before, after in [op.calls]
        if before and after
    ]
    shared.sort(key=lambda part: part[0])
    until_s = list(accumulate(time_s for _, time_s, _ in shared))
    if not shared or not until_s[-1]:
        return 1, 1
    typical = shared[bisect_left(until_s, until_s[-1] / 2)][0]
    if abs(typical - 1) <= _SAME_RATIO:
        return 1, 1
    same = [part for part in shared if abs(part[0] / typical - 1) <= _SAME_RATIO]
    if sum(time_s for _, time_s, _ in same) < _MOST_OPS * until_s[-1]:
        worst = max(same, key=lambda part: part[1])[2]
        return Unknown(
            f"their steps do not do the same work: {worst.op} is called {worst.calls[0]:g} times a "
            f"step in A and {worst.calls[1]:g} times in B, and other ops not so: other models, or "
            "steps that are cut otherwise (--steps NAME)"
        )
    times = [gcd(*(round(op.calls[side] or 0) for *_, op in same)) for side in (0, 1)]
    if min(times) and abs(times[1] / times[0] / typical - 1) <= _SAME_RATIO:
        return times[0], times[1]
    return 1, typical
