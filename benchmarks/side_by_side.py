"""What the benchmarks share: programs run one at a time, and the ratio of two that took turns.

Importing it puts the project on the path.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from bench.tune.judge import paired_interval  # noqa: E402


def said(
    command: Sequence[str], folder: Path = PROJECT, environment: Mapping[str, str] | None = None
) -> str:
    """Run a program to its end and return what it printed; ClickException where it failed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)}: {done.stderr.strip()[-400:]}")
    return done.stdout


def tracked_run(options: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return what `mlproject run` prints as JSON; records and a SQLite store are in `folder`."""
    command = [sys.executable, str(PROJECT / "mlproject.py"), "run", *options]
    command += ["--records", str(folder / "records"), "--format", "json"]
    store = {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    return _last_json(said(command, environment=store))


def bare_run(options: Sequence[str], precision: str) -> dict[str, Any]:
    """Return what the loop that one would write by hand prints."""
    command = [sys.executable, str(PROJECT / "benchmarks" / "bare_loop.py"), *options]
    return _last_json(said([*command, *(["--bf16"] if precision != "fp32" else [])]))


def _last_json(printed: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return told


def ratio_with_interval(a: Sequence[float], b: Sequence[float], digits: int = 3) -> str:
    """Return the geometric mean of a/b over the rounds, with a 95 % t-interval where it has one."""
    found = paired_interval([math.log(mine / theirs) for mine, theirs in zip(a, b, strict=True)])
    if found.low is None or found.high is None:
        return f"{found.ratio:.{digits}f}"
    return f"{found.ratio:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"
