"""The account of a step: where its time goes, in parts that add up to it exactly.

Each op has three times, none shorter than the one before: at its roof (its FLOP at the peak or its
fused bytes at the memory roof, whichever takes longer), unfused (the same with its eager bytes),
and as measured. So a step is:

- the roof, summed over its ops;
- unfused traffic: what their eager bytes take beyond that;
- each class of ops below its roof: what is left of their time; an op that a cache serves, or a
  convolution that executes fewer FLOP than are counted (Winograd), is faster than its roof, and
  what it gains is a negative part of its own;
- ops whose work is not known, by class;
- communication that nothing hides; idle time by cause, or the host between ops on a processor;
- waiting for the loader, where the timed run says it and the profiled step had room for it;
- profiling: the untraced step less the traced one, negative where the profiler slowed it;
- not explained: what the others leave.

The step is the timed run's. Where a profiled step is over 10 % longer or shorter the account is
disturbed: idle time may be the profiler's own.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from analysis.profiles import short_kernel_name
from analysis.roofs.roof import Roof
from analysis.runs.run import Run
from analysis.traces.placed import PlacedTrace
from analysis.words import percent, ratio_digits, three_digits
from bench.errors import Unknown, UserError
from bench.records import Measurement, OpTime, ProfileRecord, RunRecord, TracedOp
from bench.records.base import ratio
from bench.records.metrics import data_wait_share
from bench.records.profile import COMMUNICATION

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal[
    "roof", "traffic", "ops", "cache", "unknown work", "communication", "idle", "host", "input",
    "profiling", "not explained",
]  # fmt: skip
#: Parts of the step's time that the profiler may change before its idle time says nothing.
_DISTURBED = 0.1
#: What a convolution's label has behind its kind.
_SIZES = re.compile(r" \d+x\d+.*| \d+ .*")
#: A terminal shows so many parts; the smaller ones are added up.
_MOST_LINES = 7
_ROUNDING = 1e-9
_HOST = "the host between ops: Python, autograd, dispatch"


@dataclass(frozen=True)
class Part:
    """A part of a step; `of_roof` is a class's share of its own roof: roof time over its time."""

    name: str
    kind: Kind
    time_s: float
    of_roof: float | None = None


