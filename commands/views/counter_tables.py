"""Counters as tables on the terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from bench.records import KernelTotals

FIGURES = ("duration_s", "flops", "tensor_flops", "dram_bytes", "l2_bytes", "l1_bytes")
_TOTALS = ("kernels", *FIGURES, "pcie_bytes", "intensity_dram")
_MOST_KERNELS = 20
#: Names that differ in one part, one after the other: they are shown as prefix{a,b,c}suffix.
_FAMILIES = (
    ("smsp__sass_thread_inst_executed_op_", "_pred_on.sum"),
    ("sm__ops_path_tensor_", ".sum"),
)


def print_counters(row: dict[str, Any], kernels: Sequence[KernelTotals]) -> None:
    """Print the totals of one file as `mlproject counters` gives them, and of its kernels."""
    from rich.console import Console
    from rich.text import Text

    # A file or a pipe has no width of its own; the tables need this much.
    console = Console(width=None if sys.stdout.isatty() else 100)
    chip = f", {row['chip']}" if row["chip"] else ""
    console.print(Text(f"{row['file']} ({row['source']}{chip})"))
    console.print(_table(_TOTALS, [[_figure(row[name]) for name in _TOTALS]]))
    if kernels:
        console.print(_kernels_table(kernels))
    reasons = {name: why for name, why in row["missing"].items() if name != "intensity_dram"}
    for name, why in reasons.items():
        console.print(Text(f"{name}: {_shortened(why)}", style="dim"))
    for note in row["notes"]:
        console.print(Text(f"not counted: {_shortened(note)}", style="dim"))


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in names:
        if name == "kernel":
            table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=40)
        else:
            table.add_column(name.replace("_", "\n"), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _kernels_table(kernels: Sequence[KernelTotals]) -> Table:
    from rich.markup import escape

    shown = [
        [
            escape(kernel.name),
            *(_figure(getattr(kernel, name)) for name in ("launches", *FIGURES)),
        ]
        for kernel in kernels[:_MOST_KERNELS]
    ]
    table = _table(("kernel", "launches", *FIGURES), shown)
    if len(shown) < len(kernels):
        table.caption = f"{len(kernels) - len(shown)} more: --format json has them all"
    return table


def _figure(value: float | None) -> str:
    """An exact count where it is short, else four figures; a dash where it is unknown."""
    if value is None:
        return "-"
    if isinstance(value, int) and value < 10**6:
        return f"{value:,}"
    return f"{value:.4g}"


def _shortened(reason: str) -> str:
    """Metrics of a family, one after the other, as one name with its variants in braces."""
    for prefix, suffix in _FAMILIES:
        name = f"{re.escape(prefix)}([a-z0-9_]+?){re.escape(suffix)}"
        reason = re.sub(
            f"{name}(?:, {name})+",
            lambda found: (
                f"{prefix}{{{','.join(re.findall(name, found[0]))}}}{suffix}"  # noqa: B023
            ),
            reason,
        )
    return reason
