"""Faster, slower, tie or undecided: what each pair's interval says against a stated threshold.

A change counts if it is surely larger than the threshold, a tie is one surely smaller. Both need
the interval to lie on one side; anything else is undecided, and said to be. p-values are raised
for the number of configurations before they decide. A gate fails on some of these results, and on
configurations that crashed or are missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from analysis.comparison.pairs import Pairing
from analysis.presentation.columns import Row, metric_columns
from analysis.presentation.words import counted, interval, percent
from analysis.runs.groups import Group, group_runs, ratio_row, sample_of
from analysis.runs.run import Run
from bench.config import THROUGHPUT, rate_metric
from bench.errors import Unknown, UserError
from bench.statistics.ratios import (
    LEVEL,
    RatioEstimate,
    Repeats,
    Scope,
    deciding_repeats,
    estimate_ratio,
    holm,
)


class ComparedMetric(NamedTuple):
    """A metric by its name in the tracking schema; `words` are of a better and of a worse value."""

    name: str
    unit: str
    better: Literal["higher", "lower"]
    words: tuple[str, str]


METRICS = {
    name: ComparedMetric(
        name,
        column.unit,
        "higher" if column.larger == "faster" else "lower",
        ("better", "worse") if column.larger == "worse" else ("faster", "slower"),
    )
    for name, column in metric_columns().items()
}
PACE = "pace_samples_per_s"
#: What a reader must know of a comparison by it.
BY_PACE = "compared is the pace, samples per median iteration, as where a run was disturbed"
#: Metrics from which a cost follows.
RATES = (rate_metric("image"), THROUGHPUT, PACE)


def compared_metric(name: str | None, runs: Iterable[Run] = ()) -> ComparedMetric:
    """Return the metric of that name; without one the rate of `runs`, in images/s or samples/s.

    Where one of them is disturbed and all have a pace, that is the rate. Raises `UserError` for one
    that cannot be compared.
    """
    if name is None:
        found = list(runs)
        paced = all(run.usable(PACE) for run in found if run.outcome == "ok")
        disturbed = any(run.is_disturbed for run in found)
        name = PACE if paced and disturbed else rate_metric(sample_of(found))
    metric = METRICS.get(name)
    if metric is None:
        raise UserError(f"metric={name!r}: compare one of {', '.join(METRICS)}")
    return metric


Judgement = Literal["better", "worse", "tie", "undecided", "not comparable"]
_UNDECIDED: Judgement = "undecided"


@dataclass(frozen=True)
class Comparison:
    """One configuration of A against its counterpart of B; `estimate` is of B over A.

    The p-value is corrected and two-sided; None where nothing can be tested.
    """

    a: Group
    b: Group
    metric: ComparedMetric
    estimate: RatioEstimate
    p_different: float | None
    judgement: Judgement
    because: str

    @property
    def word(self) -> str:
        """The judgement in the metric's words, such as faster."""
        better, worse = self.metric.words
        return {"better": better, "worse": worse}.get(self.judgement, self.judgement)

    @property
    def parts(self) -> tuple[str, ...]:
        """Machine, model, precision and batch, each as `A -> B` where the two differ.

        Beside the model stands what distinguishes the pair from others of its side.
        """
        a, b = self.a, self.b
        also = " -> ".join(dict.fromkeys(one for one in (a.distinction, b.distinction) if one))
        sides = ((one.env, one.arch, one.precision_label, one.batch_size) for one in (a, b))
        env, arch, precision, batch = (
            " -> ".join(dict.fromkeys(map(str, both))) for both in zip(*sides, strict=True)
        )
        return env, f"{arch} ({also})" if also else arch, precision, f"batch {batch}"

    @property
    def label(self) -> str:
        """What was compared, for people."""
        return " ".join(self.parts)

    @property
    def facts(self) -> Row:
        """The ratio of B over A with its interval, what it says, and on how many machines.

        None where some record does not say which machine ran.
        """
        a, b = (side.repeats(self.metric.name).machines for side in (self.a, self.b))
        return {
            **ratio_row(self.estimate),
            "p_corrected": self.p_different,
            "verdict": self.word,
            "because": self.because,
            "interval_covers": self.estimate.scope,
            "a_machines": len(a) or None,
            "b_machines": len(b) or None,
        }

    def also_differs(self, besides: Collection[str]) -> str:
        """Return the settings of both that ran otherwise, but for `besides`: `threads 2 -> 16`."""
        ours, theirs = self.a.identity.ran, self.b.identity.ran
        return ", ".join(
            f"{name} {ours[name]} -> {theirs[name]}"
            for name in sorted((ours.keys() & theirs.keys()) - set(besides))
            if ours[name] != theirs[name]
        )