@dataclass(frozen=True)
class StepAccount:
    """A step and its parts, which add up to it: the roof first, then the largest.

    `traced_step_s` is the profiled step, None where the step itself is a trace's.
    """

    step_time_s: float
    parts: tuple[Part, ...]
    traced_step_s: float | None

    @property
    def is_disturbed(self) -> bool:
        """Whether the profiler changed the step by over 10 %."""
        traced_s = self.traced_step_s
        return traced_s is not None and abs(traced_s / self.step_time_s - 1) > _DISTURBED

    @property
    def not_explained_s(self) -> float:
        """Seconds for which there is no cause."""
        return sum(part.time_s for part in self.parts if part.kind == "not explained")

    def facts(self) -> dict[str, Any]:
        """Return what a script wants of it, ready for JSON."""
        return {
            "step_time_s": self.step_time_s,
            "account": self.rows(),
            "account_disturbed": self.is_disturbed,
        }

    def metrics(self) -> dict[str, float]:
        """Return the seconds of each class of parts by the names of metrics on a tracked run."""
        sums_s: defaultdict[str, float] = defaultdict(float)
        for part in self.parts:
            sums_s[f"account_{part.kind.replace(' ', '_')}_s"] += part.time_s
        return dict(sums_s)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per part: its name, class, seconds, share of the step and of its roof."""
        return [
            {"name": part.name, "class": part.kind, "seconds": part.time_s,
             "share": ratio(part.time_s, self.step_time_s), "of_its_roof": part.of_roof}
            for part in self.parts
        ]  # fmt: skip

    def lines(self) -> Iterator[str]:
        """Yield the account for a terminal, its smallest parts added up."""
        if self.is_disturbed:
            traced_ms, step_ms = 1e3 * (self.traced_step_s or 0.0), 1e3 * self.step_time_s
            yield (
                f"disturbed: the profiled step takes {three_digits(traced_ms)} ms, the timed one "
                f"{three_digits(step_ms)} ms; no part is sure"
            )
        shown, rest = self.parts[:_MOST_LINES], self.parts[_MOST_LINES:]
        if rest:
            others = sum(part.time_s for part in rest)
            shown = (*shown, Part(f"{len(rest)} smaller parts", "ops", others))
        for part in shown:
            share = percent(ratio(part.time_s, self.step_time_s) or 0.0)
            own = "" if part.of_roof is None else f", at {percent(part.of_roof)} of their roof"
            yield f"{three_digits(1e3 * part.time_s):>8} ms  {share:>5}  {part.name}{own}"


#: What removes a part, by its kind.
_REMEDIES: Mapping[Kind, str] = {
    "traffic": "torch.compile fuses elementwise ops into their neighbours, and saves their traffic",
    "ops": "another layout, precision or batch size may choose faster kernels: mlproject tune",
    "communication": "larger buckets, or gradients in 16 bits, hide or save communication",
    "idle": "CUDA graphs, torch.compile or a larger batch leave the device fewer gaps",
    "host": "torch.compile or a larger batch leaves the host less to do for each op",
    "input": "more loader processes have batches ready earlier",
}
#: A smaller part is not worth a sentence.
_LEAST_SHARE = 0.05


def largest_loss(account: StepAccount) -> str | None:
    """Return a sentence on the largest part that can be removed; None where there is none to tell.

    Nothing is said of a disturbed account, and of parts below 5 % of the step.
    """
    parts = [part for part in account.parts if part.kind in _REMEDIES]
    part = max(parts, key=lambda part: part.time_s, default=None)
    if part is None or account.is_disturbed:
        return None
    share = part.time_s / account.step_time_s
    if share < _LEAST_SHARE:
        return None
    return f"{percent(share)} of its step is {part.name}: {_REMEDIES[part.kind]}"


#: Parts of a difference that are named.
_MOST_NAMED = 4


def difference(a: StepAccount, b: StepAccount) -> str:
    """Return which parts make a step of B shorter or longer than one of A, the largest first.

    And what the roofs of both allow, where both are known.
    """
    gains_s = {part.name: 0.0 for part in (*a.parts, *b.parts)}
    for account, sign in ((a, 1), (b, -1)):
        for part in account.parts:
            gains_s[part.name] += sign * part.time_s
    whole_s = a.step_time_s - b.step_time_s
    word, sign = ("saved", 1) if whole_s >= 0 else ("added", -1)
    largest = sorted(gains_s.items(), key=lambda one: -abs(one[1]))[:_MOST_NAMED]
    named = ", ".join(f"{name} {three_digits(sign * 1e3 * gain)}" for name, gain in largest if gain)
    said = f"of {three_digits(1e3 * abs(whole_s))} ms {word}: {named}"
    a_roof_s, b_roof_s = (
        sum(part.time_s for part in one.parts if part.kind == "roof") for one in (a, b)
    )
    if not (a_roof_s and b_roof_s):
        return said
    times = f"{ratio_digits(a_roof_s / b_roof_s)} times, measured are "
    return f"{said}; the roofs allow {times}{ratio_digits(a.step_time_s / b.step_time_s)}"


def class_of(op: OpTime | TracedOp) -> str:
    """Return the class of an op: its kind without sizes, and its phase if that is backward.

    What a graph launched has its kernel's name for a label, which is shortened.
    """
    is_kernel = "::" in op.label or "<" in op.label
    label = short_kernel_name(op.label) if is_kernel else _SIZES.sub("", op.label)
    return f"{label} backward" if op.phase == "backward" else label


def account_of(
    record: RunRecord | ProfileRecord, roof: Roof | None, timed: Measurement | None
) -> StepAccount | Unknown:
    """Return the account of a record's profiled step, or why there is none.

    `roof` is that of one of its devices; without one the ops' parts are their whole time. `timed`
    is the window that the step is held against, of a run its own.
    """
    if (ops := record.ops) is None:
        return Unknown(f"no times of ops: {record.missing['ops']}")
    parts, traced_s = list(_of_ops(ops.ops, roof)), ops.step_time_s
    rest_s = traced_s - sum(part.time_s for part in parts)
    if timed is not None:
        wait_s = min(data_wait_share(timed) * timed.step_s, max(rest_s, 0.0))
        parts.append(Part("waiting for the loader", "input", wait_s))
        rest_s -= wait_s
        parts.append(Part("the profiler", "profiling", timed.step_s - traced_s))
    on_host = ops.device_busy_share is None
    parts.append(Part(_HOST, "host", rest_s) if on_host else Part("device idle", "idle", rest_s))
    return _account(timed.step_s if timed else traced_s, parts, traced_s)


def account_of_run(run: Run) -> StepAccount | Unknown:
    """Return the account of a run's own step, under the roof of its place, or why there is none."""
    if (record := run.record) is None:
        return Unknown("another program measured it")
    return account_of(record, run.point.roof if run.point else None, record.measurement)


