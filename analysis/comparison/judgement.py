"""Faster, slower, tie or undecided: what each pair's interval says against a stated threshold.

A change counts if it is surely larger than the threshold, a tie is one surely smaller. Both need
the interval to lie on one side; anything else is undecided, and said to be. p-values are raised
for the number of configurations before they decide. A gate fails on some of these results, and on
configurations that crashed or are missing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from scipy import special

from analysis.comparison.pairs import Pairing
from analysis.runs.groups import Group, ran_otherwise, sample_of
from analysis.runs.quantities import counted, interval, percent
from analysis.runs.run import TOKENS_PER_S, Run
from analysis.statistics import CORRECTIONS, RatioEstimate, estimate_ratio
from analysis.statistics.ratios import deciding_repeats
from bench.config import ENERGY, THROUGHPUT, energy_metric, rate_metric, rate_unit
from bench.errors import UserError

#: What a better and a worse B are called.
_SPEED = ("faster", "slower")
_USE = ("better", "worse")


@dataclass(frozen=True)
class ComparedMetric:
    """A metric by its name in the tracking schema; `words` are of a better and of a worse value."""

    name: str
    unit: str
    better: Literal["higher", "lower"]
    words: tuple[str, str]


METRICS = {
    metric.name: metric
    for metric in (
        ComparedMetric(rate_metric("image"), rate_unit("image"), "higher", _SPEED),
        ComparedMetric(THROUGHPUT, rate_unit("sample"), "higher", _SPEED),
        ComparedMetric(TOKENS_PER_S, "tokens/s", "higher", _SPEED),
        ComparedMetric("attained_gflops", "GFLOP/s", "higher", _SPEED),
        ComparedMetric("iteration_time_ms_mean", "ms", "lower", _SPEED),
        ComparedMetric("iteration_time_ms_p50", "ms", "lower", _SPEED),
        ComparedMetric("iteration_time_ms_p95", "ms", "lower", _SPEED),
        ComparedMetric("iteration_time_ms_p99", "ms", "lower", _SPEED),
        ComparedMetric("iteration_time_ms_std", "ms", "lower", _USE),
        ComparedMetric("compile_time_s", "s", "lower", _SPEED),
        ComparedMetric("data_wait_share", "of 1", "lower", _USE),
        ComparedMetric("peak_memory_mb", "MB", "lower", _USE),
        ComparedMetric("max_rss_mb", "MB", "lower", _USE),
        ComparedMetric("energy_j", "J", "lower", _USE),
        ComparedMetric(energy_metric("image"), "J", "lower", _USE),
        ComparedMetric(ENERGY, "J", "lower", _USE),
        ComparedMetric("real_s", "s", "lower", _SPEED),
        ComparedMetric("user_s", "s", "lower", _USE),
        ComparedMetric("system_s", "s", "lower", _USE),
    )
}


#: Metrics from which a cost follows.
RATES = (rate_metric("image"), THROUGHPUT)


def check_metric(name: str | None) -> None:
    """Raise `UserError` for a metric that cannot be compared; None is the runs' own rate."""
    if name is not None and name not in METRICS:
        raise UserError(f"metric={name!r}: compare one of {', '.join(METRICS)}")


def compared_metric(name: str | None, runs: Iterable[Run] = ()) -> ComparedMetric:
    """Return the metric of that name; without one the rate of `runs`, in images/s or samples/s.

    Raises `UserError` for one that cannot be compared.
    """
    check_metric(name)
    return METRICS[rate_metric(sample_of(runs)) if name is None else name]


Judgement = Literal["better", "worse", "tie", "undecided"]


