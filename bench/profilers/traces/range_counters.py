"""Counters inside a trace as a record, added up as Nsight Compute's are.

Kineto writes one event per range that CUPTI's range profiler measured, a kernel unless the user
asked for one range over all. Its times are made up: the source splits the session's span evenly
among the ranges (`CuptiRangeProfilerSession::addRangeEvents`), so no duration is taken from them.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

from bench.errors import UserError, printable
from bench.profilers.files.ncu_figures import ProfileTotals, counters_of
from bench.profilers.files.ncu_metrics import DURATION, WANTED, chip_of_capability
from bench.profilers.traces.trace import CounterRange, Trace
from bench.records import Counters
from bench.records.verdict.kernel_names import kernel_name

NAMELESS = "(no name in the trace)"
#: Kineto's range over all kernels, and why such sums belong to no kernel.
_WHOLE_RANGE = "__profile__"
_NO_DURATION = "the trace splits one span evenly among the kernels, so theirs are not in it"


def read_counters(trace: Trace) -> Counters:
    """Add up the counters in `trace`; what they do not give is None with its reason.

    Raises `UserError` for a trace without counters, or with sums over many kernels.
    """
    record = counters_of(counter_totals(trace))
    if record.duration_s is not None:
        return record
    missing = {**record.missing, "duration_s": f"{record.missing['duration_s']}; {_NO_DURATION}"}
    return record.model_copy(update={"missing": missing})


def counter_totals(trace: Trace) -> ProfileTotals:
    """Add up each metric of each kernel. Raises `UserError` as `read_counters` does."""
    if not trace.counters:
        raise UserError(
            f"{trace.path}: holds no counters; count with ncu and read its file, or with a torch "
            "built with CUPTI's range profiler"
        )
    totals = ProfileTotals("CUPTI's range profiler in a trace", (Path(trace.path).name,))
    for device in {one.device for one in trace.counters}:
        capability = trace.capabilities.get(device) if isinstance(device, int) else None
        if capability is not None:
            totals.chips.add(chip_of_capability(capability) or "sm_{}{}".format(*capability))
    for one in trace.counters:
        if one.name == _WHOLE_RANGE:
            raise UserError(
                f"{trace.path}: its counters are of one range over many kernels: record it with "
                "profiler_measure_per_kernel=True"
            )
        _add(totals, one)
    return totals


def _add(totals: ProfileTotals, one: CounterRange) -> None:
    kernel = NAMELESS if one.name is None else printable(kernel_name(one.name))
    totals.launches[kernel] += 1
    totals.names.update(one.values, one.missing)
    for metric, value in one.values.items():
        if metric in WANTED:
            amount = Decimal(str(value))
            # CUPTI counts time in nanoseconds.
            totals.add(kernel, metric, 1, amount.scaleb(-9) if metric == DURATION else amount)