def step_account(run: Run) -> pd.DataFrame:
    """Return the account of a run's step: a row per part, the roof first, then the largest.

    Columns are `name`, `class`, `seconds`, `share` of the step and `of_its_roof`. `run` is of
    `pull_records(...).runs()` or `place`. Raises `UserError` where no op of its step was timed.
    """
    import pandas as pd

    account = account_of_run(run)
    if isinstance(account, Unknown):
        raise UserError(f"run {run.name}: {account.reason}")
    table: pd.DataFrame = pd.DataFrame(account.rows())
    return table


def newest_accounts(runs: Sequence[Run]) -> list[tuple[Run, StepAccount]]:
    """Return the account of each configuration's last run that has one, in the runs' order."""
    found: dict[str, tuple[Run, StepAccount]] = {}
    for run in reversed(runs):
        if run.label not in found and isinstance(account := account_of_run(run), StepAccount):
            found[run.label] = run, account
    return list(found.values())[::-1]


def account_of_trace(trace: PlacedTrace) -> StepAccount:
    """Return the account of a trace's mean step; without a roof ops are their whole time."""
    record, idle_s = trace.record, defaultdict[str, float](float)
    parts = list(_of_ops(record.ops, trace.used.roof if trace.used else None))
    for step in record.steps:
        for cause, time_s in step.idle_s_by_cause.items():
            idle_s[cause] += time_s / len(record.steps)
    for cause, time_s in idle_s.items():
        kind: Kind = "input" if cause == "input" else "idle"
        parts.append(Part(f"device idle: {cause}", kind, time_s))
    windows_s = [step.device_time_s for step in record.steps if step.device_time_s is not None]
    if windows_s:  # the step's time is from one's end to the next one's: the first is not in it
        more_s = record.step_time_s - statistics.fmean(windows_s)
        parts.append(Part("the first step of the trace, against the others", "profiling", more_s))
    else:
        rest_s = record.step_time_s - sum(part.time_s for part in parts)
        parts.append(Part(_HOST, "host", rest_s))
    return _account(record.step_time_s, parts, None)


def account_of_times(
    ops: Iterable[OpTime], roof: Roof, step_s: float, *, on_host: bool
) -> StepAccount:
    """Return the account of a step of which each op's time is known, as a prediction has them."""
    parts = list(_of_ops(ops, roof))
    rest_s = step_s - sum(part.time_s for part in parts)
    parts.append(Part(_HOST, "host", rest_s) if on_host else Part("device idle", "idle", rest_s))
    return _account(step_s, parts, None)


def _of_ops(ops: Iterable[OpTime | TracedOp], roof: Roof | None) -> Iterator[Part]:
    """The parts of the time in which ops ran."""
    at_roof_s = unfused_s = cached_s = communicated_s = 0.0
    below_s: defaultdict[str, float] = defaultdict(float)
    of_class_s: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    unknown_s: defaultdict[str, float] = defaultdict(float)
    for op in ops:
        name, took_s = class_of(op), op.exclusive_s
        if op.label == COMMUNICATION:
            communicated_s += took_s
        elif op.flops is None or roof is None:
            unknown_s[name] += took_s
        else:
            compute_s = (op.flops - op.causal_skipped_flops) / roof.peak_flops_per_s
            fused_s, eager_s = (
                max(compute_s, (count or 0) / roof.peak_bytes_per_s)
                for count in (op.fused_bytes, op.eager_bytes)
            )
            at_roof_s += fused_s
            unfused_s += eager_s - fused_s
            cached_s += min(took_s - eager_s, 0.0)
            below_s[name] += max(took_s - eager_s, 0.0)
            of_class_s[name][0] += fused_s
            of_class_s[name][1] += took_s
    if roof is not None:
        yield Part("each op at its roof", "roof", at_roof_s)
        yield Part("unfused memory traffic", "traffic", unfused_s)
    for name, time_s in below_s.items():
        needed_s, took_s = of_class_s[name]
        of_roof = ratio(needed_s, took_s) or None
        yield Part(f"{name} below its roof", "ops", time_s, of_roof)
    yield Part("ops faster than their roof", "cache", cached_s)
    for name, time_s in unknown_s.items():
        kind: Kind = "ops" if roof is None else "unknown work"
        yield Part(name if roof is None else f"{name}, its work not known", kind, time_s)
    yield Part("communication that nothing hides", "communication", communicated_s)


def _account(step_s: float, parts: Iterable[Part], traced_s: float | None) -> StepAccount:
    known = [part for part in parts if part.time_s]
    rest_s = step_s - sum(part.time_s for part in known)
    if abs(rest_s) > _ROUNDING * step_s:
        known.append(Part("not explained", "not explained", rest_s))
    known.sort(key=lambda part: (part.kind != "roof", -abs(part.time_s)))
    return StepAccount(step_s, tuple(known), traced_s)
