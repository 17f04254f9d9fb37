"""The work, memory, modules and ops of training steps, as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench.config import common_sample
from commands.views.terminal import output, text_table

if TYPE_CHECKING:
    from bench.cost.counted.by_module import ModuleTable
    from bench.records import Complexity


def print_complexities(
    complexities: list[Complexity], tables: list[ModuleTable], *, with_ops: bool
) -> None:
    """Print the tables of the steps; `tables` of their modules where these were asked for."""
    console = output(100)
    console.print(_work_table(complexities), _phases_table(complexities))
    console.print(_memory_table(complexities))
    for item, table in zip(complexities, tables, strict=False):
        console.print(_modules_table(item, table))
        for name, first_name in table.tied:
            console.print(f"{name} is {first_name}: its parameters are counted once, there.")
    if tables:
        console.print(
            "A module's row has all within it; (model), (loss) and (optimizer) add up to the step."
        )
    for item in complexities if with_ops else []:
        console.print(_ops_table(item))
    for item in complexities:
        if item.recomputed_flops:
            again = _figure(item.recomputed_flops / item.batch_size / 1e9)
            console.print(
                f"{item.arch}: checkpoints compute {again} GFLOP per {item.sample} again; these "
                "are not in the step's."
            )
        if item.causal_skipped_flops:
            hidden = _figure(item.causal_skipped_flops / item.batch_size / 1e9)
            console.print(
                f"{item.arch}: attention counts whole; causal masks hide {hidden} GFLOP per "
                f"{item.sample}, which fused kernels may skip."
            )
    first = complexities[0]
    console.print(
        "A multiply-add is 2 FLOP. Small: elementwise ops and norms, counted separately. Least: "
        f"what {first.cache_bytes / 2**20:.0f} MiB of cache cannot save. Method: {first.method}."
    )


def _figure(number: float) -> str:
    """Return four figures, or fewer decimals than fit: 4.089, 24.30, 294.5, 1,086."""
    decimals = next((n for n, limit in ((3, 10), (2, 100), (1, 1000)) if number < limit), 0)
    return f"{number:,.{decimals}f}"


def _per(complexities: list[Complexity]) -> str:
    """Return `per image` or `per sequence`: per sample where the models differ."""
    return f"per {common_sample(item.sample for item in complexities)}"


def _inputs(complexities: list[Complexity]) -> tuple[str, list[str]]:
    """The heading and the cells of what decides the size of a sample."""
    sizes = [
        ("pixels", item.image_size) if item.image_size else ("tokens", item.tokens_per_sample)
        for item in complexities
    ]
    units = {unit for unit, size in sizes if size}
    if len(units) > 1:
        return "input", [f"{size} {unit}" if size else "" for unit, size in sizes]
    return next(iter(units), "pixels"), [str(size or "") for _, size in sizes]


def _work_table(complexities: list[Complexity]) -> Table:
    columns = {
        "forward\nGMAC": ("forward_macs_per_{}", 1e9),
        "step\nGFLOP": ("step_flops_per_{}", 1e9),
        "small\nGFLOP": ("elementwise_flops_per_{}", 1e9),
        "fused\nMB": ("bytes_per_{}_min", 1e6),
        "eager\nMB": ("bytes_per_{}_max", 1e6),
        "least\nMB": ("bytes_per_{}_compulsory", 1e6),
        "eager\nFLOP/B": ("intensity_min", 1.0),
        "fused\nFLOP/B": ("intensity_max", 1.0),
    }
    heading, inputs = _inputs(complexities)
    rows = [
        [item.arch, str(item.batch_size), size]
        + [_figure(row[name.format(item.sample)] / unit) for name, unit in columns.values()]
        for item, size in zip(complexities, inputs, strict=True)
        for row in [item.row()]
    ]
    title = f"One training step in {complexities[0].precision}, {_per(complexities)}"
    return text_table(["model", "batch", heading, *columns], rows, title=title)


def _phases_table(complexities: list[Complexity]) -> Table:
    headings = ["model", "batch", "phase", "GFLOP", "small GFLOP", "fused MB", "eager MB"]
    rows = [
        [item.arch, str(item.batch_size), phase.phase]
        + [
            _figure(count / item.batch_size / unit)
            for count, unit in (
                (phase.flops, 1e9),
                (phase.elementwise_flops, 1e9),
                (phase.fused_bytes, 1e6),
                (phase.eager_bytes, 1e6),
            )
        ]
        for item in complexities
        for phase in item.phases
    ]
    return text_table(headings, rows, title=f"Its phases, {_per(complexities)}", left=(0, 2))


def _modules_table(item: Complexity, table: ModuleTable) -> Table:
    from bench.cost.counted.by_module import module_rows

    each = f"per_{item.sample}"
    columns = {
        "forward\nGMAC": (f"forward_macs_{each}", 1e9),
        "forward\nGFLOP": (f"forward_flops_{each}", 1e9),
        "backward\nGFLOP": (f"backward_flops_{each}", 1e9),
        "FLOP\n%": ("step_flops_share", None),
        "fused\nMB": (f"bytes_{each}_min", 1e6),
        "fused\n%": ("bytes_min_share", None),
        "eager\nMB": (f"bytes_{each}_max", 1e6),
        "eager\n%": ("bytes_max_share", None),
    }
    rows = [
        [_module_cell(row), f"{row['parameters']:,}"]
        + [
            _share(row[name]) if unit is None else _figure(row[name] / unit)
            for name, unit in columns.values()
        ]
        for row in module_rows(item, table)
    ]
    title = f"Modules of {item.arch}, one step of {item.batch_size}, {_per([item])}"
    return text_table(["module", "parameters", *columns], rows, title=title)


def _share(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.1f}"


def _module_cell(row: dict[str, Any]) -> str:
    """The last part of the path, as far to the right as the module is deep in the model."""
    name: str = row["module"]
    return name if row["depth"] == 0 else "  " * row["depth"] + name.rpartition(".")[2]


def _memory_table(complexities: list[Complexity]) -> Table:
    headings = ["model", "batch", "parameters", "weights", "gradients", "optimizer", "activations"]
    rows = [
        [item.arch, str(item.batch_size), f"{item.parameters:,}"]
        + [_figure(size / 1e6) for size in item.memory.model_dump().values()]
        + [_figure(item.memory.total_bytes / 1e6)]
        for item in complexities
    ]
    return text_table([*headings, "together"], rows, title="Memory that it holds, MB")


def _ops_table(item: Complexity) -> Table:
    headings = ["op", "phase", "calls", "GFLOP", "small GFLOP", "fused MB", "eager MB"]
    rows = [
        [op.op, op.phase, str(op.calls)]
        + [_figure(count / 1e9) for count in (op.flops, op.elementwise_flops)]
        + [_figure(size / 1e6) for size in (op.fused_bytes, op.eager_bytes)]
        for op in item.ops
    ]
    title = f"Ops of {item.arch}, one step of {item.batch_size} {item.sample}s in {item.precision}"
    return text_table(headings, rows, title=title)