def compare_pairs(
    pairs: Sequence[tuple[Group, Group]], metric: ComparedMetric, *, threshold: float = 0.02
) -> list[Comparison]:
    """Judge every pair (A, B): a change of less than `threshold` (a share) is of no consequence.

    p-values are corrected for the number of pairs (Holm). Raises `UserError` for a negative
    threshold.
    """
    if not threshold >= 0:
        raise UserError(f"threshold={threshold}: give a share of at least 0, such as 0.02")
    limit, alpha = 1 + threshold, 1 - LEVEL
    repeats = [(a.repeats(metric.name), b.repeats(metric.name)) for a, b in pairs]
    estimates = [estimate_ratio(b, a) for a, b in repeats]
    tests = [  # one-sided p-values of: B is not more, not less, not within the threshold
        (
            one.p_above(limit),
            one.p_below(1 / limit),
            max(one.p_above(1 / limit), one.p_below(limit)),
        )
        for one in estimates
        if one.error
    ]
    different = holm([min(1.0, 2 * min(more, less)) for more, less, _ in tests])
    same = holm([min(1.0, 2 * outside) for _, _, outside in tests])
    corrected = iter(zip(tests, different, same, strict=True))
    found = []
    for pair, of_both, estimate in zip(pairs, repeats, estimates, strict=True):
        p_different, judgement = None, _UNDECIDED
        if not estimate.error:
            because = estimate.error.reason
        else:
            p, p_different, p_same = next(corrected)
            span = f"{interval(*estimate.interval)} times" if estimate.interval else ""
            margin = percent(threshold)
            if p_different <= alpha:
                larger = p[0] < p[1]
                judgement = "better" if larger == (metric.better == "higher") else "worse"
                because = f"{span}, beyond {margin}"
            elif p_same <= alpha:
                judgement, because = "tie", f"{span}, within {margin}"
            else:
                because = f"the interval ({span}) leaves open whether the change passes {margin}"
                if 2 * min(p) <= alpha:
                    because = f"{span} alone would decide, but not among so many configurations"
                more = _what_would_decide(estimate, of_both, alpha / (2 * len(tests)), limit)
                because += f"; {more} would decide"
        found.append(Comparison(*pair, metric, estimate, p_different, judgement, because))
    return found


#: What may differ besides the settings that a comparison is of, where it is meant to.
Across = Literal["machine", "versions"]
NOT_COMPARABLE: Judgement = "not comparable"
#: Of the software; the commit of this project and its variables change no step by themselves.
_VERSIONS = ("torch", "CUDA", "driver")


def comparable(found: Iterable[Comparison], across: Collection[Across] = ()) -> list[Comparison]:
    """Return the comparisons, each between machines or versions that are not `across` unjudged.

    Whatever such a ratio is, nobody knows that it is of what was to be compared.
    """
    judged = []
    for one in found:
        others = {
            of: said for of in _OTHERWISE if of not in across and (said := _OTHERWISE[of](one))
        }
        if others:
            remedy = f"measure both alike, or compare --across {' --across '.join(others)}"
            because = f"{'; '.join(others.values())}: {remedy}"
            one = replace(one, judgement=NOT_COMPARABLE, because=because)
        judged.append(one)
    return judged


def _other_machine(one: Comparison) -> str:
    """Another device; or one machine against one, by their identity, else by their labels."""
    a, b = one.a.identity.ran, one.b.identity.ran
    ours, theirs = (set(side.repeats(one.metric.name).machines) for side in (one.a, one.b))
    for name in ("device", *(["env"] if not (ours and theirs) else [])):
        if a.get(name) != b.get(name):
            return f"{name} {a.get(name)} -> {b.get(name)}"
    alone = ours and theirs and not ours & theirs and min(len(ours), len(theirs)) == 1
    return "another machine of the same kind" if alone else ""


def _other_versions(one: Comparison) -> str:
    said = []
    for name in _VERSIONS:
        ours, theirs = (
            sorted({run.software.get(name, "") for run in side.runs}) for side in (one.a, one.b)
        )
        if all((*ours, *theirs)) and not set(ours) & set(theirs):
            said.append(f"{name} {' and '.join(ours)} -> {' and '.join(theirs)}")
    return ", ".join(said)


