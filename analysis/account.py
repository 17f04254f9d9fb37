"""The account of a step: where its time goes, in parts that add up to it exactly.

Each op has three times, none shorter than the one before: at its roof (its FLOP at the peak or its
fused bytes at the memory roof, whichever takes longer), unfused (the same with its eager bytes),
and as measured. So a step is:

- the roof, summed over its ops;
- unfused traffic: what their eager bytes take beyond that;
- the casts and scales that an fp8 step adds to its products, whole: no roof needs them;
- each class of ops below its roof: what is left of their time; an op that a cache serves, or a
  convolution that executes fewer FLOP than are counted (Winograd), is faster than its roof, and
  what it gains is a negative part of its own;
- ops whose work is not known, by class;
- communication that nothing hides; idle time by cause, or the host between ops on a processor;
- waiting for the loader, where the timed run says it and the profiled step had room for it;
- profiling: the step without the profiler less that with it, negative where it slowed the step;
- not explained: what the others leave.

The step is the timed run's. On a processor each profiled step is scaled to it and to what the
profiler costs, by the steps without the profiler before and after it: a machine that slows down for
a second changes no part. A part's interval is from the least to the most that the profiled
steps give. An account is disturbed where it is not sure which of its two largest parts is larger:
their intervals overlap, and one is wider than a tenth of the step. Of a record without neighbours,
and of a GPU's kernels, it is where what was profiled takes over 10 % longer or shorter than the
step.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter, mul
from statistics import median
from typing import Any, Literal

from analysis.presentation.words import percent, ratio_digits, three_digits
from analysis.profiles import short_kernel_name
from analysis.roofs import Roof
from bench.errors import Unknown
from bench.records import Measurement, OpProfile, OpTime, ProfileRecord, RunRecord, TracedOp
from bench.records.base import ratio
from bench.records.complexity import CallWork
from bench.records.metrics import data_wait_share
from bench.records.profile import CASTS, COMMUNICATION, HOST_COPY, LOADER, profiler_cost

Kind = Literal[
    "roof", "traffic", "ops", "cache", "unknown work", "communication", "idle", "host", "input",
    "profiling", "not explained",
]  # fmt: skip
#: Parts of the step's time that the profiler may change before its idle time says nothing.
_DISTURBED = 0.1
#: Of a part, the width of its interval that a terminal shows.
_WIDE = 0.1
#: What a convolution's label has behind its kind.
_SIZES = re.compile(r" \d+x\d+.*| \d+ .*")
#: Kernels of a trace that copy between the host and the device.
_HOST_COPY = re.compile(
    r"(memcpy |copy_?)(htod|dtoh|[hm]2d|d2[hm]|host_?to_?device|device_?to_?host)", re.IGNORECASE
)
#: A terminal shows so many lines; in the last one the smaller parts of many are added up.
_MOST_LINES = 8
_ROUNDING = 1e-9
#: From here on a change is said in times, not in per cent.
_MANY = 3
_BELOW = " below its roof"
#: What a processor does with the rest of a step.
HOST = "the host between ops: Python, autograd, dispatch"
_PROFILER = "the profiler"


@dataclass(frozen=True)
class Part:
    """A part of a step; `of_roof` is the unfused roof of a class of ops over their time.

    `low_s` and `high_s` are the ends of its interval, None where one step was looked at.
    """

    name: str
    kind: Kind
    time_s: float
    of_roof: float | None = None
    low_s: float | None = None
    high_s: float | None = None

    @property
    def width_s(self) -> float:
        """From the lower end of its interval to the upper, 0 where it has none."""
        return 0.0 if self.low_s is None or self.high_s is None else self.high_s - self.low_s

    def scaled(self, scale: float) -> Part:
        """Return the part of a step of which all times are `scale` times as long."""
        low_s, high_s = (end and end * scale for end in (self.low_s, self.high_s))
        return replace(self, time_s=self.time_s * scale, low_s=low_s, high_s=high_s)

    @property
    def short(self) -> str:
        """Its name in a list of many."""
        return self.name if self.kind == "idle" else self.name.removesuffix(_BELOW).split(":")[0]


@dataclass(frozen=True)
class StepAccount:
    """A step and its parts, which add up to it: the roof first, then the largest.

    `traced_step_s` is the profiled step, on a GPU its kernels where they take longer than the step;
    None where the step itself is a trace's, or steps were profiled by turns with others. Of these
    `profiler_cost` is a profiled step over its neighbours, `pace` the neighbours over the timed
    step, and `cause` what makes intervals wide.
    """

    step_time_s: float
    parts: tuple[Part, ...]
    traced_step_s: float | None
    cause: str = ""
    profiler_cost: float | None = None
    pace: float | None = None

    @property
    def confused(self) -> tuple[Part, ...]:
        """The two largest parts of a measured time where it is not sure which is larger.

        Or the largest and what the profiler takes: a part within its reach may be the profiler's.
        """
        kinds = (*REMOVABLE, "unknown work")
        parts = (part for part in self.parts if part.kind in kinds)
        largest = sorted(parts, key=lambda part: -part.time_s)[:2]
        rivals = [*largest[1:], *(part for part in self.parts if part.kind == "profiling")]
        pairs = ((first, rival) for first in largest[:1] for rival in rivals)
        return next((pair for pair in pairs if self._confuses(*pair)), ())

    def _confuses(self, *parts: Part) -> bool:
        """Whether the intervals of two parts overlap and one of them is wide."""
        ends_s = [((part.low_s or 0.0), (part.high_s or 0.0)) for part in parts]
        least_s = max(max(low_s, -high_s, 0.0) for low_s, high_s in ends_s)
        overlap = least_s < min(max(high_s, -low_s) for low_s, high_s in ends_s)
        return overlap and any(part.width_s > _DISTURBED * self.step_time_s for part in parts)

    @property
    def is_disturbed(self) -> bool:
        """Whether its largest part is not sure, or the profiler changed the step."""
        traced_s = self.traced_step_s
        changed = traced_s is not None and abs(traced_s / self.step_time_s - 1) > _DISTURBED
        return changed or bool(self.confused)

    def seconds_of(self, kind: Kind) -> float:
        """Return the seconds of all parts of a kind."""
        return sum(part.time_s for part in self.parts if part.kind == kind)

    def facts(self) -> dict[str, Any]:
        """Return what a script wants of it, ready for JSON."""
        return {
            "step_time_s": self.step_time_s,
            "account": self.rows(),
            "account_disturbed": self.is_disturbed,
            "profiler_cost": self.profiler_cost,
            "pace_since_window": self.pace,
        }

    def divided(self, times: float) -> StepAccount:
        """Return the account of one of so many repetitions of the same work in the step."""
        traced_s = self.traced_step_s and self.traced_step_s / times
        parts = tuple(part.scaled(1 / times) for part in self.parts)
        return replace(
            self, step_time_s=self.step_time_s / times, parts=parts, traced_step_s=traced_s
        )

    def metrics(self) -> dict[str, float]:
        """Return the seconds of each class of parts by the names of metrics on a tracked run."""
        kinds = dict.fromkeys(part.kind for part in self.parts)
        return {f"account_{kind.replace(' ', '_')}_s": self.seconds_of(kind) for kind in kinds}

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per part: its name, class, seconds, share of the step and of its roof."""
        return [
            {"name": part.name, "class": part.kind, "seconds": part.time_s,
             "share": ratio(part.time_s, self.step_time_s), "of_its_roof": part.of_roof,
             "low_s": part.low_s, "high_s": part.high_s}
            for part in self.parts
        ]  # fmt: skip

    def lines(self) -> Iterator[str]:
        """Yield the account for a terminal, its smallest parts added up."""
        if self.confused:
            names = " and ".join(part.short for part in self.confused)
            yield f"disturbed: which of {names} is larger is not sure; {self.cause}"
        elif self.is_disturbed:
            traced_ms, step_ms = 1e3 * (self.traced_step_s or 0.0), 1e3 * self.step_time_s
            yield (
                f"disturbed: what was profiled takes {three_digits(traced_ms)} ms, the timed one "
                f"{three_digits(step_ms)} ms; no part is sure"
            )
        shown, rest = self.parts, self.parts[_MOST_LINES - 1 :]
        if len(rest) > 1:
            others = Part(f"{len(rest)} smaller parts", "ops", sum(part.time_s for part in rest))
            shown = (*shown[: _MOST_LINES - 1], others)
        for part in shown:
            share = percent(ratio(part.time_s, self.step_time_s) or 0.0)
            own = "" if part.of_roof is None else f", at {percent(part.of_roof)} of their roof"
            if part.width_s > _WIDE * abs(part.time_s):
                ends = (three_digits(1e3 * (end or 0.0)) for end in (part.low_s, part.high_s))
                own += f" ({' to '.join(ends)} ms)"
            yield f"{three_digits(1e3 * part.time_s):>8} ms  {share:>5}  {part.name}{own}"