@dataclass(frozen=True)
class Comparison:
    """One configuration of A against its counterpart of B; `estimate` is of B over A.

    p-values are corrected ones, two-sided; None where nothing can be tested.
    """

    a: Group
    b: Group
    metric: ComparedMetric
    estimate: RatioEstimate
    p_different: float | None
    p_tie: float | None
    judgement: Judgement
    because: str

    @property
    def parts(self) -> tuple[str, ...]:
        """Machine, model, precision and batch, each as `A -> B` where the two differ.

        Beside the model stands what distinguishes the pair from others of its side.
        """
        distinctions = dict.fromkeys(side.distinction for side in (self.a, self.b))
        distinction = " -> ".join(one for one in distinctions if one)
        return tuple(
            (f"{prefix}{ours}" if ours == theirs else f"{prefix}{ours} -> {theirs}") + suffix
            for prefix, ours, theirs, suffix in (
                ("", self.a.env, self.b.env, ""),
                ("", self.a.arch, self.b.arch, f" ({distinction})" if distinction else ""),
                ("", self.a.precision_label, self.b.precision_label, ""),
                ("batch ", self.a.batch_size, self.b.batch_size, ""),
            )
        )

    @property
    def label(self) -> str:
        """What was compared, for people."""
        return " ".join(self.parts)

    @property
    def facts(self) -> dict[str, object]:
        """The ratio of B over A with its interval, and what it says, for JSON and tables."""
        return {
            "ratio": self.estimate.ratio,
            "ratio_low": self.estimate.low,
            "ratio_high": self.estimate.high,
            "p_corrected": self.p_different,
            "verdict": self.word,
            "because": self.because,
        }

    def also_differs(self, besides: Collection[str]) -> str:
        """Return the settings that differ between the two, other than `besides`, as they ran."""
        return ran_otherwise(self.a, self.b, besides)

    @property
    def word(self) -> str:
        """The judgement in the metric's words, such as faster."""
        better, worse = self.metric.words
        return {"better": better, "worse": worse}.get(self.judgement, self.judgement)


def compare_pairs(
    pairs: Sequence[tuple[Group, Group]],
    metric: ComparedMetric,
    *,
    threshold: float = 0.02,
    level: float = 0.95,
    correction: str = "holm",
) -> list[Comparison]:
    """Judge every pair (A, B): a change of less than `threshold` (a share) is of no consequence.

    Raises `UserError` for a negative threshold and for a correction other than holm, bh and none.
    """
    if not threshold >= 0:
        raise UserError(f"threshold={threshold}: give a share of at least 0, such as 0.02")
    if correction not in CORRECTIONS:
        raise UserError(f"correction={correction!r}: give one of {', '.join(CORRECTIONS)}")
    limit, correct = 1 + threshold, CORRECTIONS[correction]
    found = []
    for a, b in pairs:
        estimate = estimate_ratio(b.repeats(metric.name), a.repeats(metric.name), level=level)
        found.append(Comparison(a, b, metric, estimate, None, None, "undecided", ""))
    tests = [(one, p) for one in found if (p := _test(one.estimate, limit)) is not None]
    different = correct([min(1.0, 2 * min(p.more, p.less)) for _, p in tests])
    ties = correct([min(1.0, 2 * p.tie) for _, p in tests])
    among = 1 if correction == "none" else len(tests)
    judged = {
        id(one): _judged(
            replace(one, p_different=p_different, p_tie=p_tie), p, 1 - level, limit, among
        )
        for (one, p), p_different, p_tie in zip(tests, different, ties, strict=True)
    }
    return [
        judged.get(id(one)) or replace(one, because=_why_unknown(one, limit, level))
        for one in found
    ]


class _PValues(NamedTuple):
    """One-sided and uncorrected: that B is not more, not less, or not within the threshold."""

    more: float
    less: float
    tie: float


def _test(estimate: RatioEstimate, limit: float) -> _PValues | None:
    """The p-values of an estimate, None where it has no interval."""
    below, above = estimate.p_above(1 / limit), estimate.p_below(limit)
    more, less = estimate.p_above(limit), estimate.p_below(1 / limit)
    if below is None or above is None or more is None or less is None:
        return None
    return _PValues(more, less, tie=max(below, above))


