"""The two FIFOs through which perf is told when to count."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


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

    @property
    def option(self) -> str:
        """The value of perf's `--control`."""
        return f"fifo:{self.control},{self.acknowledge}"
