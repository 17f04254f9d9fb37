"""`mlproject counters`: what Nsight Compute's files say, and which metrics to collect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from bench.errors import UserError
from bench.profilers.ncu.metrics import CHIPS, metrics_for_chip
from commands.console.options import File, Tracked, argument, note, option
from commands.console.output import Output, Shown, table_of

if TYPE_CHECKING:
    from analysis.presentation.table import Table

_FIGURES = ("duration_s", "flops", "tensor_flops", "dram_bytes", "l2_bytes", "l1_bytes")
_MAX_KERNELS = 20
#: The columns that people read, of a file or of a kernel.
_SHOWN = ("name", "launches", "kernels", *_FIGURES, "pcie_bytes", "intensity_dram")


class Counters(Tracked, Shown):
    """Add up the counters in Nsight Compute's files.

    FILES are any CSV that ncu prints. A figure that a file does not have is
    null, with the missing metric. With --attach, several FILES are passes over the same
    launches. It ends with 2 where a file cannot be read; the others are printed.
    """

    files: tuple[File, ...] = argument(required=False)
    per_kernel: bool = option("also a row per kernel name")
    merge: bool = option("the files are passes over the same launches: one result")
    print_metrics: Annotated[str, click.Choice(CHIPS)] | None = option(
        "print the metrics to collect on a chip, and the ncu command (metric_names_ncu.txt)"
    )
    attach: str | None = option(
        "keep what FILES count of one step as a profile of this measurement: a record in "
        "--records, or a tracked run's id",
        metavar="RUN",
    )

    def run(self) -> int:
        """Show what each file says; one that cannot be read does not hide the others."""
        if not self.files and (self.print_metrics is None or self.attach is not None):
            raise UserError("no FILE: name a file that ncu wrote, or --print-metrics CHIP")
        if self.print_metrics is not None:
            click.echo(_metric_names(self.print_metrics))
        if self.attach is not None:
            return self.show(self._attached(self.attach))
        rows: list[dict[str, Any]] = []
        refusals: list[UserError] = []
        for files in [self.files] if self.merge else [(file,) for file in self.files]:
            try:
                rows.append(_row(files))
            except UserError as error:
                refusals.append(error)
        if self.files:
            self.show(self._result(rows))
        for refusal in refusals[:-1]:
            note(str(refusal))
        if refusals:
            raise refusals[-1]
        return 0

    def _result(self, rows: Sequence[dict[str, Any]]) -> Output:
        kernels = [
            {"file": row["file"], **kernel} for row in rows for kernel in row.get("per_kernel", ())
        ]
        apart = ("missing", "notes", "per_kernel")
        names = {name: name for row in rows for name in row if name not in apart}
        data = [table_of("counters", rows, names)]
        if self.per_kernel and kernels:
            data.append(table_of("kernels", kernels))
        if not self.per_kernel:
            rows = [{k: v for k, v in row.items() if k != "per_kernel"} for row in rows]
        return Output([part for row in rows for part in _parts(row)], rows, data)

    def _attached(self, run: str) -> Output:
        """Keep the counters in the files as a profile of `run`, with the checks of a profile."""
        from bench.launcher.profile import attach_counters
        from commands.console.recorded import finish, profile_facts, timed_record

        timed = timed_record(run, self.records, "attach")
        folder, record = attach_counters(self.files, timed, self.records)
        return finish(self, folder, record, profile_facts(record))


def _row(files: Sequence[Path]) -> dict[str, Any]:
    """What the files of one profile count.

    The fields are in the order of the documentation; `missing` explains each figure that is null.
    """
    from bench.profilers.ncu.read import read_counters

    counters = read_counters(*files)
    figures = ("source", "chip", "kernels", *_FIGURES, "pcie_bytes", "flops_at_least")
    row: dict[str, Any] = {"file": " + ".join(counters.files)}
    row |= {name: getattr(counters, name) for name in (*figures, "intensity_dram")}
    reasons = {name: why for name, why in counters.missing.items() if name != "chip"}
    if counters.intensity_dram is None:
        reasons["intensity_dram"] = str(counters.intensity_dram_missing)
    return row | {
        "missing": {name: why for name, why in reasons.items() if name in row},
        "notes": [why for name, why in reasons.items() if name not in row],
        "per_kernel": [kernel.model_dump() for kernel in counters.per_kernel],
    }


def _parts(row: Mapping[str, Any]) -> Iterator[Table | str]:
    """What people read of a file: its totals, those of its kernels, and what is missing."""
    about = ", ".join(filter(None, (row["source"], row["chip"])))
    yield _figures(f"{row['file']} ({about})", [row])
    if kernels := row.get("per_kernel"):
        yield replace(_figures("", kernels), shown=_MAX_KERNELS)
    reasons = {name: why for name, why in row["missing"].items() if name != "intensity_dram"}
    yield from (f"{name}: {why}" for name, why in reasons.items())
    yield from (f"not counted: {note}" for note in row["notes"])


def _figures(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """The figures of rows; FLOP of which some were not counted begin at what is known."""
    shown = [dict(row) for row in rows]
    for row in shown:
        if row["flops"] is None and row["flops_at_least"]:
            row["flops"] = f"\u2265 {_figure(row['flops_at_least'])}"
    columns = {name: (name.replace("_", " "), _figure) for name in _SHOWN if name in shown[0]}
    return table_of("counters", shown, columns, title)


def _figure(value: float | str) -> str:
    """An exact count where it is short, else four figures."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) and value < 10**6 else f"{value:.4g}"


def _metric_names(chip: str) -> str:
    metrics = metrics_for_chip(chip)
    lines = [
        f"# Metrics of Nsight Compute for {chip}. Then: mlproject counters step.csv",
        "#",
        "# LC_ALL=C ncu --profile-from-start off --replay-mode kernel --clock-control none"
        " --csv --page raw --print-units base --log-file step.csv"
        f" --metrics {','.join(metrics)} python ...",
        *metrics,
    ]
    return "\n".join(lines)
