"""Traces on a terminal: steps, why the device idles, ops by shape, and two traces side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from analysis.roofs.ceilings import NoCeiling
from bench.records.base import ratio
from commands.views.terminal import output, text_table

if TYPE_CHECKING:
    from analysis.traces.compare import TraceComparison
    from analysis.traces.placed import PlacedTrace
    from bench.records import TracedStep

_COLUMNS = 180
_NAME_CHARACTERS = 40
_SHAPES_CHARACTERS = 44
_STEP = (
    ("wall_s", "wall ms"),
    ("device_busy_s", "busy"),
    ("computation_s", "computation"),
    ("exposed_communication_s", "exposed comm."),
    ("exposed_copies_s", "exposed copies"),
    ("idle_s", "idle"),
)
_WORK = ("GFLOP", "eager GB", "GFLOP/s", "FLOP/byte")


def print_trace(trace: PlacedTrace, most_ops: int) -> None:
    """Print what a trace shows: its steps, its bound and advice, and its longest ops."""
    from analysis.report.trace_sentences import trace_sentences

    console = output(_COLUMNS)
    click.echo(trace.label)
    console.print(_steps(trace.record.steps))
    for sentence in trace_sentences(trace):
        click.echo(f"  {sentence}")
    console.print(_ops(trace, most_ops))


def as_json(trace: PlacedTrace) -> dict[str, Any]:
    """Return a trace's record for programs, with its roof and its ops' places under it."""
    record = trace.record.model_dump(mode="json")
    used = trace.used
    record["roof"] = None
    if used is not None:
        record["roof"] = {
            "peak_flops_per_s": used.roof.peak_flops_per_s,
            "peak_bytes_per_s": used.roof.peak_bytes_per_s,
            "kind": used.ceiling.kind,
            "source": used.ceiling.source,
        }
    elif isinstance(trace.ceiling, NoCeiling):
        record["missing"]["roof"] = trace.ceiling.reason
    for op, place in zip(record["ops"], trace.ops.ops, strict=True):
        op["attained_flops_per_s"] = place.flops_per_s
        op["eager_bytes_per_s"] = ratio(op["eager_bytes"], op["time_s"])
    return record


def _steps(steps: Sequence[TracedStep]) -> Table:
    rows = [
        (
            step.name,
            *(_ms(getattr(step, name)) for name, _ in _STEP),
            ", ".join(f"{cause} {_ms(s)}" for cause, s in [*step.idle_s_by_cause.items()][:3]),
        )
        for step in steps
    ]
    headings = ("step", *(heading for _, heading in _STEP), "idle for")
    return text_table(headings, rows, left=(0, len(headings) - 1), name_characters=_NAME_CHARACTERS)


def _ops(trace: PlacedTrace, most: int) -> Table:
    from analysis.runs.quantities import interval, percent, three_digits

    rows = []
    for op, place in trace.placed_ops[:most]:
        start, end = place.intensity_min, place.intensity_max
        intensity = "-"
        if start is not None:
            intensity = interval(start, end) if end else f"{three_digits(start)} and up"
        rows.append(
            (
                " ".join(filter(None, (op.label, op.phase))),
                _cut(op.shapes),
                f"{op.calls:g}",
                _ms(op.time_s),
                _ms(op.exclusive_s),
                percent(place.share),
                _scaled(op.flops, 1e-9),
                _scaled(op.eager_bytes, 1e-9),
                _scaled(place.flops_per_s, 1e-9),
                intensity,
            )
        )
    on_device = any(step.device_busy_s is not None for step in trace.record.steps)
    own = "kernels ms" if on_device else "ms"
    headings = ("op", "shapes", "calls", own, "exclusive ms", "of ops", *_WORK)
    title = f"The {len(rows)} longest of {len(trace.record.ops)} ops, per step"
    return text_table(headings, rows, title=title, left=(0, 1), name_characters=_NAME_CHARACTERS)


def print_comparison(comparison: TraceComparison, most_ops: int) -> None:
    """Print what of the difference between two traces' steps each op explains."""
    from analysis.report.tables.trace_tables import comparison_table

    table = replace(comparison_table(comparison), shown=most_ops)
    click.echo(comparison.summary)
    output(_COLUMNS).print(
        text_table(
            [column.heading for column in table.visible],
            [list(map(_cut, row)) for row in table.cells],
            title=f"The {len(table.cells)} of {len(table.rows)} ops that explain most",
            left=[n for n, column in enumerate(table.visible) if not column.numeric],
            name_characters=_NAME_CHARACTERS,
        )
    )


def comparison_as_json(comparison: TraceComparison) -> dict[str, Any]:
    """Return what of the difference between two traces' steps each op explains, for programs."""
    return {
        **{name: value for name, value in asdict(comparison).items() if name != "ops"},
        "difference_s": comparison.difference_s,
        "idle_difference_s": comparison.idle_difference_s,
        "explained_s": comparison.explained_s,
        "ops": [
            {**asdict(op), "change": op.change, "difference_s": op.difference_s}
            for op in comparison.changed
        ],
    }


def _cut(shapes: str) -> str:
    if len(shapes) <= _SHAPES_CHARACTERS:
        return shapes or "-"
    return f"{shapes[: _SHAPES_CHARACTERS - 3]}..."


def _ms(seconds: float | None) -> str:
    return _scaled(seconds, 1e3)


def _scaled(value: float | None, factor: float) -> str:
    from analysis.runs.quantities import three_digits

    return "-" if value is None else three_digits(value * factor)
