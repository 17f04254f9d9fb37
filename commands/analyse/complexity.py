"""`mlproject complexity`: FLOP, bytes and memory of a model's training step, nothing measured."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from bench.config import RunConfig, parse_config
from bench.errors import UserError
from commands.views.complexity_view import print_complexities
from commands.views.options import field_option
from commands.views.terminal import watched

if TYPE_CHECKING:
    from bench.cost.counted.by_module import ModuleTable
    from bench.records import Complexity


@click.command()
@click.option(
    "--arch",
    "architectures",
    multiple=True,
    default=["resnet18"],
    show_default=True,
    metavar="NAME",
    help="torchvision name, timm:NAME, hf:NAME or module:callable (may be given again)",
)
@click.option(
    "--batch-size",
    "batch_sizes",
    multiple=True,
    default=["32"],
    show_default=True,
    metavar="N",
    help="images or sequences per step (may be given again: every model with every size)",
)
@click.option(
    "--precision",
    default="fp32",
    show_default=True,
    help="fp32, tf32, amp, amp-bf16 or amp-fp16; amp counts as bf16, on a device that has neither "
    "bf16 nor fp16 it is fp32",
)
@field_option("image_size")
@field_option("seq_len")
@field_option("optimizer")
@click.option(
    "--backend",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="device whose ops and casts are counted; it need not be here",
)
@click.option("--ops", "with_ops", is_flag=True, help="also the cost of every op in every phase")
@click.option("--by", type=click.Choice(["module"]), help="also the cost of every module")
@click.option(
    "--depth",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="with --by module: how far into the model; layer1.0 has depth 2",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="csv: a row per model and batch size, with --ops one per op, with --by one per module",
)
def command(
    architectures: tuple[str, ...],
    batch_sizes: tuple[str, ...],
    with_ops: bool,
    by: str | None,
    depth: int,
    form: str,
    **settings: str,
) -> None:
    """Print FLOP, bytes and memory of a model's training step: forward, backward, optimizer.

    Nothing is run or allocated, so any batch size will do. A multiply-add is 2 FLOP. Bytes are a
    range: fused (every chain of small ops folded into its neighbours) to eager (every op by
    itself). Exit codes: 0 printed; 2 a wrong value.
    """
    if form == "csv" and with_ops and by:
        raise UserError("--format csv has rows of ops or of modules: leave out --ops or --by")
    configs = [
        _checked(arch, batch_size, settings) for arch in architectures for batch_size in batch_sizes
    ]
    counted = list(watched(_counted(configs, depth if by else None), "complexity", len(configs)))
    complexities = [complexity for complexity, _ in counted]
    tables = [table for _, table in counted if table is not None]
    if form == "json":
        _print_json(complexities, tables, with_ops=with_ops)
    elif form == "csv":
        _print_csv(complexities, tables, with_ops=with_ops)
    else:
        print_complexities(complexities, tables, with_ops=with_ops)


def _checked(arch: str, batch_size: str, settings: dict[str, str]) -> RunConfig:
    """Refuse wrong values before torch is imported, which takes seconds."""
    if not batch_size.isdecimal() or int(batch_size) < 1:
        raise UserError(f"batch_size={batch_size!r}: give a whole number, 1 or more")
    return parse_config({"arch": arch, "batch_size": batch_size, **settings})


def _counted(
    configs: list[RunConfig], depth: int | None
) -> Iterator[tuple[Complexity, ModuleTable | None]]:
    for config in configs:
        if depth is None:
            from bench.cost import config_complexity

            yield config_complexity(config), None
        else:
            from bench.cost.counted.by_module import complexity_by_module

            yield complexity_by_module(config, depth=depth)


def _print_json(
    complexities: list[Complexity], tables: list[ModuleTable], *, with_ops: bool
) -> None:
    from bench.cost.counted.by_module import module_rows

    rows = [item.row() for item in complexities]
    for row, item in zip(rows, complexities if with_ops else [], strict=False):
        row["ops"] = [op.model_dump() for op in item.ops]
    for row, item, table in zip(rows, complexities, tables, strict=False):
        row["modules"] = module_rows(item, table)
        row["tied_parameters"] = dict(table.tied)
    click.echo(json.dumps(rows, indent=1))


def _print_csv(
    complexities: list[Complexity], tables: list[ModuleTable], *, with_ops: bool
) -> None:
    from bench.cost.counted.by_module import module_rows

    rows = [item.row() for item in complexities]
    parts: list[list[dict[str, Any]]] = []
    if with_ops:
        parts = [[op.model_dump() for op in item.ops] for item in complexities]
    elif tables:
        parts = [module_rows(*each) for each in zip(complexities, tables, strict=True)]
    if parts:
        names = ("arch", "batch_size", "image_size", "tokens_per_sample", "precision")
        rows = [
            {name: row[name] for name in names} | part
            for row, each in zip(rows, parts, strict=True)
            for part in each
        ]
    text = io.StringIO()
    columns = dict.fromkeys(name for row in rows for name in row)  # images' and sequences' differ
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    click.echo(text.getvalue(), nl=False)
