"""What a worker has reached, line by line, for the process that launched it.

A file rather than a pipe: it works on every system, survives the launcher, and says afterwards
in which part a worker died. Nothing is written between the window's start and its end.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from types import MappingProxyType
from typing import Any

#: Seconds since any fixed instant, such as `time.perf_counter`; tests pass a scripted one.
Clock = Callable[[], float]


@dataclass(frozen=True)
class Event:
    """Something that happened at `clock_s` of `time.perf_counter`."""

    name: str
    clock_s: float
    facts: dict[str, Any]


def steps_of_rank(folder: Path, rank: int) -> Path:
    """Return the file in a record's folder that has each step of a rank of a script.

    It begins with a line of JSON: `rank` holds fields of `RankFigures`, and what else there is, of
    `DistributedFigures`. Behind it each step is a `STEP_OF_RANK`; a row of zeros ends the file.
    """
    return folder / f"steps-{rank}.bin"


#: The clock at a step's end, its waits for the loader and in the exchange, the processor's time,
#: and the peak in bytes.
STEP_OF_RANK = Struct("=5d")


OnEvent = Callable[[Event], None]


def ignore(*_: object) -> None:
    """Do nothing: the default where a caller does not follow the progress."""


class JournalWriter:
    """Appends events, with the facts `always`; each is on disk when the call returns."""

    def __init__(
        self,
        path: Path,
        clock: Clock = time.perf_counter,
        always: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._path = path
        self._clock = clock
        self._always = always
        self._cut = False

    def note(self, name: str, **facts: Any) -> None:
        """Append one event. A full disk must not end a measurement: the line is then lost.

        What was written of such a line ends before the next.
        """
        line = json.dumps({"event": name, "clock_s": self._clock(), **self._always, **facts})
        begin, self._cut = "\n" if self._cut else "", True
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(f"{begin}{line}\n")
            file.flush()
            self._cut = False


class JournalReader:
    """Follows a journal that another process is writing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def new_events(self) -> list[Event]:
        """Return the whole lines that came since the last call; one that is damaged is left out."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                chunk = file.read()
        except OSError:  # it is not there yet, or gone
            return []
        whole = chunk[: chunk.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        events = []
        for line in whole.splitlines():
            # one that was cut, or two lines in one
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                facts = json.loads(line)
                events.append(Event(facts.pop("event"), facts.pop("clock_s"), facts))
        return events