def _judged(one: Comparison, p: _PValues, alpha: float, limit: float, among: int) -> Comparison:
    span, margin = _span(one.estimate), percent(limit - 1)
    judgement: Judgement = "undecided"
    because = f"the interval ({span}) leaves open whether the change passes {margin}"
    if one.p_different is not None and one.p_different <= alpha:
        judgement = "better" if (p.more < p.less) == (one.metric.better == "higher") else "worse"
        because = f"{span}, beyond {margin}"
    elif one.p_tie is not None and one.p_tie <= alpha:
        judgement, because = "tie", f"{span}, within {margin}"
    elif 2 * min(p) <= alpha:
        because = f"{span} alone would decide, but not among so many configurations"
    if judgement == "undecided":
        because += _what_would_decide(one, alpha / (2 * among), limit)
    return replace(one, judgement=judgement, because=because)


def _what_would_decide(one: Comparison, alpha: float, limit: float) -> str:
    """Of machines of a kind more repeats decide nothing."""
    if one.estimate.covers in ("this kind of machine", "one machine against a kind"):
        return "; more machines would decide"
    a, b = (side.repeats(one.metric.name) for side in (one.a, one.b))
    number = deciding_repeats(a, b, limit, alpha)
    about = "over 50" if number is None else f"about {number}"
    return f"; {about} repeats on each side would decide"


def _span(estimate: RatioEstimate) -> str:
    return f"{interval(estimate.low or 0.0, estimate.high or 0.0)} times"


def _why_unknown(one: Comparison, limit: float, level: float) -> str:
    """Sides without a known scatter decide nothing; say what they show."""
    counts = [side.repeats(one.metric.name).count for side in (one.a, one.b)]
    sides = (
        "one run on each side" if counts == [1, 1] else "repeats summed up without their scatter"
    )
    because = f"{sides}: repeat-to-repeat variance unknown"
    excess = abs(math.log(one.estimate.ratio)) - math.log(limit)
    if excess > 0:
        quantile = float(special.ndtri((1 + level) / 2))
        most = excess / quantile / math.sqrt(sum(1 / count for count in counts))
        because += f"; would hold for repeats that scatter by less than {percent(most)}"
    return because


#: What a gate can fail on. `slower` is every value that is worse, whatever the metric.
REASONS = ("slower", "crashed", "missing", "undecided")
#: What it fails on by default.
DEFAULT_REASONS = ("slower", "crashed", "missing")


@dataclass(frozen=True)
class Gate:
    """How many configurations have each result, and on which of `REASONS` the gate fails.

    `counts` has the judgements in the metric's words, `crashed` and `missing`, each only where some
    configuration has it; `failed` those that are failed on.
    """

    counts: Mapping[str, int]
    failed: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing was found that the gate fails on."""
        return not self.failed

    @property
    def sentence(self) -> str:
        """`The gate fails: 1 slower, 1 crashed; of the other 4 configurations 3 tie, 1 faster`."""
        failing = ", ".join(f"{self.counts[word]} {word}" for word in self.failed)
        others = {word: n for word, n in self.counts.items() if word not in self.failed}
        rest = ", ".join(f"{number} {word}" for word, number in others.items())
        total = counted(sum(others.values()), "configuration")
        if not self.failed:
            return f"The gate passes: of {total} {rest}"
        return f"The gate fails: {failing}" + (f"; of the other {total} {rest}" if others else "")


def judge_gate(
    comparisons: Sequence[Comparison],
    pairing: Pairing,
    fail_on: Collection[str] = DEFAULT_REASONS,
) -> Gate:
    """Return what the comparison comes to for a gate that fails on `fail_on`, words of `REASONS`.

    `crashed` is a configuration of A whose runs of B all ended without a result, `missing` one that
    has no run in B with the same settings.
    """
    worse = METRICS[pairing.metric].words[1]
    counts = Counter(one.word for one in comparisons)
    counts.update(crashed=len(pairing.crashed), missing=len(pairing.only_a))
    failing = {worse if reason == "slower" else reason for reason in fail_on}
    order = (worse, "crashed", "missing", "undecided")
    present = sorted(
        (word for word, number in counts.items() if number),
        key=lambda word: order.index(word) if word in order else len(order),
    )
    return Gate(
        counts={word: counts[word] for word in present},
        failed=tuple(word for word in present if word in failing),
    )
