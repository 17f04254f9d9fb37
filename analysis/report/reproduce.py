"""The command that repeats a run: what was asked for, less what is the default anyway."""

from __future__ import annotations

import shlex

from bench.config import RunConfig

_DEFAULTS = RunConfig().model_dump()


def run_command(config: RunConfig) -> str:
    """Return the command line of `config`, quoted for a POSIX shell."""
    words = ["mlproject", "run"]
    for name, value in config.model_dump().items():
        if value != _DEFAULTS[name] or name == "arch":
            words += [f"--{name.replace('_', '-')}", _text(value)]
    return shlex.join(words)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"
