"""What MLflow's pages show of a run's place and cost, beside the run's record."""

from __future__ import annotations

import math

from analysis.runs.place import place
from analysis.runs.run import Run
from bench.config import Sample, cost_metric
from bench.records import CeilingsRecord, RunRecord
from bench.records.folders import AnyRecord, RecordFolder, record_folders
from tracking import schema


def addition_of(run: Run) -> schema.Addition | None:
    """Return the bound and the shares of the roof as metrics and tags; None without a place.

    The metrics have the names of the columns of `pull_runs(roofs=True)`. The bound has a question
    mark where the interval of traffic does not decide it.
    """
    point = run.point
    if point is None:
        return None
    tags = {
        schema.BOUND: f"{point.bound}{'' if point.bound_sure else '?'}",
        schema.VERDICT_UNDER_ROOF: run.verdict,
        schema.ROOF: f"{point.ceiling.kind}, {point.ceiling.date}: {point.ceiling.source}",
        schema.ROOF_RECORD_ID: point.ceiling_record_id or "none: datasheet",
    }
    names = ("fraction_of_roof_min", "fraction_of_roof_max", "fraction_of_peak")
    return schema.Addition(
        {name: getattr(point, name) for name in names if math.isfinite(getattr(point, name))},
        {name: text[: schema.TAG_CHARACTERS] for name, text in tags.items()},
    )


def with_cost(
    addition: schema.Addition | None, per_million_samples: float, price: str, sample: Sample
) -> schema.Addition:
    """Return the same with what a million samples cost, and the price that it follows from."""
    known = addition or schema.Addition({}, {})
    return schema.Addition(
        known.metrics | {cost_metric(sample): per_million_samples},
        known.tags | {schema.PRICE: price[: schema.TAG_CHARACTERS]},
    )


class LocalRoofs:
    """Places a run, for an upload, under the roofs whose records lie in the same folder as its own.

    Each record is looked at once: a sweep does not read all of them again after each of its runs.
    """

    def __init__(self) -> None:
        self._found: dict[str, CeilingsRecord | None] = {}

    def __call__(self, folder: RecordFolder, record: AnyRecord) -> schema.Addition | None:
        """Return what the run of `record` carries beside it; None where no roof is known here."""
        if not isinstance(record, RunRecord) or record.measurement is None:
            return None
        for other in record_folders(folder.path.parent, missing_ok=True):
            if other.record_id not in self._found and other.record.is_file():
                self._found[other.record_id] = _ceilings(other)
        return addition_of(place(record, [one for one in self._found.values() if one]))


def _ceilings(folder: RecordFolder) -> CeilingsRecord | None:
    """The record, if it is of ceilings; others are not parsed, which would take much longer."""
    try:
        if b'"ceilings"' not in folder.record.read_bytes():
            return None
    except OSError:
        return None
    record = folder.readable_record()
    return record if isinstance(record, CeilingsRecord) else None
