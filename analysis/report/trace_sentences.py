"""The report's sentences of traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.roofs.ceilings import NoCeiling
from analysis.runs.quantities import bytes_rate, flops_rate, percent
from analysis.traces.placed import PlacedTrace


def trace_opening(traces: Sequence[PlacedTrace]) -> tuple[str, ...]:
    """Return what the first trace's steps are bound by, and what to do about it."""
    if not traces:
        return ()
    record = traces[0].record
    return (f"{traces[0].label} is bound by {record.bound}.", *map(_ended, record.advice))


def trace_sentences(trace: PlacedTrace) -> Iterator[str]:
    """Yield what a trace shows, the roof that its ops are under, and what is not known."""
    record = trace.record
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
    places = trace.ops
    yield (
        f"{percent(sum(op.share for op in places.placed))} of the ops' time has a place under the "
        f"roof; {percent(places.without_flops_share)} went to ops without FLOP, and of "
        f"{percent(places.unmatched_share)} the work is not known."
    )


def _ended(sentence: str) -> str:
    text = f"{sentence[:1].upper()}{sentence[1:]}"
    return text if text.endswith(".") else f"{text}."