#: Kinds of parts that a setting or a change of the code can remove.
REMOVABLE: tuple[Kind, ...] = ("traffic", "ops", "communication", "idle", "host", "input")
#: A smaller part is not worth a sentence.
_LEAST_SHARE = 0.05


def largest_loss(account: StepAccount) -> Part | None:
    """Return the largest part that can be removed, if it is at least 5 % of the step.

    None of a disturbed account, which accuses nobody.
    """
    parts = [part for part in account.parts if part.kind in REMOVABLE]
    part = max(parts, key=lambda part: part.time_s, default=None)
    if part is None or account.is_disturbed or part.time_s < _LEAST_SHARE * account.step_time_s:
        return None
    return part


#: Parts of a difference that are named.
_MOST_NAMED = 4
#: A part that gained less than this share of itself does not shrink.
_KEPT = 0.1
#: Steps of equal work at equal roofs allow no gain.
_SAME_ROOF = 0.01


@dataclass(frozen=True)
class Difference:
    """Which parts make a step of B shorter or longer than one of A."""

    a: StepAccount
    b: StepAccount

    @cached_property
    def gains_s(self) -> dict[str, float]:
        """The seconds by which each part of B is shorter than of A, the largest first."""
        gains_s = {part.name: 0.0 for part in (*self.a.parts, *self.b.parts)}
        for account, sign in ((self.a, 1), (self.b, -1)):
            for part in account.parts:
                gains_s[part.name] += sign * part.time_s
        return dict(sorted(gains_s.items(), key=lambda one: -abs(one[1])))

    @property
    def words(self) -> str:
        """The largest parts, what the roofs of both allow, and what does not shrink."""
        whole_s = self.a.step_time_s - self.b.step_time_s
        word, sign = ("saved", 1) if whole_s >= 0 else ("added", -1)
        causes = {part.name: part.short for part in (*self.a.parts, *self.b.parts)
                  if part.kind != "profiling"}  # fmt: skip
        largest = [(causes[name], sign * s) for name, s in self.gains_s.items() if name in causes]
        named = ", ".join(
            f"{name} {three_digits(1e3 * s)}" for name, s in largest[:_MOST_NAMED] if s
        )
        said = f"of {three_digits(1e3 * abs(whole_s))} ms {word}: {named or 'no part differs'}"
        a_roof_s, b_roof_s = self.a.seconds_of("roof"), self.b.seconds_of("roof")
        if not (a_roof_s and b_roof_s) or abs(a_roof_s / b_roof_s - 1) < _SAME_ROOF:
            return said
        allows, measured = a_roof_s / b_roof_s, self.a.step_time_s / self.b.step_time_s
        said += f"; the roofs allow {ratio_digits(allows)} times, measured are "
        said += ratio_digits(measured)
        kept = [
            part
            for part in self.b.parts
            if part.kind in REMOVABLE and self.gains_s[part.name] <= _KEPT * part.time_s
        ]
        stays = max(kept, key=lambda part: part.time_s, default=None)
        if measured >= allows or whole_s < 0 or stays is None:
            return said
        if stays.time_s < _LEAST_SHARE * self.b.step_time_s:
            return said
        return f"{said}: {three_digits(1e3 * stays.time_s)} ms of {stays.short} do not shrink"


