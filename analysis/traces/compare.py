"""Two traces: which ops became slower or faster, and what that explains of the step."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.runs.quantities import signed, three_digits
from bench.records import TracedOp, TracedStep, TraceRecord

Change = Literal["slower", "faster", "appeared", "vanished", "as before"]

#: Of the larger time; smaller differences are called equal.
_EQUAL = 0.02


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
        """What became of it from A to B, by its kernels' own time."""
        before_s, after_s = self.time_s
        if before_s is None:
            return "appeared"
        if after_s is None:
            return "vanished"
        if abs(after_s - before_s) <= _EQUAL * max(before_s, after_s):
            return "as before"
        return "slower" if after_s > before_s else "faster"


@dataclass(frozen=True)
class TraceComparison:
    """The steps of two traces and their ops, those that explain most of the difference first.

    `names` are those of their files.

    Step figures are medians over the steps; `step_s` is what one costs its device, or its mark's
    duration where the trace has no device. The ops' exclusive times and the idle time add up to a
    step of the device, so their differences add up to `explained_s`.
    """

    names: tuple[str, str]
    step_s: tuple[float, float]
    idle_s: tuple[float | None, float | None]
    ops: tuple[OpChange, ...]

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
        before, after = (f"{three_digits(1e3 * step_s)} ms" for step_s in self.step_s)
        idle_s = self.idle_difference_s
        idle = "" if idle_s is None else f", {_signed_ms(idle_s)} of it idle time"
        return (
            f"A {self.names[0]}: {before} a step; B {self.names[1]}: {after}; "
            f"B takes {_signed_ms(self.difference_s)}, of which ops and idle time explain "
            f"{_signed_ms(self.explained_s)}{idle}"
        )

    @property
    def explained_s(self) -> float:
        """What ops and idle time explain of the difference."""
        return sum(op.difference_s for op in self.ops) + (self.idle_difference_s or 0.0)


def compare_traces(a: TraceRecord, b: TraceRecord) -> TraceComparison:
    """Return how the ops of `b` differ from those of `a`, per step."""
    ours, theirs = _by_identity(a.ops), _by_identity(b.ops)
    changes = [_change(ours.get(key), theirs.get(key)) for key in {**ours, **theirs}]
    changes.sort(key=lambda one: abs(one.difference_s), reverse=True)
    return TraceComparison(
        names=(a.source_file, b.source_file),
        step_s=(_median_step_s(a.steps), _median_step_s(b.steps)),
        idle_s=(_median_idle_s(a.steps), _median_idle_s(b.steps)),
        ops=tuple(changes),
    )


def compare_two(records: Sequence[TraceRecord]) -> TraceComparison | None:
    """Return what the second of two traces has over the first.

    None for more or fewer traces, and for different ranks of one job: neither is before the other.
    """
    if len(records) != 2:
        return None
    a, b = records
    are_ranks = a.rank is not None and b.rank is not None and a.rank != b.rank
    return None if are_ranks else compare_traces(a, b)


_Identity = tuple[str, str, str | None, str]


def _by_identity(ops: Sequence[TracedOp]) -> dict[_Identity, list[TracedOp]]:
    """The ops by name and shapes; what is launched in several ways is one."""
    found: defaultdict[_Identity, list[TracedOp]] = defaultdict(list)
    for op in ops:
        found[op.label, op.op, op.phase, op.shapes].append(op)
    return dict(found)


def _change(before: list[TracedOp] | None, after: list[TracedOp] | None) -> OpChange:
    one = (before or after or [])[0]

    def total(ops: list[TracedOp] | None, name: str) -> float | None:
        return None if ops is None else sum(getattr(op, name) for op in ops)

    return OpChange(
        label=one.label,
        op=one.op,
        phase=one.phase,
        shapes=one.shapes,
        calls=(total(before, "calls"), total(after, "calls")),
        time_s=(total(before, "time_s"), total(after, "time_s")),
        exclusive_s=(
            total(before, "exclusive_s") or 0.0,
            total(after, "exclusive_s") or 0.0,
        ),
    )


def _signed_ms(seconds: float) -> str:
    return f"{signed(1e3 * seconds)} ms"


def _median_step_s(steps: Sequence[TracedStep]) -> float:
    # where the host runs ahead, its marks say nothing of the difference
    return statistics.median(step.device_time_s or step.wall_s for step in steps)


def _median_idle_s(steps: Sequence[TracedStep]) -> float | None:
    known = [step.idle_s for step in steps if step.idle_s is not None]
    return statistics.median(known) if known else None
