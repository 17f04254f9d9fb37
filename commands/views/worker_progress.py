"""What a worker does, by its journal, and how long it will still take."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rich.progress import TextColumn

from bench.config import TimeLimits
from bench.records.journal import Event
from commands.views.terminal import Bar, duration_text


class TimeLeft:
    """Estimates from the journal how long warm-up and window will still take.

    From the first iteration on: at the pace of the fastest so far, as far as the limits let them
    run. The window's pace is the warm-up's, since a worker that reports during its window measures
    its reporting.
    """

    def __init__(self, limits: TimeLimits, began_s: float) -> None:
        self.began_s = began_s  # when the warm-up began
        self.done = 0  # iterations of the warm-up
        self._limits = limits
        self._pace_s: float | None = None
        self._window_began_s: float | None = None

    @property
    def warmup(self) -> str:
        """How much of the warm-up is done."""
        most = "" if self._limits.settle_s else f" of {self._limits.warmup_iters} at most"
        return f"{self.done}{most}"

    def warmed(self, seconds: float) -> None:
        """Take the time of an iteration of the warm-up."""
        self.done += 1
        self._pace_s = min(seconds, self._pace_s or seconds)

    def measuring(self, limits: TimeLimits, began_s: float) -> None:
        """The window has begun, with these limits."""
        self._limits, self._window_began_s = limits, began_s

    def seconds(self, now_s: float) -> float | None:
        """Return the seconds left at `now_s`, or None before an iteration has ended."""
        if self._pace_s is None:
            return None
        window_s = self._limits.expected_window_s(self._pace_s)
        if self._window_began_s is not None:
            return max(0.0, window_s - (now_s - self._window_began_s))
        warmup_s = self._limits.expected_warmup_s(self._pace_s)
        return max(0.0, warmup_s - (now_s - self.began_s)) + window_s


class WorkerProgress(Bar):
    """A line with what the worker does and the time left, its notices above it."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._left: TimeLeft | None = None
        super().__init__(TextColumn("{task.fields[left]}"), transient=True)
        self._task = self._progress.add_task(f"{title}: starting", total=None, left="")

    def on_event(self, event: Event) -> None:
        """Take one event of the worker's journal, or the launcher's tick."""
        facts = event.facts
        if event.name == "notice":
            self._say(facts["text"])
        elif event.name == "warmup_started":
            self._left = TimeLeft(_limits(facts), event.clock_s)
            self._show("warming up")
        elif event.name == "warmup" and self._left is not None:
            self._left.warmed(facts["seconds"])
            left_s = self._left.seconds(event.clock_s)
            if self._left.done == 1 and left_s is not None and self._progress.disable:
                self._say(f"about {duration_text(left_s)} left")  # no terminal shows the bar
            self._show(f"warming up, {self._left.warmup}")
        elif event.name == "window_started" and self._left is not None:
            self._left.measuring(_limits(facts), event.clock_s)
            self._show("measuring")
        elif event.name == "window_ended":
            self._left = None
            self._show("writing the record")
        elif event.name == "tool":
            self._show(f"{facts['tool']}, starting")
        elif event.name == "probe":
            self._show(facts["probe"])
        self._draw(event.clock_s)

    def _say(self, text: str) -> None:
        self._progress.console.print(
            f"{self._title}: {text}", highlight=False, markup=False, soft_wrap=True
        )

    def _show(self, what: str) -> None:
        self._progress.update(self._task, description=f"{self._title}: {what}")

    def _draw(self, now_s: float) -> None:
        left_s = self._left.seconds(now_s) if self._left is not None else None
        if self._left is None or left_s is None:
            self._progress.update(self._task, total=None, left="")
        else:
            done_s = now_s - self._left.began_s
            self._progress.update(
                self._task,
                total=done_s + left_s,
                completed=done_s,
                left=f"about {duration_text(left_s)} left",
            )
        self._progress.refresh()


def _limits(facts: dict[str, Any]) -> TimeLimits:
    """The limits among an event's facts; of several ranks an event has the rank besides."""
    return TimeLimits(**{field.name: facts[field.name] for field in fields(TimeLimits)})
