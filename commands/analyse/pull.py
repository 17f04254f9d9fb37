"""`mlproject pull`: tracked runs as a table."""

from __future__ import annotations

from pathlib import Path

import click

from bench.errors import UserError
from commands.views.options import (
    WantedRuns,
    peaks_option,
    refresh_option,
    wanted_runs_options,
    writing,
)
from commands.views.terminal import watched


@click.command()
@wanted_runs_options
@refresh_option
@click.option(
    "--roofs",
    is_flag=True,
    help="also where each run stands under its roof: bound, ridge, attainable, share of the roof",
)
@peaks_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="file to write, .csv or .parquet; CSV on standard output if not given",
)
def command(
    wanted: WantedRuns, refresh: bool, roofs: bool, peaks_file: Path | None, out: Path | None
) -> int:
    """Write tracked measurements as a table, one row per run, units in the column names.

    Of a large selection only runs that are new since the last pull are read. --roofs fetches the
    record of every run the first time.

    Exit codes: 0 written; 2 no run matches, or a wrong value.
    """
    if out is not None and out.suffix.lower() not in (".csv", ".parquet"):
        raise UserError(f"out={str(out)!r}: name a .csv or a .parquet file")
    if peaks_file is not None and not roofs:
        raise UserError(f"peaks={str(peaks_file)!r}: only --roofs uses peaks; give it too")
    from analysis import pull_runs
    from analysis.roofs.peaks import read_peaks

    peaks = read_peaks(peaks_file) if peaks_file else ()
    table = wanted.search(pull_runs, refresh=refresh, roofs=roofs, peaks=peaks, watch=watched)
    if table.empty:
        raise wanted.none()
    if out is None:
        click.echo(table.to_csv(index=False), nl=False)
        return 0
    with writing(out, "name another file"):
        if out.suffix.lower() == ".csv":
            table.to_csv(out, index=False)
        else:
            table.to_parquet(out, index=False)
    click.echo(f"{len(table)} runs in {out}", err=True)
    return 0
