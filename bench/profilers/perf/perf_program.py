"""perf's command line, and short trials of it: only perf knows what this machine can count."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.errors import UserError
from bench.machine.probes import UnknownFactError
from bench.profilers.files.perf_rows import PerfRow, read_rows


@dataclass(frozen=True)
class Gate:
    """perf reads commands from `control` and answers each in `acknowledge`."""

    control: Path
    acknowledge: Path

    @classmethod
    def make(cls, folder: Path, name: str) -> Gate:
        """Make both in `folder`. Raises `OSError` where its file system has no FIFOs."""
        gate = cls(folder / f"{name}.control", folder / f"{name}.acknowledge")
        os.mkfifo(gate.control)
        os.mkfifo(gate.acknowledge)
        return gate


#: Names of events may hold commas, so that perf's fields had better not be parted by them.
_SEPARATOR = ";"
_LIMIT_S = 20.0


def perf_stat(
    output: Path, events: Sequence[str], gate: Gate | None = None, *, everywhere: bool = False
) -> tuple[str, ...]:
    """Return the command under which a program runs to have `events` counted into `output`.

    With a gate nothing is counted until it is opened; `everywhere` counts all processors.
    """
    control = f"fifo:{gate.control},{gate.acknowledge}" if gate else ""
    return (
        *("perf", "stat", "-x", _SEPARATOR, "-o", str(output)),
        *(("-a",) if everywhere else ()),
        *(("-D", "-1", "--control", control) if gate else ()),
        *(option for event in events for option in ("-e", event)),
        "--",
    )


@dataclass(frozen=True)
class Trial:
    """A perf that counted a program which does nothing: what it printed, and what it said."""

    rows: tuple[PerfRow, ...]
    exit_code: int
    complaint: str

    @property
    def counts(self) -> bool:
        """Whether perf took every event, and this machine can count it."""
        return self.exit_code == 0 and all(row.why != "not supported" for row in self.rows)


def try_events(events: Sequence[str], *, gated: bool = False, everywhere: bool = False) -> Trial:
    """Have `events` counted over `true`, behind a gate that stays shut if `gated`.

    Raises `UnknownFactError` where perf does not start or does not end, or where there is no place
    for the gate.
    """
    with tempfile.TemporaryDirectory(prefix="mlproject-perf-") as folder:
        output = Path(folder) / "trial.csv"
        try:
            gate = Gate.make(Path(folder), "trial") if gated else None
        except OSError as error:
            raise UnknownFactError(
                f"no FIFO can be made in {tempfile.gettempdir()} ({error.strerror})"
            ) from None
        try:
            done = subprocess.run(
                [*perf_stat(output, events, gate, everywhere=everywhere), "true"],
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=_LIMIT_S,
                env={**os.environ, "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired:
            raise UnknownFactError(f"perf did not end in {_LIMIT_S:g} s") from None
        except OSError as error:
            raise UnknownFactError(f"perf does not start ({error.strerror})") from None
        try:
            rows = tuple(read_rows(output)) if output.exists() else ()
        except UserError as error:
            raise UnknownFactError(str(error)) from None
        return Trial(rows, done.returncode, done.stderr.strip())
