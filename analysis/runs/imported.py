"""Runs that were imported from a ledger: what a server holds of them, as no record does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.runs.placed import THROUGHPUT, Run
from analysis.runs.quantities import whole_number
from analysis.runs.what_ran import NO_SETTINGS
from bench.config import RunConfig
from tracking import schema

if TYPE_CHECKING:
    from tracking.reading.tracked_runs import TrackedRun

#: What a ledger may say of a run's throughput: deviation and number of repeats.
_DEVIATION = "throughput_images_per_s_std"
_REPEATS = "repeats"


def imported_run(run: TrackedRun) -> Run:
    """Return an imported run by what its tags, parameters and metrics say."""
    known = {
        name: value
        for name, value in run.params.items()
        if name in RunConfig.model_fields and name not in NO_SETTINGS
    }
    batch = whole_number(run.params.get("resolved_batch_size") or known.get("batch_size"))
    if batch is not None:
        known["batch_size"] = f"{batch}"
    for setting, tag in (("env", schema.ENV), ("device", schema.DEVICE)):
        if run.tags.get(tag):
            known[setting] = run.tags[tag]
    deviation = run.metrics.get(_DEVIATION)
    return Run(
        name=run.run_id,
        settings=known,
        outcome=run.tags.get(schema.OUTCOME, "ok"),
        reason=run.tags.get(schema.REASON),
        metrics=run.metrics,
        campaign=run.tags.get(schema.CAMPAIGN),
        count=max(whole_number(run.params.get(_REPEATS)) or 1, 1),
        deviations={} if deviation is None else {THROUGHPUT: deviation},
        imported_from=run.tags.get(schema.SOURCE_FILE, "unknown"),
    )
