"""`mlproject counters`: what Nsight Compute's files say, and which metrics to collect."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from rich.table import Table
from rich.text import Text

from bench.errors import UserError
from bench.profilers.files.ncu_metrics import CHIPS, metrics_for_chip
from bench.records import ProfileRecord, RunRecord
from commands.views.options import records_option, server_needed, table_option, track_option
from commands.views.recorded import finish, profile_facts
from commands.views.terminal import output, text_table

if TYPE_CHECKING:
    from bench.profilers.files.ncu_metrics import Translation
    from bench.records import Counters, CpuCounters, KernelTotals

_RUN_ID = re.compile(r"[0-9a-f]{32}")
_MAX_LIST_BYTES = 1 << 16
_FIGURES = ("duration_s", "flops", "tensor_flops", "dram_bytes", "l2_bytes", "l1_bytes")
_TOTALS = ("kernels", *_FIGURES, "pcie_bytes", "intensity_dram")
_MAX_KERNELS = 20
#: Names that differ in one part, one after the other: they are shown as prefix{a,b,c}suffix.
_FAMILIES = (
    ("smsp__sass_thread_inst_executed_op_", "_pred_on.sum"),
    ("sm__ops_path_tensor_", ".sum"),
)


#: What became of a file: a row of JSON, and how to print it instead.
_Entry: TypeAlias = tuple[dict[str, Any], Callable[[], None]]


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, dir_okay=False))
@table_option
@click.option("--per-kernel", is_flag=True, help="also a row per kernel name")
@click.option(
    "--merge", is_flag=True, help="the files are passes over the same launches: one result"
)
@click.option(
    "--print-metrics",
    "chip",
    type=click.Choice(CHIPS),
    help="print the metrics to collect on a chip, and the ncu command (metric_names_ncu.txt)",
)
@click.option(
    "--attach",
    metavar="RUN",
    help="keep what FILES count of one step as a profile of this measurement: a record in "
    "--records, or a tracked run's id",
)
@records_option
@track_option
def command(
    files: tuple[Path, ...],
    form: str,
    per_kernel: bool,
    merge: bool,
    chip: str | None,
    attach: str | None,
    records: Path,
    tracked: bool,
) -> int:
    """Add up FILES of Nsight Compute: any CSV that ncu prints, or an .ncu-rep report.

    A figure that a file does not have is null, with the missing metric. A FILE of perf stat is read
    too. A FILE that lists metrics to collect is printed with nvprof's names, which ncu does not
    know, replaced by ncu's. With --attach, several FILES are passes over the same launches. Exit
    codes: 0 printed; 2 a file that cannot be read (the others are printed); 3 attached, but not
    uploaded.
    """
    if not files and (chip is None or attach is not None):
        raise UserError("no FILE: name a file that ncu wrote, or --print-metrics CHIP")
    if chip is not None:
        click.echo(_metric_names(chip))
    if attach is not None:
        return _attach(files, attach, records, tracked=tracked, form=form)
    _add_up(files, form, per_kernel=per_kernel, merge=merge)
    return 0


def _add_up(files: tuple[Path, ...], form: str, *, per_kernel: bool, merge: bool) -> None:
    """Print each file's figures; a file that cannot be read does not hide the others."""
    entries: list[_Entry] = []
    refusals: list[UserError] = []
    if merge and files:
        entries.append(_merged(files, per_kernel=per_kernel))
    for file in () if merge else files:
        try:
            entries.append(_entry(file, per_kernel=per_kernel))
        except UserError as error:
            refusals.append(error)
    if form == "json" and files:
        click.echo(json.dumps([row for row, _ in entries], indent=1))
    else:
        for _, show in entries:
            show()
    for refusal in refusals[:-1]:
        click.echo(f"mlproject: {refusal}", err=True)
    if refusals:
        raise refusals[-1]


def _attach(files: tuple[Path, ...], run: str, records: Path, *, tracked: bool, form: str) -> int:
    """Keep the counters in `files` as a profile of `run`, with the checks that a profile gets."""
    from bench.launcher.attach import attach_counters

    folder = attach_counters(files, _timed(run, records), records)
    record = folder.read_record()
    assert isinstance(record, ProfileRecord)  # it has just been written  # noqa: S101
    return finish(folder, record, profile_facts(record), tracked=tracked, form=form)


def _timed(run: str, records: Path) -> RunRecord:
    """Return the measurement named by its record or by its tracked run."""
    from bench.launcher.profile import read_timed

    if _RUN_ID.fullmatch(run) is None:
        return read_timed(records, run, option="attach")
    from tracking.reading.tracked_runs import download_record

    with server_needed():
        record = download_record(run)
    if not isinstance(record, RunRecord):
        raise UserError(f"attach={run!r}: holds no measurement but a {record.kind}")
    return record


