"""`mlproject trend`: configurations over their history, and when they changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.errors import UserError
from commands.console.options import OfMetric, Share, argument, option, server_needed
from commands.console.output import Answering, Output, Shown, table_of

if TYPE_CHECKING:
    from analysis.comparison.history import History, Moment
    from analysis.figures import Chart


class Trend(OfMetric, Shown, Answering):
    """Show configurations over their history, and when they changed.

    SIDE is as in mlproject compare: short forms with commas between them, such as
    env=gcp-l4,arch=resnet18, run ids or an MLflow filter. Runs in a row of one campaign, with the
    same software, are one point; five points are needed. It ends with 1 where the newest level of a
    configuration is worse by more than --threshold, and was not accepted.
    """

    side: str = argument()
    threshold: Share = option(
        "share by which the newest level must be worse than the one before to end with 1", 0.02
    )

    accept: str | None = option(
        "accept the newest level of this configuration, named as it is printed, for everybody who "
        "reads the server; a later, worse one fails again",
        metavar="CONFIG",
    )
    because: str | None = option("with --accept: why that level is meant", metavar="TEXT")

    def _result(self) -> Output:
        from analysis.comparison.history import histories
        from analysis.comparison.judgement import BY_PACE, PACE

        metric, (runs,) = self.read(self.side)
        if self.accept is not None or self.because is not None:
            self._accept(histories(runs, metric))
            metric, (runs,) = self.read(self.side)
        found = histories(runs, metric)
        rows = [row for history in found for row in _points(history)]

        def charts() -> Mapping[str, Chart]:
            from analysis.figures.times import trend_chart

            return {"trend": trend_chart([one for one in found if one.judged])}

        return Output(
            [
                *([BY_PACE] if metric.name == PACE else []),
                *(line for history in found for line in _lines(history, self.threshold)),
            ],
            [_facts(history, self.threshold) for history in found],
            [table_of("trend", rows)],
            charts,
            exit_code=int(any(one.worse(self.threshold) and not one.accepted for one in found)),
        )

    def _accept(self, found: Sequence[History]) -> None:
        """Note on the server that a level is meant. Raises `UserError` where there is none."""
        if not self.accept or not (self.because or "").strip():
            raise UserError("accept: give --accept CONFIG and --because TEXT, why it is meant")
        worse = {one.label: one for one in found if one.worse(self.threshold)}
        if self.accept not in worse:
            known = f"worse is {', '.join(worse)}" if worse else "no newest level is worse"
            raise UserError(f"accept={self.accept!r}: {known}")
        run_ids = [run.run_id for run in worse[self.accept].newest]
        if None in run_ids:
            raise UserError(f"accept={self.accept!r}: only a tracking server remembers it")
        from tracking.connection import Server
        from tracking.schema import ACCEPTED, USER, Addition
        from tracking.upload.delivery import add_to_runs

        with server_needed():
            who = Server().user_tag.get(USER, "somebody")
            said = Addition({}, {ACCEPTED: f"{who}: {self.because}"})
            added = add_to_runs({f"{run_id}": said for run_id in run_ids})
        if added.refused or added.left:
            raise UserError(f"accept={self.accept!r}: not noted ({added.why or 'too slow'})")


def _points(history: History) -> list[dict[str, Any]]:
    """A row per point of a configuration, with what the records say of its software."""
    return [
        {
            "configuration": history.label,
            "started": point.started.isoformat(),
            history.metric.name: point.value,
            "level": number,
            "campaign": point.runs[0].campaign,
            "runs": " ".join(run.name for run in point.runs),
            **point.facts,
        }
        for number, (start, end, _) in enumerate(history.levels, start=1)
        for point in history.points[start:end]
    ]


def _facts(history: History, threshold: float) -> dict[str, Any]:
    return {
        "configuration": history.label,
        "metric": history.metric.name,
        "judged": history.judged,
        "worse": history.worse(threshold),
        "accepted": history.accepted,
        "points": _points(history),
        "changes": [
            {
                "at": history.points[change.index].started.isoformat(),
                "earliest": history.points[change.first].started.isoformat(),
                "latest": history.points[change.last].started.isoformat(),
                "ratio": change.estimate.ratio,
                "ratio_low": change.estimate.ends[0],
                "ratio_high": change.estimate.ends[1],
                "p": change.p_value,
                "differs": list(history.differs(change)),
            }
            for change in history.changes
        ],
    }


def _lines(history: History, threshold: float) -> Iterator[str]:
    from analysis.presentation.words import counted, three_digits

    points = counted(len(history.points), "point")
    if not history.judged:
        yield f"{history.label}: {points}, too few for a history"
        return
    first, last = _day(history.points[0]), _day(history.points[-1])
    levels = " -> ".join(three_digits(mean) for _, _, mean in history.levels)
    changes = counted(len(history.changes), "change")
    unit = history.metric.unit
    yield f"{history.label}: {points} from {first} to {last}, {changes}: {levels} {unit}"
    for change in history.changes:  # 2026-11-03: -3.1 % (95 %: -3.6 to -2.6 %); torch 2.11 -> 2.15
        estimate = change.estimate
        low, high = (100 * (end - 1) for end in estimate.interval or (0, 0))
        span = f" (95 %: {low:+.1f} to {high:+.1f} %)" if estimate.interval else ""
        day, first, last = (
            _day(history.points[index]) for index in (change.index, change.first, change.last)
        )
        when = "" if first == last else f", at the earliest {first}, at the latest {last}"
        besides = "; ".join(history.differs(change)) or "the records name nothing else that changed"
        yield f"    {day}: {100 * (estimate.ratio - 1):+.1f} %{span}{when}; {besides}"
    if history.worse(threshold):
        yield f"    worse: by more than {100 * threshold:g} %" + (
            f"; accepted by {history.accepted}" if history.accepted else ""
        )


def _day(point: Moment) -> str:
    return point.started.strftime("%Y-%m-%d %H:%M")
