"""What commands found, in every form, and how far they are: text, JSON, CSV, files, and bars."""

from __future__ import annotations

import json
import shutil
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, track
from typing_extensions import Self

from bench.config import TimeLimits
from bench.errors import UserError
from commands.console.options import Command, option

if TYPE_CHECKING:
    from analysis.figures import Chart
    from analysis.presentation.table import Table
    from bench.records.journal import Event

Form = Literal["text", "json", "csv", "markdown"]
_FORM_OF: dict[str, Form] = {".txt": "text", ".json": "json", ".csv": "csv", ".md": "markdown"}
#: Columns of what is no terminal, and how often it hears how far a command is.
WIDTH, _TELL_S = 140, 10.0


@dataclass(frozen=True)
class Output:
    """What a command found.

    `parts` are the tables and lines that people read, in their order. `facts` are what JSON holds,
    by default the rows of the tables. CSV holds `data`, by default the tables among the parts, and
    where there are none the facts. `charts` makes pictures for a folder, by their files' names.
    """

    parts: Sequence[Table | str] = ()
    facts: Any = None
    data: Sequence[Table] = ()
    charts: Callable[[], Mapping[str, Chart]] | None = None
    markdown: str | None = None  # where it is not that of the parts
    exit_code: int = 0

    @property
    def tables(self) -> Sequence[Table]:
        """What CSV holds."""
        return self.data or [part for part in self.parts if not isinstance(part, str)]

    def text(self, form: Form, width: int = WIDTH) -> str:
        """Return it in a form, with a line break at its end; text in so many columns."""
        facts, parts = self.facts, self.parts
        if form == "json":
            found = [table.facts() for table in self.tables]
            rows = found[0] if len(found) == 1 else found
            return f"{json.dumps(rows if facts is None else facts)}\n"
        if form == "csv":
            if isinstance(facts, Mapping):
                facts = [{"fact": name, "value": value} for name, value in facts.items()]
            return "\n".join(table.csv() for table in self.tables or [table_of("facts", facts)])
        if form == "text":
            shown = (f"{one}\n" if isinstance(one, str) else one.text(width) for one in parts)
            return "".join(shown)
        return self.markdown or _markdown(parts)

    def write(self, out: Path, name: str, remedy: str = "name another folder") -> None:
        """Write it to `out`: a file in the form of its suffix, or a folder with everything.

        Raises `UserError` with the remedy where nothing can be written there.
        """
        with writing(out, remedy):
            if form := _FORM_OF.get(out.suffix):
                folder, texts = out.parent, {out.name: self.text(form)}
            else:
                whole = {f"{name}.json": self.text("json"), f"{name}.md": self.text("markdown")}
                folder, texts = out, whole
                for one in self.tables:
                    shown = {"csv": one.csv(), "md": one.markdown(), "tex": one.latex()}
                    texts |= {f"{one.name}.{suffix}": text for suffix, text in shown.items()}
            folder.mkdir(parents=True, exist_ok=True)
            for file, text in texts.items():
                (folder / file).write_text(text, encoding="utf-8", newline="\n")
            if self.charts and not form:
                from analysis.figures import draw_chart, save_figure

                for stem, chart in self.charts().items():
                    save_figure(draw_chart(chart), out, stem)


class Formatted(Command):
    """A command that shows an `Output` in the form of `--format`."""

    form: Form = option("text for people; csv has the tables with all digits", "text", "--format")

    def say(self, line: str) -> None:
        """Say what is done: beside the result, where a program reads that."""
        click.echo(line, err=self.form != "text")

    def show(self, result: Output) -> int:
        """Print the result and return its exit code."""
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
        click.echo(result.text(self.form, width), nl=False)
        return result.exit_code


class Answering(Formatted):
    """A command that finds one result and shows it."""

    @abstractmethod
    def _result(self) -> Output:
        """Find what is to be shown."""

    def run(self) -> int:
        """Show the result and return its exit code."""
        return self.show(self._result())


