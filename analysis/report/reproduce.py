"""The command that repeats a run: what was asked for, less what is the default anyway."""

from __future__ import annotations

import shlex

from bench.config import RunConfig, run_options


def run_command(config: RunConfig) -> str:
    """Return the command line of `config`, quoted for a POSIX shell."""
    return shlex.join(["mlproject", "run", *run_options(config)])
