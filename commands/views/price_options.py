"""The options that say what an hour of each machine costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from analysis.comparison.machines.prices import Prices


def price_options(function: Callable[..., int]) -> Callable[..., int]:
    """`--price` and `--prices`, given to `function` as `prices`."""

    @click.option(
        "--price",
        "given",
        multiple=True,
        metavar="ENV=0.71/h",
        help="what an hour of a machine costs, in USD unless a currency is given: "
        "'gcp-l4=0.21 EUR/h spot 2026-11-01' (may be given again)",
    )
    @click.option(
        "--prices",
        "table",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="CSV or JSON file of dated prices by machine type; docs/comparing.md has the columns",
    )
    @wraps(function)
    def command(given: tuple[str, ...], table: Path | None, **others: Any) -> int:
        return function(prices=_gathered(given, table), **others)

    return command


def _gathered(given: tuple[str, ...], table: Path | None) -> Prices:
    from analysis.comparison.machines.prices import gather_prices

    return gather_prices(given, table)
