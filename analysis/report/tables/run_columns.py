"""What several tables of runs have in common: their first columns, metrics and words."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from analysis.runs.placed import PlacedRun
from analysis.runs.points import RooflinePoint
from analysis.runs.quantities import three_digits
from analysis.table import Column, number, of_run, text, whole

#: What stands beside the place of an imported run: FLOP and bytes are of the step its file names.
MODELLED = "imported, modelled"
NUMBERED: Column[PlacedRun] = whole("number run", "no.", lambda run: (run.number, run.name))
CONFIGURATION: Column[PlacedRun] = text(
    "label", "configuration", lambda run: run.label, wraps_em=12
)
OF_RUN: list[Column[PlacedRun]] = of_run(lambda run: run)
BATCH: Column[PlacedRun] = whole("batch_size", "batch", lambda run: run.settings["batch_size"])


def metric(name: str, heading: str, show: Callable[..., str] = three_digits) -> Column[PlacedRun]:
    """Return the column of a metric by its name in the tracking schema."""
    return number(name, heading, lambda run: run.metrics.get(name), show)


def utc(moment: datetime) -> str:
    """Format a time to the minute."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def day(moment: str, *_: object) -> str:
    """Return the date of an ISO time."""
    return moment[:10]


def of_the_roof(point: RooflinePoint) -> tuple[float, float]:
    """Return the fraction of the roof, from its lower to its upper end."""
    return point.fraction_of_roof_min, point.fraction_of_roof_max


def bound_words(point: RooflinePoint) -> str:
    """Return the bound, with a question mark where the traffic's interval leaves it open."""
    return point.bound + ("" if point.bound_sure else "?")
