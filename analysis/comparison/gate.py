"""A comparison as a gate: which of its results make it fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from analysis.comparison.judgement import METRICS, Comparison
from analysis.comparison.pairs import Pairing
from analysis.runs.quantities import counted

#: What a gate can fail on. `slower` is every value that is worse, whatever the metric.
REASONS = ("slower", "crashed", "missing", "undecided")
#: What it fails on unless told otherwise.
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