class Shown(Formatted):
    """A command that also writes what it shows to `--out`."""

    out: Path | None = option(
        "file to write it to, .txt, .json, .csv or .md; or a folder for the tables (CSV, "
        "Markdown, LaTeX), the facts (JSON) and the pictures (PNG, SVG)",
        metavar="PATH",
    )

    def show(self, result: Output) -> int:
        """Write the result where `--out` says, and print it."""
        self.write(result)
        return super().show(result)

    def write(self, result: Output) -> None:
        """Write the result where `--out` says, if it does."""
        if self.out is not None:
            result.write(self.out, type(self).__name__.lower())


def table_of(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, Any] | None = None,
    title: str = "",
) -> Table:
    """Return a table of `rows`: a heading for each key, or a heading and how to show a value.

    Without `columns` every key of some row is one.
    """
    from analysis.presentation.table import Column, Table

    def column(key: str, how: Any) -> Column:
        heading, *show = how if isinstance(how, tuple) else (how,)
        numeric = all(isinstance(row.get(key), int | float | None) for row in rows)
        column = Column(heading, (key,), numeric=numeric)
        return replace(column, show=show[0]) if show else column

    shown = columns or {key: key for row in rows for key in row}
    return Table(name, title, rows, tuple(column(*each) for each in shown.items()))


def fact_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return a line for each fact that is known."""
    known = {name: value for name, value in facts.items() if value is not None}
    width = max(map(len, known), default=0)
    return [f"  {name:<{width}}  {value}" for name, value in known.items()]


@contextmanager
def writing(out: Path, remedy: str = "name another folder") -> Iterator[None]:
    """Make what goes wrong while files are written to `out` a `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"out={str(out)!r}: cannot write there ({error.strerror or error}); {remedy}"
        ) from None


def duration_text(seconds: float) -> str:
    """Return `45 s`, `7 min` or `2 h 5 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def rate_text(rate: float) -> str:
    """Return `8.2`, `120` or `4,700`: a rate in two digits."""
    return f"{float(f'{rate:.2g}'):,.10g}"


def _markdown(parts: Sequence[Table | str]) -> str:
    from analysis.presentation.table import markdown_text

    blocks: list[str] = []
    for part in parts:
        if not isinstance(part, str):
            blocks += [part.markdown(), ""]
        elif part:
            blocks.append(f"- {markdown_text(part)}")
    return "\n".join(blocks).rstrip() + "\n"


# While a command is at work

Item = TypeVar("Item")


def watched(
    items: Iterable[Item], what: str = "reading records", total: int | None = None
) -> Iterator[Item]:
    """Yield the items, with a bar; on what is no terminal with a line each ten seconds."""
    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(items, what, total, console=console, transient=True)
        return
    told_s = time.monotonic()
    for done, item in enumerate(items):
        if (now_s := time.monotonic()) - told_s > _TELL_S:
            told_s = now_s
            click.echo(f"{what}: {done}" + (f" of {total}" if total else ""), err=True)
        yield item


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
    The second iteration's rate is said. Where it is not `drawn` only what it says is shown.
    """

    def __init__(self, title: str, *, drawn: bool = True) -> None:
        self._title, self._doing = title, "starting"
        self._limits: TimeLimits | None = None  # of what goes on
        self._samples, self._unit = 0, ""  # of an iteration, and of their rate; 0: not known
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
                self._samples, self._unit = facts.get("samples", 0), facts.get("unit", "")
                self._doing = "warming up"
            case "warmup" if limits is not None:
                self._warm_up(limits, event)
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

    def _warm_up(self, limits: TimeLimits, event: Event) -> None:
        """Take an iteration of the warm-up."""
        seconds = event.facts["seconds"]
        self._warmed += 1
        self._pace_s = min(seconds, self._pace_s or seconds)
        if self._warmed == 1 and self._progress.disable:  # no terminal shows the bar
            left = duration_text(self._left_s(event.clock_s) or 0.0)
            self.say(f"{self._title}: about {left} left")
        if self._warmed == 2 and self._samples and limits.iters:
            self.say(f"{self._title}: about {rate_text(self._samples / seconds)} {self._unit}")
        is_open = limits.settle_s or limits.until_steady
        most = "" if is_open else f" of {limits.warmup_iters} at most"
        self._doing = f"warming up, {self._warmed}{most}"

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
