"""`mlproject complexity`: FLOP, bytes and memory of a model's training step, nothing measured."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import click
from rich.table import Table

from bench.config import RunConfig, parse_config
from bench.errors import UserError
from commands.views.terminal import output, text_table, watched

if TYPE_CHECKING:
    from bench.records import Complexity


@click.command()
@click.option(
    "--arch",
    "architectures",
    multiple=True,
    default=["resnet18"],
    show_default=True,
    metavar="NAME",
    help="torchvision name or module:callable (may be given again)",
)
@click.option(
    "--batch-size",
    "batch_sizes",
    multiple=True,
    default=["32"],
    show_default=True,
    metavar="N",
    help="images per step (may be given again: every model with every size)",
)
@click.option(
    "--precision",
    default="fp32",
    show_default=True,
    help="fp32, tf32, amp, amp-bf16 or amp-fp16; amp counts as bf16, on a device that has neither "
    "bf16 nor fp16 it is fp32",
)
@click.option(
    "--image-size",
    default="auto",
    show_default=True,
    metavar="PIXELS",
    help="pixels a side; auto: the model's own",
)
@click.option("--ops", "with_ops", is_flag=True, help="also the cost of every op in every phase")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="csv: a row per model and batch size, with --ops a row per op",
)
def command(
    architectures: tuple[str, ...],
    batch_sizes: tuple[str, ...],
    precision: str,
    image_size: str,
    with_ops: bool,
    form: str,
) -> None:
    """Print FLOP, bytes and memory of a model's training step: forward, backward, optimizer.

    Nothing is run or allocated, so any batch size will do. A multiply-add is 2 FLOP. Bytes are a
    range: fused (every chain of small ops folded into its neighbours) to eager (every op by
    itself). Exit codes: 0 printed; 2 a wrong value.
    """
    configs = [
        _checked(arch, batch_size, precision, image_size)
        for arch in architectures
        for batch_size in batch_sizes
    ]
    from bench.cost import config_complexity

    each = map(config_complexity, configs)
    complexities = list(watched(each, "complexity", len(configs)))
    if form == "json":
        _print_json(complexities, with_ops=with_ops)
    elif form == "csv":
        _print_csv(complexities, with_ops=with_ops)
    else:
        _print_tables(complexities, with_ops=with_ops)


def _checked(arch: str, batch_size: str, precision: str, image_size: str) -> RunConfig:
    """Refuse wrong values before torch is imported, which takes seconds."""
    if not batch_size.isdecimal() or int(batch_size) < 1:
        raise UserError(f"batch_size={batch_size!r}: give a whole number of images, 1 or more")
    return parse_config(
        {"arch": arch, "batch_size": batch_size, "precision": precision, "image_size": image_size}
    )


def _print_json(complexities: list[Complexity], *, with_ops: bool) -> None:
    from bench.cost import complexity_row

    rows = [complexity_row(item) for item in complexities]
    for row, item in zip(rows, complexities if with_ops else [], strict=False):
        row["ops"] = [op.model_dump() for op in item.ops]
    click.echo(json.dumps(rows, indent=1))


def _print_csv(complexities: list[Complexity], *, with_ops: bool) -> None:
    from bench.cost import complexity_row

    rows = [complexity_row(item) for item in complexities]
    if with_ops:
        names = ("arch", "batch_size", "image_size", "precision")
        rows = [
            {name: row[name] for name in names} | op.model_dump()
            for row, item in zip(rows, complexities, strict=True)
            for op in item.ops
        ]
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    click.echo(text.getvalue(), nl=False)


def _print_tables(complexities: list[Complexity], *, with_ops: bool) -> None:
    console = output(100)
    console.print(_work_table(complexities), _phases_table(complexities))
    console.print(_memory_table(complexities))
    for item in complexities if with_ops else []:
        console.print(_ops_table(item))
    first = complexities[0]
    console.print(
        "A multiply-add is 2 FLOP. Small: elementwise ops and norms, counted separately. Least: "
        f"what {first.cache_bytes / 2**20:.0f} MiB of cache cannot save. Method: {first.method}."
    )


def _figure(number: float) -> str:
    """Return four figures, or fewer decimals than fit: 4.089, 24.30, 294.5, 1,086."""
    decimals = next((n for n, limit in ((3, 10), (2, 100), (1, 1000)) if number < limit), 0)
    return f"{number:,.{decimals}f}"


def _work_table(complexities: list[Complexity]) -> Table:
    from bench.cost import complexity_row

    columns = {
        "forward\nGMAC": ("forward_macs_per_image", 1e9),
        "step\nGFLOP": ("step_flops_per_image", 1e9),
        "small\nGFLOP": ("elementwise_flops_per_image", 1e9),
        "fused\nMB": ("bytes_per_image_min", 1e6),
        "eager\nMB": ("bytes_per_image_max", 1e6),
        "least\nMB": ("bytes_per_image_compulsory", 1e6),
        "eager\nFLOP/B": ("intensity_min", 1.0),
        "fused\nFLOP/B": ("intensity_max", 1.0),
    }
    rows = [
        [row["arch"], str(row["batch_size"]), str(row["image_size"])]
        + [_figure(row[name] / unit) for name, unit in columns.values()]
        for row in map(complexity_row, complexities)
    ]
    title = f"One training step in {complexities[0].precision}, per image"
    return text_table(["model", "batch", "pixels", *columns], rows, title=title)


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
    return text_table(headings, rows, title="Its phases, per image", left=(0, 2))


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
    title = f"Ops of {item.arch}, one step of {item.batch_size} images in {item.precision}"
    return text_table(headings, rows, title=title)
