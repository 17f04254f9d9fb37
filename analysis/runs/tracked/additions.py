"""What MLflow's pages show of a run's place, and of its repeats, beside the run's record."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from analysis.runs.groups import Group, group_runs
from analysis.runs.placed import PlacedRun, place
from analysis.runs.run import Run
from bench.config import Sample, arch_label, cost_metric, rate_column
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
    metrics = {
        "fraction_of_roof_min": point.fraction_of_roof_min,
        "fraction_of_roof_max": point.fraction_of_roof_max,
        "fraction_of_peak": point.fraction_of_peak,
    }
    return schema.Addition(
        {name: value for name, value in metrics.items() if math.isfinite(value)},
        {name: text[: schema.TAG_CHARACTERS] for name, text in tags.items()},
    )


def with_cost(
    addition: schema.Addition | None, per_million_samples: float, price: str, sample: Sample
) -> schema.Addition:
    """Return the same with what a million samples cost, and the price that it follows from."""
    metrics = {cost_metric(sample): per_million_samples}
    tags = {schema.PRICE: price[: schema.TAG_CHARACTERS]}
    if addition is None:
        return schema.Addition(metrics, tags)
    return schema.Addition(addition.metrics | metrics, addition.tags | tags)


class RoofsBeside:
    """Places a run under the roofs whose records lie in the same folder as its own.

    Called by an upload. Each record is looked at once, so that a sweep does not read all of them
    again after each of its runs.
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


def summaries_of(runs: Iterable[PlacedRun]) -> list[schema.RepeatsSummary]:
    """Return a summary of each group of two repeats or more, by campaign, in the order of `runs`.

    The mean is geometric, with its 95 % interval (docs/statistics.md).
    """
    campaigns: dict[str, list[PlacedRun]] = {}
    for run in runs:
        if run.run_id is not None and run.campaign is not None:
            campaigns.setdefault(run.campaign, []).append(run)
    return [
        _summary(group, campaign)
        for campaign, members in campaigns.items()
        for group in group_runs(members)
        if len(group.runs) > 1
    ]


def _summary(group: Group, campaign: str) -> schema.RepeatsSummary:
    estimate, rate = group.repeats().interval(), rate_column(group.sample)
    metrics = {
        f"{rate}_mean": estimate.value,
        f"{rate}_low": estimate.low,
        f"{rate}_high": estimate.high,
        "repeats": estimate.count,
        "batch_size": group.batch_size,
    }
    params = {
        name: text for name, text in group.first.settings.items() if name not in ("env", "device")
    }
    batch = group.first.settings.get("batch_size")
    arch = arch_label(group.arch)
    name = f"{group.env}_{arch}_{group.precision}_bs{batch}_mean_of_{estimate.count}"
    note = (
        f"**Mean of {estimate.count} repeats**, made by a report: nothing was measured for this "
        f"run\n\nRuns: {', '.join(group.names)}"
    )
    tags = {schema.ENV: group.env, schema.DEVICE: group.first.device, schema.NOTE: note}
    return schema.RepeatsSummary(
        key=min(run.record.record_id for run in group.runs if run.record is not None),
        name=name,
        campaign=campaign,
        run_ids=group.names,
        params=params,
        metrics={name: float(value) for name, value in metrics.items() if value is not None},
        tags={name: text[: schema.TAG_CHARACTERS] for name, text in tags.items()},
    )


def campaigns_of(runs: Sequence[PlacedRun]) -> set[str]:
    """Return the campaigns of `runs`."""
    return {run.campaign for run in runs if run.campaign is not None}
