"""Two traces: which ops became slower or faster, and what that explains of the step."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import gcd
from typing import Literal, TypeVar

from analysis.runs.quantities import signed, three_digits
from bench.records import TracedOp, TracedStep, TraceRecord

T = TypeVar("T")
Change = Literal[
    "slower", "faster", "more calls", "fewer calls", "appeared", "vanished", "as before"
]

#: Of the larger time; smaller differences are called equal.
_EQUAL = 0.02
#: Of a ratio of calls; and the share of the shared ops' time in which it must hold.
_SAME_RATIO, _MOST_OPS = 0.01, 0.9
#: Ops and idle time explain a difference if what they add up to is so near to it.
_EXPLAINED = 0.5


@dataclass(frozen=True)
class OpChange:
    """One op of one phase and shape in trace A and in trace B, per step; None where it is absent.

    `time_s` is the own time of its kernels, `exclusive_s` what it adds to the step.
    """

    label: str
    op: str
    phase: str | None
    shapes: str
    calls: tuple[float | None, float | None]
    time_s: tuple[float | None, float | None]
    exclusive_s: tuple[float, float]

    @property
    def difference_s(self) -> float:
        """What it adds to B's step over A's."""
        return self.exclusive_s[1] - self.exclusive_s[0]

    @property
    def change(self) -> Change:
        """What became of it from A to B, by its kernels' own time.

        Where the time follows the calls, and a call of B takes as long as one of A or changed the
        other way, it is the calls that changed.
        """
        before_s, after_s = self.time_s
        if before_s is None:
            return "appeared"
        if after_s is None:
            return "vanished"
        if abs(after_s - before_s) <= _EQUAL * max(before_s, after_s):
            return "as before"
        longer = after_s > before_s
        before, after = self.calls
        if before and after and before != after:
            a_call, b_call = before_s / before, after_s / after
            equal = abs(b_call - a_call) <= _EQUAL * max(a_call, b_call)
            if equal or (b_call > a_call) != longer:
                return "more calls" if longer else "fewer calls"
        return "slower" if longer else "faster"


@dataclass(frozen=True)
class TraceComparison:
    """The steps of two traces and their ops, those that explain most of the difference first.

    `names` are those of their files. Where one trace does the work of several repetitions, and the
    other that of more or fewer, every figure is of one repetition; else `repetitions` are 1.

    Step figures are medians over the steps; `step_s` is what one costs its device, or its mark's
    duration where the trace has no device. The ops' exclusive times and the idle time add up to a
    step of the device, so their differences add up to `explained_s`.
    """

    names: tuple[str, str]
    step_s: tuple[float, float]
    idle_s: tuple[float | None, float | None]
    ops: tuple[OpChange, ...]
    repetitions: tuple[float, float]
    steps: tuple[int, int]  # how many each trace has

    @property
    def difference_s(self) -> float:
        """B's step less A's."""
        return self.step_s[1] - self.step_s[0]

    @property
    def idle_difference_s(self) -> float | None:
        """B's idle time less A's; None where a trace has no device."""
        before_s, after_s = self.idle_s
        return None if before_s is None or after_s is None else after_s - before_s

    @property
    def changed(self) -> list[OpChange]:
        """The ops that are not in both as before."""
        return [op for op in self.ops if op.change != "as before" or op.difference_s]

    @property
    def summary(self) -> str:
        """How much longer a step of B is, and what explains it."""
        one = "step" if set(self.repetitions) == {1} else "repetition"
        sides = "; ".join(
            f"{letter} {name}: {three_digits(1e3 * step_s)} ms a {one}"
            + ("" if one == "step" else f", of {repetitions:g}")
            for letter, name, step_s, repetitions in zip(
                "AB", self.names, self.step_s, self.repetitions, strict=True
            )
        )
        idle_s = self.idle_difference_s
        idle = "" if idle_s is None else f", {_signed_ms(idle_s)} of it idle time"
        rest_s = abs(self.explained_s - self.difference_s)
        is_explained = rest_s <= _EXPLAINED * abs(self.difference_s)
        explained = (
            f", {'of' if is_explained else 'beside'} which ops and idle time "
            f"{'explain' if is_explained else 'add up to'} {_signed_ms(self.explained_s)}{idle}"
        )
        alone = ""
        if min(self.steps) == 1:
            each = "each" if max(self.steps) == 1 else f"of {'AB'[self.steps.index(1)]}"
            alone = (
                f". One step {each}: how much of it is noise is not known; "
                "mlproject compare holds timed runs against each other"
            )
        return f"{sides}; B takes {_signed_ms(self.difference_s)}{explained}{alone}"

    @property
    def explained_s(self) -> float:
        """What ops and idle time explain of the difference."""
        return sum(op.difference_s for op in self.ops) + (self.idle_difference_s or 0.0)


def compare_traces(
    a: TraceRecord, b: TraceRecord, repetitions: tuple[float, float] = (1, 1)
) -> TraceComparison:
    """Return how the ops of `b` differ from those of `a`, per step, or repetition of its work."""
    ours, theirs = _by_identity(a.ops), _by_identity(b.ops)
    changes = [_change(ours.get(key), theirs.get(key), repetitions) for key in {**ours, **theirs}]
    changes.sort(key=lambda one: abs(one.difference_s), reverse=True)
    sides = tuple(zip((a, b), repetitions, strict=True))
    idle = [(_median_idle_s(one.steps), times) for one, times in sides]
    return TraceComparison(
        names=(_name(a, b), _name(b, a)),
        step_s=_pair(_median_step_s(one.steps) / times for one, times in sides),
        idle_s=_pair(None if idle_s is None else idle_s / times for idle_s, times in idle),
        ops=tuple(changes),
        repetitions=repetitions,
        steps=(len(a.steps), len(b.steps)),
    )


def compare_two(records: Sequence[TraceRecord]) -> TraceComparison | str | None:
    """Return what the second of two traces has over the first, or the reason for no comparison.

    None for more or fewer traces. Ranks of one job, which have one world size and one kind of
    device, are not compared: neither is before the other. Nor are steps of which one does some of
    the other's work more often, and some not.
    """
    if len(records) != 2:
        return None
    a, b = records
    are_ranks = a.rank is not None and b.rank is not None and a.rank != b.rank
    if are_ranks and (a.world_size, a.device) == (b.world_size, b.device):
        return f"ranks {a.rank} and {b.rank} of one job: neither is before the other"
    repetitions = _repetitions(a, b)
    return repetitions if isinstance(repetitions, str) else compare_traces(a, b, repetitions)


def _repetitions(a: TraceRecord, b: TraceRecord) -> tuple[float, float] | str:
    """How often each trace's step does the work of both, by the calls of the ops that both have.

    The reason for no comparison where these do not agree.
    """
    ours, theirs = _by_identity(a.ops), _by_identity(b.ops)
    shared: list[tuple[float, float, OpChange]] = []
    for key in ours.keys() & theirs.keys():
        one = _change(ours[key], theirs[key], (1, 1))
        before, after = one.calls
        if before and after:
            shared.append((after / before, sum(one.exclusive_s), one))
    total_s = sum(time_s for _, time_s, _ in shared)
    if not total_s:
        return 1, 1
    shared.sort(key=lambda one: one[0])
    until_s = accumulate(time_s for _, time_s, _ in shared)
    typical = next(r for (r, *_), s in zip(shared, until_s, strict=True) if s >= total_s / 2)
    if abs(typical - 1) <= _SAME_RATIO:
        return 1, 1
    same = [one for one in shared if abs(one[0] / typical - 1) <= _SAME_RATIO]
    if sum(time_s for _, time_s, _ in same) < _MOST_OPS * total_s:
        worst = max(same, key=lambda one: one[1])[2]
        return (
            f"their steps do not do the same work: {worst.op} is called {worst.calls[0]:g} times a "
            f"step in A and {worst.calls[1]:g} times in B, and other ops not so: other models, or "
            "steps that are cut otherwise (--steps NAME)"
        )
    times = [gcd(*(round(op.calls[side] or 0) for *_, op in same)) for side in (0, 1)]
    if min(times) and abs(times[1] / times[0] / typical - 1) <= _SAME_RATIO:
        return times[0], times[1]
    return 1, typical


def _name(one: TraceRecord, other: TraceRecord) -> str:
    of = f" ({one.device or 'device unknown'})" if one.device != other.device else ""
    return f"{one.source_file}{of}"


def _pair(values: Iterable[T]) -> tuple[T, T]:
    first, second = values
    return first, second


_Identity = tuple[str, str, str | None, str]


def _by_identity(ops: Sequence[TracedOp]) -> dict[_Identity, list[TracedOp]]:
    """The ops by name and shapes; what is launched in several ways is one."""
    found: defaultdict[_Identity, list[TracedOp]] = defaultdict(list)
    for op in ops:
        found[op.label, op.op, op.phase, op.shapes].append(op)
    return dict(found)


def _change(
    before: list[TracedOp] | None, after: list[TracedOp] | None, repetitions: tuple[float, float]
) -> OpChange:
    one = (before or after or [])[0]
    sides = tuple(zip((before, after), repetitions, strict=True))

    def totals(name: str) -> tuple[float | None, float | None]:
        return _pair(
            None if ops is None else sum(getattr(op, name) for op in ops) / times
            for ops, times in sides
        )

    return OpChange(
        label=one.label,
        op=one.op,
        phase=one.phase,
        shapes=one.shapes,
        calls=totals("calls"),
        time_s=totals("time_s"),
        exclusive_s=_pair(time_s or 0.0 for time_s in totals("exclusive_s")),
    )


def _signed_ms(seconds: float) -> str:
    return f"{signed(1e3 * seconds)} ms"


def _median_step_s(steps: Sequence[TracedStep]) -> float:
    # where the host runs ahead, its marks say nothing of the difference
    return statistics.median(step.device_time_s or step.wall_s for step in steps)


def _median_idle_s(steps: Sequence[TracedStep]) -> float | None:
    known = [step.idle_s for step in steps if step.idle_s is not None]
    return statistics.median(known) if known else None
