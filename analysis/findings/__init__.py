"""What the runs of a report show, in words, in the order of the report: the gravest first.

A kind of finding is a rule: a function that returns a row for each thing that the runs show, and
the sentence that a row becomes. Rows of one machine are one finding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from analysis.comparison.machines import AcrossMachines, across_machines
from analysis.comparison.prices import NO_PRICES, Prices
from analysis.findings.batches import knee_rows, shrinking_rows, spill_rows
from analysis.findings.bottlenecks import (
    change_rows,
    input_rows,
    launch_rows,
    model_rows,
    next_knob_rows,
)
from analysis.findings.differences import (
    odd_rows,
    speed_up_rows,
    uplift_rows,
    variability_rows,
    work_rows,
)
from analysis.runs.frame import Row
from analysis.runs.groups import Configurations
from analysis.runs.run import Run
from analysis.table import grouped
from tracking.importing.work import CLAIMED

#: So many sentences of a finding are told; the rest are counted.
_MOST_SENTENCES = 6


@dataclass(frozen=True)
class Finding:
    """One kind of thing that the runs of a machine show.

    The `headline` is its one sentence, or says what the sentences of `evidence` have in common.
    `runs` are the ids of all runs that it rests on.
    """

    kind: str
    headline: str
    evidence: tuple[str, ...]
    runs: tuple[str, ...]
    advice: str | None = None


@dataclass(frozen=True)
class Rule:
    """How one kind is found and told.

    `rows` returns what the runs show. Each has the `runs` that it rests on, its `machine` unless it
    is of several, and the values of the templates `says` and `advice`. `several` is the headline of
    more than one: it may name the machine, the `number` of sentences, the runs that they are of
    (`found`), and how many the machine has (`measured`). `table` is the report's, with all numbers.
    """

    kind: str
    rows: Callable[[Configurations], Iterable[Row]]
    says: str
    several: str
    advice: str = ""
    table: str = ""

    def findings(
        self, runs: Sequence[Run], tables: Mapping[str, int] | None = None
    ) -> list[Finding]:
        """Return a finding for each machine that has one; `tables` are the numbers of tables."""
        machines = grouped(self.rows(Configurations.of(runs)), lambda row: row.get("machine", ""))
        table = f"Table {tables[self.table]}" if tables and self.table in tables else ""
        found = []
        for machine, rows in machines.items():
            said = list(dict.fromkeys(self.says.format(**row) for row in rows))
            advice = dict.fromkeys(self.advice.format(**row) for row in rows)
            names = tuple(dict.fromkeys(name for row in rows for name in row["runs"]))
            headline, evidence = said[0], []
            if len(said) > 1:
                counts = {"number": len(said), "found": len(names),
                          "measured": sum(run.env == machine for run in runs)}  # fmt: skip
                headline = self.several.format(machine=machine, **counts)
                evidence = said[:_MOST_SENTENCES]
            if (more := len(said) - _MOST_SENTENCES) > 0:
                evidence.append(f"and {more} more" + (table and f" in {table}"))
            elif table:
                evidence.append(f"the numbers: {table}")
            advised = " ".join(advice) or None
            found.append(Finding(self.kind, headline, tuple(evidence), names, advised))
        return found


def stated(runs: Iterable[Run], codes: Collection[str]) -> Iterator[Row]:
    """Yield what runs say of themselves, or their places under the roof, under these codes."""
    for run in runs:
        for one in run.findings:
            if one.code in codes:
                yield {
                    **{"machine": run.env, "label": run.label, "runs": (run.name,)},
                    **{"message": one.sentence, "imported": run.imported},
                }


def roof_rows(runs: Iterable[Run]) -> Iterator[Row]:
    """Yield the runs that outrun a ceiling by more than 3 %."""
    for row in stated(runs, ("above-compute-roof", "above-memory-roof")):
        advice = (
            "Read the source of the imported runs again: the rate, the devices, the model."
            if row["imported"]
            else "Measure the ceilings of that machine again, idle, and compare the work counts."
        )
        yield row | {"advice": advice}


_RULES = (
    Rule("above the roof", roof_rows, "{label}: {message}.",
         "{machine}: {found} of {measured} runs are faster than the roof allows, not to be used.",
         "{advice}"),
    Rule("inconsistent FLOP", work_rows,
         "Runs of {model} count their work differently: {flops} {each}.",
         "{number} models have runs that count their work differently.",
         "Compare {rate} of these runs, not FLOP/s or places under the roof."),
    Rule("stated GFLOP/s", partial(stated, codes=(CLAIMED,)), "{label}: {message}.",
         "{machine}: {found} of {measured} runs state GFLOP/s that differ by over 3 % from "
         "images/s x FLOP of a training step.",
         "Compare images/s of these runs, not the GFLOP/s that their files state."),
    Rule("inconsistent times", shrinking_rows,
         "{large.label}: a step of {large.batch_size} {large.sample}s took {large.step_s:.3g} s, "
         "one of {small.batch_size} took {small.step_s:.3g} s.",
         "{machine}: {number} larger batches took less time than smaller ones.",
         "More work cannot take less time: measure both again, the machine idle."),
    Rule("memory spill", spill_rows,
         "{series}: from {good.rate} at batch {good.batch_size} to {bad.rate} at batch "
         "{bad.batch_size}. Likely cause: {cause}. Stay at batch {good.batch_size} or "
         "below{instead}.",
         "{machine}: {number} batch curves fall off a cliff.",
         "Accumulate gradients for a larger effective batch.", "batch-gains"),
    Rule("throttled", partial(stated, codes=("throttled",)), "{label}: {message}.",
         "{machine}: the device throttled itself in {found} of {measured} runs.",
         "Mend cooling or power, or fix the clock: these rates are the limit's."),
    Rule("drifting", partial(stated, codes=("drift",)), "{label}: {message}.",
         "{machine}: {found} of {measured} runs were not in steady state.",
         "A window that slows down was heated or disturbed, one that settles needs more warm-up."),
    Rule("foreign process",
         partial(stated, codes=("foreign-process", "busy-host", "stolen-time")),
         "{label}: {message}.",
         "{machine}: {found} of {measured} runs shared the machine with other work.",
         "Measure these again on an idle machine (rented: with cores of its own) before "
         "comparing them."),
    Rule("odd machine", odd_rows, "{compared}{more} (p {p_value}).", "",
         "Look at software, clocks, temperature, cooling and neighbours, and leave it out of "
         "what is to stand for the kind."),
    Rule("input-bound", input_rows,
         "{label}: waiting for data takes {share} of the step{gain}.{beside}{advice}",
         "{machine}: {number} configurations wait for data.", table="measurements"),
    Rule("launch-bound", launch_rows,
         "{series}: {what}. Launching the step's kernels, not their work, sets its time.{advice}",
         "{machine}: launching kernels, not their work, sets the time of {number} batch curves."),
    Rule("precision uplift", uplift_rows, "{series}: {says}",
         "{machine}: a lower precision against fp32, of {number} models or precisions.",
         table="uplift"),
    Rule("models", model_rows, "{machine}, {precision}: {says}.",
         "{machine}: why its models stand at other shares of their roofs.", table="accounts"),
    Rule("one change", change_rows, "{label}, {change}: {says}.",
         "{machine}: where one change gains or loses time, in {number} pairs of configurations."),
    Rule("batch knee", knee_rows, "{series}: {says}",
         "{machine}: where a larger batch stops paying, of {number} batch curves.",
         table="batch-gains"),
    Rule("machine speed-up", speed_up_rows, "{says}",
         "{number} pairs of machines have configurations in common.", table="speed-ups"),
    Rule("variability", variability_rows,
         "Repeats scatter {ratio} times as much on {wild} as on {steady}.", "",
         "On {where} a difference needs to be larger, or measured more often, to be one."),
    Rule("next knob", next_knob_rows, "{label}: {says}.",
         "{machine}: what to try next, in {number} configurations.", table="accounts"),
)  # fmt: skip
#: Kind -> its rule; faults first, then what holds runs back, then what they are worth.
KINDS: Mapping[str, Rule] = {rule.kind: rule for rule in _RULES}


def find_all(
    runs: Sequence[Run],
    prices: Prices = NO_PRICES,
    *,
    across: AcrossMachines | None = None,
    tables: Mapping[str, int] | None = None,
) -> list[Finding]:
    """Return what `runs` show, in the order of the report: faults first.

    `runs` are such as `pull_records().runs()`. Each finding has a `kind`, a `headline` in words,
    at most six sentences of `evidence`, the ids of the `runs` that it names, and for some an
    `advice`; `pandas.DataFrame(find_all(runs))` is a table of them. A kind that the data do not
    support has no finding; docs/report.md lists the kinds and when each is reported. With
    `prices` those about machines say how many times as much an image costs. A report gives
    `across`, its machines with their prices, and the numbers of its `tables` by their names.
    """
    runs = Configurations.of(runs)
    pairs = (across or across_machines(runs, prices)).pairs
    found: list[Finding] = []
    for rule in _RULES:
        if rule.rows is speed_up_rows:
            rule = replace(rule, rows=partial(speed_up_rows, pairs=pairs))
        found += rule.findings(runs, tables)
    return found
