"""A selection of a server's runs, and the questions about it that MLflow's search can answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from mlflow.entities import Experiment, Run, ViewType
from mlflow.store.entities import PagedList
from mlflow.tracking import MlflowClient
from mlflow.utils.search_utils import SearchUtils

from bench.errors import UserError
from tracking import schema
from tracking.patience import Patience
from tracking.store import is_embedded
from tracking.upload.finding import all_experiments
from tracking.upload.tracked_run import TrackedRun, tracked

#: Runs at a time: a server builds a page in memory, and within the time that an answer may take.
#: Every page sorts the whole selection again, so an embedded store is read in few.
_PAGE, _EMBEDDED_PAGE = 1000, 10_000
#: Of a filter; SQL takes more, but MLflow's parser of filters is slow.
_IDS_AT_ONCE = 100


@dataclass(frozen=True)
class Selection:
    """The active runs of some experiments that match MLflow's filter."""

    client: MlflowClient
    ask: Patience
    experiments: Sequence[Experiment]
    filter_string: str

    def runs(self, also: str = "", *, deleted: bool = False) -> Iterator[TrackedRun]:
        """Yield every run, or every deleted one, that matches `also` too: newest start first."""
        view = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY
        size = _EMBEDDED_PAGE if is_embedded(str(self.client.tracking_uri)) else _PAGE
        token = None
        while True:
            page = self._search(also, max_results=size, page_token=token, run_view_type=view)
            yield from map(tracked, page)
            token = page.token
            if not token:
                return

    def uploaded_since(self, since: datetime) -> Iterator[TrackedRun]:
        """Yield the runs whose upload ended at `since` or later, and some of the hour before.

        A filter cannot compare tags, only match how they begin; to order by a tag takes SQLite
        time that grows with the square of the runs.
        """
        for begin in time_prefixes(since, datetime.now(timezone.utc)):
            yield from self.runs(f"tags.`{schema.UPLOADED_AT}` LIKE '{begin}%'")

    def of_ids(self, run_ids: Sequence[str]) -> Iterator[TrackedRun]:
        """Yield the runs of these ids that still match."""
        for start in range(0, len(run_ids), _IDS_AT_ONCE):
            ids = ", ".join(f"'{one}'" for one in run_ids[start : start + _IDS_AT_ONCE])
            yield from self.runs(f"attributes.run_id IN ({ids})")

    def has(self, number: int) -> bool:
        """Whether exactly so many runs match.

        One run is asked for, the one at that place, by a token as MLflow makes them for pages.
        MLflow may change it: a server that does not know it refuses, or answers with other runs.
        """
        if number == 0:
            return not self._search("", max_results=1)
        token = SearchUtils.create_page_token(number - 1)  # type: ignore[no-untyped-call]
        page = self._search("", max_results=1, page_token=token.decode())
        return len(page) == 1 and not page.token

    def _search(self, also: str, **how: Any) -> PagedList[Run]:
        wanted = " and ".join(part for part in (self.filter_string.strip(), also) if part)
        ids = [one.experiment_id for one in self.experiments]
        found: PagedList[Run] = self.ask(self.client.search_runs, ids, wanted, **how)
        return found


def time_prefixes(since: datetime, until: datetime) -> Iterator[str]:
    """Yield how times from `since` to `until`, as `schema.sortable`, begin, in few prefixes.

    Whole hours up to the next day, days up to the next month, months, years; the last may end
    after `until`.
    """
    at = since.replace(minute=0, second=0, microsecond=0)
    while at <= until:
        text = schema.sortable(at)
        if (at.month, at.day, at.hour) == (1, 1, 0):
            yield text[: len("2026")]
            at = at.replace(year=at.year + 1)
        elif (at.day, at.hour) == (1, 0):
            yield text[: len("2026-11")]
            at = (at + timedelta(days=31)).replace(day=1)
        elif at.hour == 0:
            yield text[: len("2026-11-21")]
            at += timedelta(days=1)
        else:
            yield text[: len("2026-11-21T18")]
            at += timedelta(hours=1)


def chosen_experiments(
    client: MlflowClient, ask: Patience, names: Sequence[str] | None
) -> list[Experiment]:
    """Return the experiments of these names, None: all. Raises `UserError` for an unknown one."""
    found = {one.name: one for one in all_experiments(client, ask)}
    if names is None:
        return list(found.values())
    if unknown := [name for name in names if name not in found]:
        raise UserError(
            f"experiment={unknown[0]!r}: not on this server; it has {', '.join(sorted(found))}"
        )
    return [found[name] for name in names]
