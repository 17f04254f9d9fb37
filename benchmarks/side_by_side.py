"""What the benchmarks share: programs run one at a time, and the ratio of two that took turns.

Importing it puts the project on the path.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import click

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from bench.machine import cpu_model, usable_cores  # noqa: E402

T = TypeVar("T")


@dataclass(frozen=True)
class Task:
    """What all sides train, and for how long."""

    arch: str
    precision: str
    batch_size: int
    warmup_iters: int
    iters: int

    @property
    def options(self) -> list[str]:
        """Command-line options that `mlproject run` and the bare loop share."""
        return [
            *("--arch", self.arch, "--batch-size", str(self.batch_size)),
            *("--warmup-iters", str(self.warmup_iters), "--iters", str(self.iters)),
        ]


def rounds_options(function: Callable[..., None]) -> Callable[..., None]:
    """Options of what is compared, for how long and how often: `tasks` and `rounds` of `function`.

    Its `measured_on` is the machine and how long each side is measured, the line above a table.
    """

    @click.option("--arch", "archs", multiple=True, default=["resnet18"], show_default=True)
    @click.option("--precision", "precisions", multiple=True, default=["fp32", "amp"])
    @click.option("--batch-size", default=16, show_default=True)
    @click.option("--warmup-iters", default=3, show_default=True)
    @click.option("--iters", default=8, show_default=True)
    @click.option("--rounds", default=4, show_default=True)
    @wraps(function)
    def command(
        archs: Sequence[str],
        precisions: Sequence[str],
        batch_size: int,
        warmup_iters: int,
        iters: int,
        rounds: int,
        **others: Any,
    ) -> None:
        tasks = [
            Task(arch, precision, batch_size, warmup_iters, iters)
            for arch, precision in product(archs, precisions)
        ]
        length = f"{rounds} rounds of {iters} iterations after {warmup_iters} of warm-up"
        function(tasks=tasks, rounds=rounds, measured_on=f"{this_machine()}; {length}", **others)

    return command


def this_machine() -> str:
    """Return the machine in a few words."""
    return f"{cpu_model()}, {usable_cores()} cores, {platform.system()}"


def take_turns(sides: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Return the results of each side, round by round.

    The first one goes last in the next round, so that none profits from drift.
    """
    names = list(sides)
    results: dict[str, list[T]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in [*names[first:], *names[:first]]:
            results[name].append(sides[name]())
    return results


def output_of(
    command: Sequence[str],
    folder: Path = PROJECT,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> str:
    """Run a program to its end and return what it printed; ClickException where it failed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        timeout=timeout_s,
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
    return _last_json(output_of(command, environment=store))


def bare_run(options: Sequence[str], precision: str) -> dict[str, Any]:
    """Return what the loop that one would write by hand prints."""
    command = [sys.executable, str(PROJECT / "benchmarks" / "bare_loop.py"), *options]
    return _last_json(output_of([*command, *(["--bf16"] if precision != "fp32" else [])]))


def _last_json(printed: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return answer


def ratio_with_interval(a: Sequence[float], b: Sequence[float], digits: int = 3) -> str:
    """Return the geometric mean of a/b over the rounds, with a 95 % t-interval where it has one."""
    from campaigns.tune.stopping_rule import paired_interval  # imports SciPy

    found = paired_interval([math.log(one / other) for one, other in zip(a, b, strict=True)])
    if found.low is None or found.high is None:
        return f"{found.ratio:.{digits}f}"
    return f"{found.ratio:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def table_row(
    task: Task,
    rates: Mapping[str, Sequence[float]],
    names: Sequence[str],
    setting: Sequence[str] = (),
) -> str:
    """Return a row of the task, each side's median, and the first one's ratio to each other.

    A side without rates has a dash.
    """
    medians = [f"{statistics.median(rates[name]):.2f}" if name in rates else "-" for name in names]
    ratios = [
        ratio_with_interval(rates[names[0]], rates[name]) if name in rates else "-"
        for name in names[1:]
    ]
    cells = [task.arch, task.precision, str(task.batch_size), *setting]
    return f"| {' | '.join([*cells, *medians, *ratios])} |"
