"""The report's sentences of traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.profiles.op_places import check_ops
from analysis.roofs.ceilings import NoCeiling
from analysis.runs.quantities import bytes_rate, flops_rate, percent, three_digits
from analysis.traces.compare import compare_two
from analysis.traces.placed import PlacedTrace
from bench.records import Counters

#: Ops with less of the ops' time are not worth a name.
_NAMED_SHARE = 0.05


def trace_opening(traces: Sequence[PlacedTrace]) -> tuple[str, ...]:
    """Return what the first trace's steps are bound by, and what to do about it."""
    if not traces:
        return ()
    record = traces[0].record
    compared = compare_two([trace.record for trace in traces])
    refused = [f"the traces are not compared: {compared}"] if isinstance(compared, str) else []
    said = (f"{traces[0].label} is bound by {record.bound}", *record.advice, *refused)
    return tuple(map(_ended, said))


def trace_sentences(trace: PlacedTrace) -> Iterator[str]:
    """Yield what a trace shows, the roof that its ops are under, and what is not known."""
    record, places = trace.record, trace.ops
    yield _ended(f"Bound: {record.bound}")
    yield from map(_ended, (*record.findings, *record.advice))
    if isinstance(trace.ceiling, NoCeiling):
        yield _ended(f"No roof: {trace.ceiling.reason}")
    else:
        ceiling, roof = trace.ceiling.ceiling, trace.ceiling.roof
        note = trace.ceiling.instead_of_measured
        yield _ended(
            f"Roof in {ceiling.math_mode}: {flops_rate(roof.peak_flops_per_s)} and "
            f"{bytes_rate(roof.peak_bytes_per_s)}, {ceiling.kind} ({ceiling.source})"
            + (f"; {note}" if note else "")
        )
    if trace.used is not None:
        for finding in check_ops(places, trace.used.roof):
            yield _ended(f"{finding.level}: {finding.message}")
    if all(step.device_busy_s is None for step in record.steps):
        yield "No device ran anything in the trace: times of ops are their own on the host."
    sentence = (
        f"{percent(sum(op.share for op in places.placed))} of the ops' time went to ops whose FLOP "
        f"and bytes are known, {percent(places.without_flops_share)} to ops without FLOP, and of "
        f"{percent(places.unmatched_share)} the work is not known"
    )
    longest = next((op for op in places.unmatched if op.share >= _NAMED_SHARE), None)
    if longest is not None:
        sentence += f", most of it in {longest.time.op} ({longest.time.missing['flops']})"
    yield _ended(sentence)
    if record.counters is not None:
        yield from _of_counters(record.counters)


def _of_counters(counters: Counters) -> Iterator[str]:
    """What CUPTI counted in the trace, and what it did not."""
    known = [
        f"{three_digits(value / 1e9)} G{unit}"
        for value, unit in ((counters.flops, "FLOP executed"), (counters.dram_bytes, "B of DRAM"))
        if value is not None
    ]
    counted = f": {', '.join(known)}" if known else ""
    yield f"Counters of {counters.kernels} kernels in the trace{counted}."
    for name, words in (("flops", "FLOP"), ("dram_bytes", "DRAM bytes"), ("duration_s", "time")):
        if name in counters.missing:
            yield _ended(f"No {words} counted: {counters.missing[name]}")


def _ended(sentence: str) -> str:
    text = f"{sentence[:1].upper()}{sentence[1:]}"
    return text if text.endswith(".") else f"{text}."
