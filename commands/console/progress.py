"""Progress on a terminal: bars, what a worker does by its journal, and how long it still takes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, track
from typing_extensions import Self

from bench.config import TimeLimits
from bench.records.journal import Event
from commands.console.output import duration_text

Item = TypeVar("Item")


def watched(
    items: Iterable[Item], what: str = "reading records", total: int | None = None
) -> Iterable[Item]:
    """Yield the items, with a bar where the output is a terminal."""
    console = Console(stderr=True)
    return track(
        items,
        what,
        total,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class Bar:
    """A bar of these columns, drawn between `with`'s two ends and only when asked for."""

    def __init__(
        self,
        *columns: ProgressColumn,
        total: float | None = None,
        drawn: bool = True,
        **options: Any,
    ) -> None:
        # No refreshing thread: it would take its share of a CPU that is being measured.
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            *columns,
            console=Console(stderr=True),
            auto_refresh=False,
            disable=not (drawn and sys.stderr.isatty()),
            **options,
        )
        self._task = self._progress.add_task("starting", total=total, left="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, text: str | None = None, **known: Any) -> None:
        """Draw what is done now; `known` are how much is `completed`, and the `total`."""
        self._progress.update(self._task, description=text, **known)
        self._progress.refresh()

    def say(self, line: str) -> None:
        """Leave a line above the bar; on what is no terminal too."""
        self._progress.console.print(line, highlight=False, markup=False, soft_wrap=True)


class WorkerProgress(Bar):
    """A line with what the worker does and the time left, its notices above it.

    The time left is estimated from the first iteration on, at the pace of the fastest so far. The
    window's pace is the warm-up's: a worker that reports during its window measures its reporting.
    Where it is not `drawn` only what it says is shown.
    """

    def __init__(self, title: str, *, drawn: bool = True) -> None:
        self._title, self._doing = title, "starting"
        self._limits: TimeLimits | None = None  # of what goes on
        self._warmup_began_s = self._window_began_s = 0.0
        self._pace_s: float | None = None
        self._warmed = 0  # iterations
        super().__init__(TextColumn("{task.fields[left]}"), drawn=drawn, transient=True)

    def on_event(self, event: Event) -> None:
        """Take one event of the worker's journal, or the launcher's tick."""
        facts, limits = event.facts, self._limits
        match event.name:
            case "notice":
                self.say(f"{self._title}: {facts['text']}")
            case "warmup_started":
                self._limits, self._warmup_began_s = _limits(facts), event.clock_s
                self._warmed, self._pace_s, self._window_began_s = 0, None, 0.0
                self._doing = "warming up"
            case "warmup" if limits is not None:
                self._warmed += 1
                self._pace_s = min(facts["seconds"], self._pace_s or facts["seconds"])
                if self._warmed == 1 and self._progress.disable:  # no terminal shows the bar
                    left = duration_text(self._left_s(event.clock_s) or 0.0)
                    self.say(f"{self._title}: about {left} left")
                is_open = limits.settle_s or limits.until_steady
                most = "" if is_open else f" of {limits.warmup_iters} at most"
                self._doing = f"warming up, {self._warmed}{most}"
            case "window_started" if limits is not None:
                self._limits, self._window_began_s = _limits(facts), event.clock_s
                self._doing = "measuring"
            case "window_ended":
                self._limits, self._doing = None, "writing the record"
            case "tool":
                self._doing = f"{facts['tool']}, starting"
            case "probe":
                self._doing = facts["probe"]
        known: dict[str, Any] = {"left": ""}
        if (left_s := self._left_s(event.clock_s)) is not None:
            done_s = event.clock_s - self._warmup_began_s
            about = f"about {duration_text(left_s)} left"
            known = {"total": done_s + left_s, "completed": done_s, "left": about}
        self.show(f"{self._title}: {self._doing}", **known)

    def _left_s(self, now_s: float) -> float | None:
        """The seconds that warm-up and window still take; None before an iteration has ended."""
        if self._limits is None or self._pace_s is None:
            return None
        window_s = self._limits.expected_window_s(self._pace_s)
        if self._window_began_s:
            return max(0.0, window_s - (now_s - self._window_began_s))
        warmup_s = self._limits.expected_warmup_s(self._pace_s)
        return max(0.0, warmup_s - (now_s - self._warmup_began_s)) + window_s


def _limits(facts: dict[str, Any]) -> TimeLimits:
    """The limits among an event's facts; of several ranks an event has the rank besides."""
    return TimeLimits(**{field.name: facts[field.name] for field in fields(TimeLimits)})