def class_of(op: OpTime | TracedOp | CallWork) -> str:
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
    if ops.device_busy_share is None and ops.neighbours_s is not None:
        return _account_of_pairs(ops, roof, timed)
    parts, step_s = list(parts_of_ops(ops.ops, roof)), timed.step_s if timed else ops.step_time_s
    of_ops_s, on_host = sum(part.time_s for part in parts), ops.device_busy_share is None
    # A profiler slows the host, not kernels: a device idles for what they leave of the timed step.
    traced_s = ops.step_time_s if on_host else max(step_s, of_ops_s)
    parts += _rest(parts, traced_s, timed, ops, on_host=on_host)
    if timed is not None:
        parts.append(Part(_PROFILER, "profiling", step_s - traced_s))
    return completed(step_s, parts, traced_s)


def _rest(
    parts: Iterable[Part],
    traced_s: float,
    timed: Measurement | None,
    ops: OpProfile,
    *,
    on_host: bool,
) -> Iterator[Part]:
    """Yield what ops leave of a profiled step of `traced_s`: the loader, the host or idle time."""
    rest_s = traced_s - sum(part.time_s for part in parts)
    in_window = timed is not None and timed.data_wait_s is not None
    wait_s = (data_wait_share(timed, ops) or 0.0) * (
        timed.step_s if timed and in_window else traced_s
    )
    wait_s = min(wait_s, max(rest_s, 0.0))
    yield Part(LOADER, "input", wait_s)
    rest_s -= wait_s
    yield Part(HOST, "host", rest_s) if on_host else Part("device idle", "idle", rest_s)


