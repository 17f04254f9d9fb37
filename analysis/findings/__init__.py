"""What the runs of a report show, in words, in the order of the report: the gravest first.

A kind is a function that returns a row for each thing that the runs show; the catalogue of findings
has the sentence that a row becomes. Rows of one machine are one conclusion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from analysis.comparison.across import AcrossMachines, across_machines
from analysis.comparison.machines import NO_PRICES, Prices
from analysis.findings.batches import knee_rows, shrinking_rows, spill_rows
from analysis.findings.bottlenecks import input_rows, next_knob_rows
from analysis.findings.differences import (
    odd_rows,
    speed_up_rows,
    uplift_rows,
    variability_rows,
)
from analysis.presentation.columns import Row
from analysis.presentation.table import grouped
from analysis.runs.groups import Runs
from analysis.runs.run import Run
from analysis.scaling import scaling_rows
from bench.records.base import catalogue

#: So many sentences of a conclusion are told; the rest are counted.
_MOST_SENTENCES = 6


@dataclass(frozen=True)
class Conclusion:
    """One kind of thing that the runs of a machine show.

    The `headline` is its one sentence, or says what the sentences of `evidence` have in common.
    `runs` are the ids of all runs that it rests on.
    """

    kind: str
    headline: str
    evidence: tuple[str, ...]
    runs: tuple[str, ...]
    advice: str | None = None


def doubt_rows(runs: Runs) -> Iterator[Row]:
    """Yield what makes runs suspect or invalid, or contradicts the GFLOP/s that a file states."""
    measured = (run for run in runs if run.outcome == "ok")
    doubts = [(run, finding) for run in measured for finding in run.findings
              if finding.level != "note" or finding.code == "claimed-flops"]  # fmt: skip
    levels = ("invalid", "suspect", "note")
    for run, finding in sorted(doubts, key=lambda doubt: levels.index(doubt[1].level)):
        remedy = finding.remedy or ""
        yield {
            "machine": run.env,
            "label": run.label,
            "sentence": finding.sentence,
            "remedy": f"{remedy[:1].upper()}{remedy[1:]}." if remedy else "",
            "runs": (run.name,),
        }


#: What the runs show by kind; each row has the `runs` that it rests on, its `machine` unless it is
#: of several, and the facts of its kind's sentences in the catalogue. Faults come first, then what
#: holds runs back, then what they are worth.
KINDS: Mapping[str, Callable[[Runs], Iterable[Row]]] = {
    "in doubt": doubt_rows,
    "inconsistent times": shrinking_rows,
    "memory spill": spill_rows,
    "odd machine": odd_rows,
    "input-bound": input_rows,
    "precision uplift": uplift_rows,
    "batch knee": knee_rows,
    "machine speed-up": speed_up_rows,
    "scaling": scaling_rows,
    "variability": variability_rows,
    "next knob": next_knob_rows,
}


def conclusions(kind: str, runs: Runs, rows: Iterable[Row] | None = None) -> Iterator[Conclusion]:
    """Yield what runs show of one kind, or its `rows` do, by machine in the catalogue's words."""
    words = catalogue("analysis")[kind]
    rows = KINDS[kind](runs) if rows is None else rows
    for machine, those in grouped(rows, lambda row: row.get("machine", "")).items():
        said = list(dict.fromkeys(words["says"].format(**row) for row in those))
        advice = dict.fromkeys(words.get("do", "").format(**row) for row in those)
        names = tuple(dict.fromkeys(name for row in those for name in row["runs"]))
        headline, evidence = said[0], []
        if len(said) > 1:
            measured = sum(run.env == machine for run in runs)
            headline = words["several"].format(
                machine=machine, number=len(said), named=len(names), measured=measured
            )
            evidence = said[:_MOST_SENTENCES]
        if (more := len(said) - _MOST_SENTENCES) > 0:
            evidence.append(f"and {more} more")
        advised = " ".join(filter(None, advice)) or None
        yield Conclusion(kind, headline, tuple(evidence), names, advised)


def find_all(
    runs: Sequence[Run], prices: Prices = NO_PRICES, *, across: AcrossMachines | None = None
) -> list[Conclusion]:
    """Return what `runs` show, in the order of the report: faults first.

    `runs` are such as `pull_records().runs()`. Each conclusion has a `kind`, a `headline` in words,
    at most six sentences of `evidence`, the ids of the `runs` that it names, and for some an
    `advice`; `pandas.DataFrame(find_all(runs))` is a table of them. A kind that the data do not
    support has none; docs/report.md lists the kinds and when each is reported. With
    `prices` those about machines say how many times as much an image costs. A report gives
    `across`, its machines with their prices.
    """
    runs = Runs.of(runs)
    pairs = (across or across_machines(runs, prices)).pairs
    rows = {"machine speed-up": speed_up_rows(runs, pairs)}
    return [shown for kind in KINDS for shown in conclusions(kind, runs, rows.get(kind))]
