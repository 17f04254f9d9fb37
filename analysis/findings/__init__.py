"""What the runs of a report show, in words, in the order of the report: the gravest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from analysis.comparison.machines.prices import NO_PRICES, Prices
from analysis.findings.batches import find_batch_knees, find_memory_spills
from analysis.findings.bottlenecks import find_input_bound, find_launch_bound
from analysis.findings.differences import find_precision_uplift, find_variability
from analysis.findings.faults import (
    find_above_roof,
    find_drift,
    find_foreign_processes,
    find_inconsistent_flops,
    find_shrinking_steps,
    find_stated_flops,
    find_throttling,
)
from analysis.findings.machines import find_speed_ups
from analysis.findings.next_knob import find_next_knobs
from analysis.findings.odd_machines import find_odd_machines
from analysis.findings.report_finding import ReportFinding
from analysis.runs.run import Run

__all__ = ["KINDS", "ReportFinding", "find_all"]

Search = Callable[[Sequence[Run]], Iterator[ReportFinding]]
#: Kind -> its search; faults first, then what holds runs back, then what they are worth.
KINDS: Mapping[str, Search] = {
    "above the roof": find_above_roof,
    "inconsistent FLOP": find_inconsistent_flops,
    "stated GFLOP/s": find_stated_flops,
    "inconsistent times": find_shrinking_steps,
    "memory spill": find_memory_spills,
    "throttled": find_throttling,
    "drifting": find_drift,
    "foreign process": find_foreign_processes,
    "odd machine": find_odd_machines,
    "input-bound": find_input_bound,
    "launch-bound": find_launch_bound,
    "precision uplift": find_precision_uplift,
    "batch knee": find_batch_knees,
    "machine speed-up": find_speed_ups,
    "variability": find_variability,
    "next knob": find_next_knobs,
}


def find_all(runs: Sequence[Run], prices: Prices = NO_PRICES) -> list[ReportFinding]:
    """Return what `runs` show, in the order of the report: faults first.

    `runs` are such as `pull_records().runs()`. Each finding has a `kind`, a `headline` in words,
    its `evidence` with numbers, the ids of the `runs` that it names, and for some an `advice`;
    `pandas.DataFrame(find_all(runs))` is a table of them. A kind that the data do not support has
    no finding; docs/analysis.md lists the kinds and when each is reported. With `prices` those
    about machines say what a million images cost.
    """
    priced: Mapping[str, Search] = {"machine speed-up": partial(find_speed_ups, prices=prices)}
    return [finding for kind in KINDS for finding in priced.get(kind, KINDS[kind])(runs)]
