"""All kinds of findings, in the order in which a report tells them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from analysis.findings import (
    above_roof,
    batch_knee,
    drifting,
    foreign_process,
    inconsistent_flops,
    input_bound,
    launch_bound,
    memory_spill,
    next_knob,
    precision_uplift,
    shrinking_step,
    throttled,
    variability,
)
from analysis.findings.finding import ReportFinding
from analysis.runs.placed import Run

#: Kind -> its search; faults first, then what holds runs back, then what they are worth.
KINDS: Mapping[str, Callable[[Sequence[Run]], Iterator[ReportFinding]]] = {
    module.KIND: module.find
    for module in (
        above_roof,
        inconsistent_flops,
        shrinking_step,
        memory_spill,
        throttled,
        drifting,
        foreign_process,
        input_bound,
        launch_bound,
        precision_uplift,
        batch_knee,
        variability,
        next_knob,
    )
}


def find_all(runs: Sequence[Run]) -> list[ReportFinding]:
    """Return what `runs` show; a kind that their data do not support says nothing."""
    return [finding for find in KINDS.values() for finding in find(runs)]