def _account_of_pairs(ops: OpProfile, roof: Roof | None, timed: Measurement | None) -> StepAccount:
    """Return the account of steps on a processor that were profiled by turns with others."""
    steps_s, neighbours_s = ops.steps_s or (), ops.neighbours_s or ()
    step_s = timed.step_s if timed else median(neighbours_s)
    cost = profiler_cost(steps_s, neighbours_s)
    traced_s = step_s * cost
    scales = _scales(traced_s, steps_s, ops, timed)

    def parts_of(seconds: Callable[[Sequence[float]], float]) -> list[Part]:
        """The parts where `seconds` makes one of the scaled times of the profiled steps."""
        times_s = [seconds([*map(mul, op.steps_exclusive_s or (), scales)]) for op in ops.ops]
        parts = [*parts_of_ops(ops.ops, roof, times_s)]
        parts += _rest(parts, traced_s, timed, ops, on_host=True)
        return [*parts, Part(_PROFILER, "profiling", step_s - traced_s)]

    whole = completed(step_s, parts_of(median), None)
    whole = replace(whole, profiler_cost=cost, pace=median(neighbours_s) / step_s)
    if len(scales) < 2:
        return whole
    costs = ops.profiler_costs
    several = [
        {part.name: part.time_s for part in parts_of(itemgetter(index))}
        | {_PROFILER: step_s * (1 - max(cost, 1.0))}
        for index, cost in enumerate(costs)
    ]
    parts = []
    for part in whole.parts:
        ends_s = [part.time_s, *(times_s.get(part.name, 0.0) for times_s in several)]
        parts.append(replace(part, low_s=min(ends_s), high_s=max(ends_s)))
    return replace(whole, parts=tuple(parts), cause=_cause(costs, neighbours_s))


def _scales(
    traced_s: float, steps_s: Sequence[float], ops: OpProfile, timed: Measurement | None
) -> list[float]:
    """Return by what the ops of each profiled step are multiplied, to be those of the window.

    Where both the window and the profiled steps say how long they waited for a batch, the rest of
    both is compared: a wait does not follow the pace of the processor, and a loader with workers
    is ahead after a pause.
    """
    waited, profiled = data_wait_share(timed, None), data_wait_share(None, ops)
    if timed is None or waited is None or profiled is None or profiled >= 1:
        return [traced_s / profiled_s for profiled_s in steps_s]
    worked_s = traced_s - waited * timed.step_s
    return [worked_s / (profiled_s * (1 - profiled)) for profiled_s in steps_s]


