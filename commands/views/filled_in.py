"""What `mlproject report` puts on the server beside the report: places of runs, and their means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from commands.views.options import WantedRuns

if TYPE_CHECKING:
    from analysis import RecordSet, Run
    from analysis.comparison.machines.prices import Prices
    from tracking.schema import Addition
    from tracking.upload.additions import Added
    from tracking.upload.summary_runs import Summarised


def fill_in(found: RecordSet, runs: Sequence[Run], wanted: WantedRuns, prices: Prices) -> str:
    """Put places and costs of runs, and means of repeats, on the server; return a line on it.

    Empty where nothing was otherwise.

    A choice of runs that may cut a group of repeats leaves the means as they are, and so does a
    record that could not be read. What the server refuses is said, and no failure of the report.
    """
    from analysis import recorded
    from analysis.runs.tracked.additions import campaigns_of, summaries_of
    from tracking.store import TrackingError
    from tracking.upload.additions import add_to_runs
    from tracking.upload.summary_runs import write_summaries

    additions = {run.name: _addition(run, prices) for run in runs}
    placed = recorded(runs)
    known = {run_id: addition for run_id, addition in additions.items() if addition is not None}
    what = "bound, share of the roof and cost" if prices else "bound and share of the roof"
    whole = not (wanted.filter_string or wanted.experiments or found.unreadable)
    try:
        added = add_to_runs(known)
        if added.refused:
            return _added_words(added, what)
        means = write_summaries(summaries_of(placed), campaigns_of(placed)) if whole else None
    except TrackingError as error:
        return f"{what} are not on all runs of the server ({error})"
    return "; ".join(filter(None, (_added_words(added, what), _means_words(means))))


def _addition(run: Run, prices: Prices) -> Addition | None:
    from analysis.runs.tracked.additions import addition_of, with_cost

    cost, addition = prices.cost_of_run(run), addition_of(run)
    if cost is None:
        return addition
    return with_cost(addition, cost.per_million_samples, cost.price.stated, run.sample)


def _added_words(added: Added, what: str) -> str:
    if added.refused:
        return f"{what} not put on {added.refused} runs ({added.why})"
    counts = {"new on": added.new, "changed on": added.changed, "as before on": added.same}
    words = [f"{where} {_runs(count)}" for where, count in counts.items() if count]
    if not (added.new or added.changed or added.left):
        return ""
    if added.left:
        words.append(f"{_runs(added.left)} left for the next report")
    return f"{what}: {', '.join(words)}"


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"


def _means_words(means: Summarised | None) -> str:
    if means is None or not (means.made or means.changed or means.removed or means.outdated):
        return ""
    counts = {"new": means.made, "changed": means.changed, "as before": means.same}
    counts |= {
        "removed": means.removed,
        "outdated, for the server's admin to delete": means.outdated,
    }
    words = [f"{count} {what}" for what, count in counts.items() if count]
    return f"means of repeats: {', '.join(words)}"