_OTHERWISE: Mapping[Across, Callable[[Comparison], str]] = {
    "machine": _other_machine,
    "versions": _other_versions,
}


def _what_would_decide(
    estimate: RatioEstimate, repeats: tuple[Repeats, Repeats], alpha: float, limit: float
) -> str:
    """Of machines of a kind more repeats decide nothing."""
    if estimate.scope in ("this kind of machine", "one machine against a kind"):
        return "more machines"
    number = deciding_repeats(*repeats, limit, alpha)
    about = number.reason if isinstance(number, Unknown) else f"about {number}"
    return f"{about} repeats on each side"


#: What the intervals of a comparison hold for, from the narrowest to the widest.
_COVERED: dict[Scope, str] = {
    "these runs": "for these runs alone: not all of their records say which machine ran",
    "this machine": "for the machines that ran: another machine of the same kind may differ",
    "one machine against a kind": "for one machine against machines of a kind",
    "this kind of machine": "for machines of this kind",
}


def covered(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield a line for each scope that intervals of `comparisons` have, the widest last."""
    rated = [one.facts for one in comparisons if one.estimate.interval]
    for scope, words in _COVERED.items():
        found = [row for row in rated if row["interval_covers"] == scope]
        if not found:
            continue
        some = "the intervals hold"
        if (number := len(found)) < len(rated):
            some = f"{number} of the intervals {'holds' if number == 1 else 'hold'}"
        a, b = ({row[f"{side}_machines"] for row in found} - {None} for side in "ab")
        counts = [" to ".join(dict.fromkeys((f"{min(n)}", f"{max(n)}"))) for n in (a, b) if n]
        ran = f" (A ran on {counts[0]}, B on {counts[1]})" if (a | b) - {1} and a and b else ""
        yield f"{some} {words}{ran}"


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
    def sentence(self) -> str:
        """`The gate fails: 1 slower, 1 crashed; of the other 4 configurations 3 tie, 1 faster`."""
        failing = ", ".join(f"{self.counts[word]} {word}" for word in self.failed)
        others = {word: n for word, n in self.counts.items() if word not in self.failed}
        rest = ", ".join(f"{number} {word}" for word, number in others.items())
        total = counted(sum(others.values()), "configuration")
        if not self.failed:
            passes = "decides nothing" if NOT_COMPARABLE in self.counts else "passes"
            return f"The gate {passes}: of {total} {rest}"
        return f"The gate fails: {failing}" + (f"; of the other {total} {rest}" if others else "")


def judge_gate(
    comparisons: Sequence[Comparison], pairing: Pairing, fail_on: Collection[str] = DEFAULT_REASONS
) -> Gate:
    """Return what the comparison comes to for a gate that fails on `fail_on`, words of `REASONS`.

    `crashed` is a configuration of A whose runs of B all ended without a result, `missing` one that
    has no run in B with the same settings.
    """
    worse = METRICS[pairing.metric].words[1]
    counts = Counter(one.word for one in comparisons)
    names = {"crashed": "crashed", "only in A": "missing"}
    counts.update(names[one.verdict] for one in pairing.alone if one.verdict in names)
    order = dict.fromkeys((worse, "crashed", "missing", "undecided", *counts))
    present = {word: counts[word] for word in order if counts[word]}
    failing = {worse if reason == "slower" else reason for reason in fail_on}
    return Gate(present, tuple(word for word in present if word in failing))


def below_roof(runs: Iterable[Run], least: float) -> dict[str, tuple[float, float]]:
    """Return the configurations below a share of their roof, and both ends of their share.

    The lower end decides. Raises `UserError` where a configuration has no place under a roof, or
    one that cannot be: what is not known does not pass.
    """
    found = {}
    for group in group_runs(runs):
        shares = group.of_the_roof
        if shares is None or len(group.points) < len(group.runs):
            why = next((run.refusal for run in group.runs if run.refusal), "no roof is known")
            raise UserError(f"least-of-roof: {group.label} has no place under a roof: {why}")
        if impossible := next((run for run in group.runs if run.verdict == "invalid"), None):
            raise UserError(f"least-of-roof: {group.label}: {impossible.problems[0]}")
        if shares[0] < least:
            found[group.label] = shares
    return found