def _cause(costs: Sequence[float], neighbours_s: Sequence[float]) -> str:
    """Say what makes the profiled steps differ: the profiler, or the machine."""
    if min(costs) - 1 > max(costs) - min(costs):
        return f"the profiler makes a step {percent(median(costs) - 1)} longer"
    change = max(max(times) / min(times) for times in (costs, neighbours_s))
    by = percent(change - 1) if change < _MANY else f"{three_digits(change)} times"
    return f"the machine's pace changes by {by} from step to step"


def account_of_times(
    ops: Iterable[OpTime], roof: Roof, step_s: float, *, on_host: bool, loader_s: float = 0.0
) -> StepAccount:
    """Return the account of a step of which each op's time is known, as a prediction has them.

    In `loader_s` of the step it waits for the loader.
    """
    parts = [*parts_of_ops(ops, roof), Part(LOADER, "input", loader_s)]
    rest_s = step_s - sum(part.time_s for part in parts)
    parts.append(Part(HOST, "host", rest_s) if on_host else Part("device idle", "idle", rest_s))
    return completed(step_s, parts, None)


def parts_of_ops(
    ops: Iterable[OpTime | TracedOp], roof: Roof | None, times_s: Iterable[float] | None = None
) -> Iterator[Part]:
    """Yield the parts of the time in which `ops` ran; without a roof ops are their whole time.

    `times_s` are the times of the ops, in place of their own.
    """
    ops = tuple(ops)
    times_s = (op.exclusive_s for op in ops) if times_s is None else times_s
    at_roof_s = unfused_s = cached_s = communicated_s = copied_s = loading_s = casting_s = 0.0
    below_s: defaultdict[str, float] = defaultdict(float)
    of_class_s: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    unknown_s: defaultdict[str, float] = defaultdict(float)
    for op, took_s in zip(ops, times_s, strict=True):
        name = class_of(op)
        if op.label == COMMUNICATION:
            communicated_s += took_s
        elif op.label == LOADER:
            loading_s += took_s
        elif op.label == CASTS:
            casting_s += took_s
        elif op.label == HOST_COPY or (
            isinstance(op, TracedOp) and op.kernels and all(map(_HOST_COPY.search, op.kernels))
        ):
            copied_s += took_s
        elif op.flops is None or roof is None:
            unknown_s[name] += took_s
        else:
            peak = roof.of_op(op).peak_flops_per_s
            compute_s = (op.flops - op.causal_skipped_flops) / peak
            fused_s, eager_s = (
                max(compute_s, (count or 0) / roof.peak_bytes_per_s)
                for count in (op.fused_bytes, op.eager_bytes)
            )
            at_roof_s += fused_s
            unfused_s += eager_s - fused_s
            cached_s += min(took_s - eager_s, 0.0)
            below_s[name] += max(took_s - eager_s, 0.0)
            of_class_s[name][0] += eager_s
            of_class_s[name][1] += took_s
    if roof is not None:
        yield Part("each op at its roof", "roof", at_roof_s)
        yield Part("unfused memory traffic", "traffic", unfused_s)
    for name, time_s in below_s.items():
        needed_s, took_s = of_class_s[name]
        of_roof = ratio(needed_s, took_s) or None
        yield Part(f"{name}{_BELOW}", "ops", time_s, of_roof)
    yield Part(CASTS, "ops", casting_s)
    yield Part("ops faster than their roof", "cache", cached_s)
    for name, time_s in unknown_s.items():
        kind: Kind = "ops" if roof is None else "unknown work"
        yield Part(name if roof is None else f"{name}, its work not known", kind, time_s)
    yield Part("communication that nothing hides", "communication", communicated_s)
    yield Part("copies from and to the host that nothing hides", "communication", copied_s)
    yield Part(LOADER, "input", loading_s)


def completed(step_s: float, parts: Iterable[Part], traced_s: float | None) -> StepAccount:
    """Return the account of a step with these parts; what they leave is not explained."""
    known = [part for part in parts if abs(part.time_s) > _ROUNDING * step_s]
    rest_s = step_s - sum(part.time_s for part in known)
    if abs(rest_s) > _ROUNDING * step_s:
        known.append(Part("not explained", "not explained", rest_s))
    known.sort(key=lambda part: (part.kind != "roof", -abs(part.time_s)))
    return StepAccount(step_s, tuple(known), traced_s)