def _merged(passes: tuple[Path, ...], *, per_kernel: bool) -> _Entry:
    from bench.profilers.files.ncu_read import read_counters_of

    return _counted(read_counters_of(passes), per_kernel=per_kernel)


def _entry(file: Path, *, per_kernel: bool) -> _Entry:
    from bench.profilers.files.ncu_metrics import metrics_listed_in, translate
    from bench.profilers.files.ncu_read import read_counters
    from bench.profilers.files.perf_rows import is_perf_stat
    from bench.profilers.files.perf_stat import read_perf_stat

    try:
        with file.open("rb") as opened:
            head = opened.read(_MAX_LIST_BYTES + 1).decode("utf-8-sig", "replace")
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error})") from None
    if len(head) <= _MAX_LIST_BYTES and (names := metrics_listed_in(head)):
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
        **{name: getattr(item, name) for name in (*_FIGURES, "pcie_bytes")},
        "flops_at_least": item.flops_at_least,
        "intensity_dram": item.intensity_dram,
    }
    row["missing"] = {name: why for name, why in item.missing.items() if name in row}
    row["missing"].pop("chip", None)
    if item.intensity_dram is None:
        row["missing"]["intensity_dram"] = item.intensity_dram_missing
    row["notes"] = [why for name, why in item.missing.items() if name not in row]
    if per_kernel:
        row["per_kernel"] = [kernel.model_dump() for kernel in item.per_kernel]
    return row, lambda: _print_counters(row, item.per_kernel if per_kernel else ())


def _perf(file: Path, item: CpuCounters) -> _Entry:
    row = {"file": str(file), **item.model_dump(), "ipc": item.ipc}

    def show() -> None:
        click.echo(f"{file} ({item.source}, {item.scope})")
        for name, value in row.items():
            if isinstance(value, int | float):
                click.echo(f"  {name}: {value:,}")
        for name, why in item.missing.items():
            click.echo(f"  {name}: - ({why})")

    return row, show


def _translated(file: Path, translated: Translation) -> _Entry:
    for warning in translated.warnings:
        click.echo(f"warning: {file}: {warning}", err=True)
    row = {"file": str(file), **translated._asdict()}
    return row, lambda: click.echo("\n".join(translated.metrics))


def _metric_names(chip: str) -> str:
    hardware, sass = metrics_for_chip(chip)
    lines = [
        f"# Metrics of Nsight Compute for {chip}. Then: mlproject counters step.csv",
        "#",
        "# LC_ALL=C ncu --profile-from-start off --replay-mode kernel --clock-control none"
        " --csv --page raw --print-units base --log-file step.csv"
        f" --metrics {','.join((*hardware, *sass))} python ...",
        *hardware,
        *sass,
    ]
    return "\n".join(lines)


def _print_counters(row: dict[str, Any], kernels: Sequence[KernelTotals]) -> None:
    """Print the totals of one file as `mlproject counters` gives them, and of its kernels."""
    console = output(100)
    chip = f", {row['chip']}" if row["chip"] else ""
    console.print(Text(f"{row['file']} ({row['source']}{chip})"))
    totals = [_shown(row, name) for name in _TOTALS]
    console.print(text_table(map(_heading, _TOTALS), [totals], left=()))
    if kernels:
        console.print(_kernels_table(kernels))
    reasons = {name: why for name, why in row["missing"].items() if name != "intensity_dram"}
    for name, why in reasons.items():
        console.print(Text(f"{name}: {_shortened(why)}", style="dim"))
    for note in row["notes"]:
        console.print(Text(f"not counted: {_shortened(note)}", style="dim"))


def _kernels_table(kernels: Sequence[KernelTotals]) -> Table:
    columns = ("launches", *_FIGURES)
    shown = [
        [kernel.name, *(_shown(kernel.model_dump(), name) for name in columns)]
        for kernel in kernels[:_MAX_KERNELS]
    ]
    headings = ("kernel", *map(_heading, columns))
    table = text_table(headings, shown, name_characters=40)
    if len(shown) < len(kernels):
        table.caption = f"{len(kernels) - len(shown)} more: --format json has them all"
    return table


def _heading(name: str) -> str:
    return name.replace("_", "\n")


def _shown(row: Mapping[str, Any], name: str) -> str:
    """A figure, or from where it is known to begin: FLOP of which some were not counted."""
    least = row["flops_at_least"] if name == "flops" and row["flops"] is None else 0
    return f"\u2265 {_figure(least)}" if least else _figure(row[name])


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
