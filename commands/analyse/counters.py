"""`mlproject counters`: what Nsight Compute's files say, and which metrics to collect."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from bench.errors import UserError
from bench.profilers.files.metrics import CHIPS, metrics_for_chip
from commands.views.counter_tables import FIGURES, print_counters

if TYPE_CHECKING:
    from bench.profilers.files.legacy import Translation
    from bench.records import Counters, CpuCounters, KernelTotals

_MOST_LISTED_BYTES = 1 << 16


class _Entry(NamedTuple):
    """What became of a file: a row of JSON, and how to print it instead."""

    row: dict[str, Any]
    show: Callable[[], None]


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@click.option("--per-kernel", is_flag=True, help="also a row per kernel name")
@click.option(
    "--merge", is_flag=True, help="the files are passes over the same launches: one result"
)
@click.option(
    "--print-metrics",
    "chip",
    type=click.Choice(CHIPS),
    help="print the metrics to collect on a chip, and the two ncu commands (metric_names_ncu.txt)",
)
def command(
    files: tuple[Path, ...], form: str, per_kernel: bool, merge: bool, chip: str | None
) -> int:
    """Add up FILES of Nsight Compute: any CSV that ncu prints, or an .ncu-rep report.

    A figure that a file does not have is null, with the missing metric. A FILE of perf stat is read
    too. A FILE that lists metrics to collect is printed with nvprof's names, which ncu does not
    know, replaced by ncu's. Exit codes: 0 printed; 2 a file that cannot be read (the others are
    printed).
    """
    if chip is not None:
        click.echo(_metric_names(chip))
    elif not files:
        raise UserError("no FILE: name a file that ncu wrote, or --print-metrics CHIP")
    entries, refusals = _entries(files, per_kernel=per_kernel, merge=merge)
    if form == "json" and files:
        click.echo(json.dumps([entry.row for entry in entries], indent=1))
    else:
        for entry in entries:
            entry.show()
    for refusal in refusals[:-1]:
        click.echo(f"mlproject: {refusal}", err=True)
    if refusals:
        raise refusals[-1]
    return 0


def _entries(
    files: tuple[Path, ...], *, per_kernel: bool, merge: bool
) -> tuple[list[_Entry], list[UserError]]:
    """Read every file that can be read; the others' errors are given back."""
    if merge and files:
        from bench.profilers.files import read_counters_of

        return [_counted(read_counters_of(files), per_kernel=per_kernel)], []
    entries, refusals = [], []
    for file in files:
        try:
            entries.append(_entry(file, per_kernel=per_kernel))
        except UserError as error:
            refusals.append(error)
    return entries, refusals


def _entry(file: Path, *, per_kernel: bool) -> _Entry:
    from bench.profilers.files import read_counters
    from bench.profilers.files.legacy import metrics_listed_in, translate
    from bench.profilers.files.perf_rows import is_perf_stat
    from bench.profilers.files.perf_stat import read_perf_stat

    try:
        with file.open("rb") as opened:
            head = opened.read(_MOST_LISTED_BYTES + 1).decode("utf-8-sig", "replace")
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error})") from None
    if len(head) <= _MOST_LISTED_BYTES and (names := metrics_listed_in(head)):
        return _translated(file, translate(names))
    if is_perf_stat(head):
        return _perf(file, read_perf_stat(file))
    return _counted(read_counters(file), per_kernel=per_kernel)


def _counted(item: Counters, *, per_kernel: bool) -> _Entry:
    """The fields in the order of the documentation; `missing` explains each figure that is null."""
    row: dict[str, Any] = {
        "file": " + ".join(item.files),
        "source": item.source,
        "chip": item.chip,
        "kernels": item.kernels,
        **{name: getattr(item, name) for name in (*FIGURES, "pcie_bytes")},
        "intensity_dram": item.intensity_dram,
    }
    row["missing"] = {name: why for name, why in item.missing.items() if name in row}
    row["missing"].pop("chip", None)
    if item.intensity_dram is None:
        needed = [row["missing"].get(name) for name in ("flops", "dram_bytes")]
        row["missing"]["intensity_dram"] = "; ".join(filter(None, needed)) or "dram_bytes is 0"
    row["notes"] = [why for name, why in item.missing.items() if name not in row]
    if per_kernel:
        row["per_kernel"] = [_kernel_row(kernel) for kernel in item.per_kernel]
    return _Entry(row, lambda: print_counters(row, item.per_kernel if per_kernel else ()))


def _kernel_row(kernel: KernelTotals) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "launches": kernel.launches,
        **{name: getattr(kernel, name) for name in FIGURES},
        "missing": kernel.missing,
    }


def _perf(file: Path, item: CpuCounters) -> _Entry:
    row = {"file": str(file), **item.model_dump(), "ipc": item.ipc}

    def show() -> None:
        click.echo(f"{file} ({item.source}, {item.scope})")
        for name, value in row.items():
            if isinstance(value, int | float):
                click.echo(f"  {name}: {value:,}")
        for name, why in item.missing.items():
            click.echo(f"  {name}: - ({why})")

    return _Entry(row, show)


def _translated(file: Path, translated: Translation) -> _Entry:
    for warning in translated.warnings:
        click.echo(f"warning: {file}: {warning}", err=True)
    return _Entry(
        {"file": str(file), **translated._asdict()},
        lambda: click.echo("\n".join(translated.metrics)),
    )


def _metric_names(chip: str) -> str:
    lines = [f"# Metrics of Nsight Compute for {chip}, in two runs of the same command, since the"]
    lines += ["# second set needs a pass of its own. Then: mlproject counters --merge A.csv B.csv"]
    for name, metrics in zip("AB", metrics_for_chip(chip), strict=True):
        lines += [
            "#",
            "# LC_ALL=C ncu --profile-from-start off --replay-mode kernel --clock-control none"
            f" --csv --page raw --print-units base --log-file {name}.csv"
            f" --metrics {','.join(metrics)} python ...",
            *metrics,
        ]
    return "\n".join(lines)
