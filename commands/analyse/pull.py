"""`mlproject pull`: tracked runs as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.errors import UserError
from commands.views.options import (
    campaign_option,
    experiment_option,
    filter_option,
    no_runs,
    refresh_option,
    server_needed,
)

if TYPE_CHECKING:
    import pandas as pd


@click.command()
@filter_option
@campaign_option
@experiment_option
@refresh_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="file to write, .csv or .parquet; CSV on standard output if not given",
)
def command(
    filter_string: str,
    campaign: str | None,
    experiments: tuple[str, ...],
    refresh: bool,
    out: Path | None,
) -> int:
    """Write tracked measurements as a table, one row per run, units in the column names.

    Of a large selection only runs that are new since the last pull are read.

    Exit codes: 0 written; 2 no run matches, or a wrong value.
    """
    if out is not None and out.suffix.lower() not in (".csv", ".parquet"):
        raise UserError(f"out={str(out)!r}: name a .csv or a .parquet file")
    from analysis import pull_runs

    with server_needed():
        table = pull_runs(
            filter_string, experiments=experiments or None, campaign=campaign, refresh=refresh
        )
    if table.empty:
        raise no_runs(filter_string, campaign, experiments)
    if out is None:
        click.echo(table.to_csv(index=False), nl=False)
        return 0
    _write(table, out)
    click.echo(f"{len(table)} runs in {out}", err=True)
    return 0


def _write(table: pd.DataFrame, out: Path) -> None:
    try:
        if out.suffix.lower() == ".csv":
            table.to_csv(out, index=False)
        else:
            table.to_parquet(out, index=False)
    except OSError as error:
        raise UserError(
            f"out={str(out)!r}: cannot write there ({error.strerror or error}); name another file"
        ) from None
