"""Two commands by turns: what each measures, and their ratio with a 95 % interval.

    python benchmarks/compare.py                              # all cases
    python benchmarks/compare.py step start --rounds 10
    python benchmarks/compare.py --a "python new.py" --b "python old.py" --figure samples_per_s

A figure is `seconds`, the wall time of the whole process, or a key of the JSON that a command
prints last. The first command of a round goes last in the next one, so that neither profits from
drift. Ratios are taken within a round; shown is their geometric mean with Student's t interval.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from bench.machine.cpu import cpu_model, usable_cores  # noqa: E402
from bench.statistics.ratios import paired_ratio  # noqa: E402

_STEP = "--arch {arch} --batch-size 16 --warmup-iters 3 --iters 8"
_TINY = "--arch resnet18 --batch-size 2 --warmup-iters 1 --iters 5"
_RUN = "{python} mlproject.py run --format json"
_BARE = "{python} benchmarks/bare_loop.py"


@dataclass(frozen=True)
class Case:
    """Two commands, the figure that both give, and the ratio that is promised."""

    a: str
    b: str
    figure: str = "seconds"
    promised: str = ""


CASES = {
    "step": Case(f"{_RUN} {_STEP}", f"{_BARE} {_STEP}", "samples_per_s", "at least 0.99"),
    "step in amp": Case(
        f"{_RUN} {_STEP} --precision amp", f"{_BARE} {_STEP} --bf16", "samples_per_s",
        "at least 0.99"),
    "start": Case(f"{_RUN} {_TINY}", f"{_BARE} {_TINY}", promised="at most 1.25"),
    "complexity": Case(
        "{python} mlproject.py complexity --arch resnet18", '{python} -c "import torch"',
        promised="at most 1.2 where the model was not seen before"),
    "help": Case("{python} mlproject.py --help", '{python} -c "import click, rich"',
                 promised="at most 2"),
    "real data": Case(
        f"{_RUN} {_STEP} --data {{data}}", f"{_RUN} {_STEP}", "samples_per_s", "at least 0.95"),
}  # fmt: skip
#: What `mlproject run` calls a rate.
_RATES = ("throughput_images_per_s", "throughput_samples_per_s")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--rounds", default=5, show_default=True)
@click.option("--arch", default="resnet18", show_default=True, help="of the steps")
@click.option("--data", default="data/generated", show_default=True, help="an image folder")
@click.option("--a", "first", help="a command of your own, and")
@click.option("--b", "second", help="what it is compared with")
@click.option("--figure", default="seconds", show_default=True, help="that both give")
def main(
    names: Sequence[str],
    rounds: int,
    arch: str,
    data: str,
    first: str | None,
    second: str | None,
    figure: str,
) -> None:
    """Print a row for each case as it is known."""
    if (first is None) != (second is None):
        raise click.UsageError("--a and --b belong together")
    given = {"your commands": Case(first, second, figure)} if first and second else {}
    cases = given or {name: CASES[name] for name in names or CASES}
    words = {"python": shlex.quote(sys.executable), "arch": arch, "data": shlex.quote(data)}
    click.echo(f"{cpu_model()}, {usable_cores()} cores; {rounds} rounds\n")
    click.echo("| case | figure | A | B | A / B (95 %) | promised |\n|---|---|---|---|---|---|")
    for name, case in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            store = {
                "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
                "MLPROJECT_RECORDS": f"{folder}/records",
            }
            commands = [
                shlex.split(text if given else text.format(**words)) for text in (case.a, case.b)
            ]
            took = take_turns(commands, case.figure, rounds, store)
        medians = " | ".join(f"{statistics.median(side):.4g}" for side in took)
        ratio = ratio_with_interval(*took)
        click.echo(f"| {name} | {case.figure} | {medians} | {ratio} | {case.promised} |")


def take_turns(
    commands: Sequence[Sequence[str]], figure: str, rounds: int, store: Mapping[str, str]
) -> tuple[list[float], list[float]]:
    """Return the figure of both commands, round by round; `store` is added to the environment."""
    measured: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            measured[side].append(figure_of(commands[side], figure, store))
    return measured


def figure_of(command: Sequence[str], figure: str, store: Mapping[str, str]) -> float:
    """Run a command and return its figure. Raises `ClickException` where it fails."""
    begin_s = time.perf_counter()
    done = subprocess.run(
        command, cwd=PROJECT, env={**os.environ, **store}, capture_output=True, text=True
    )
    seconds = time.perf_counter() - begin_s
    if done.returncode:
        raise click.ClickException(f"{shlex.join(command)}: {done.stderr.strip()[-400:]}")
    if figure == "seconds":
        return seconds
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    names = (figure, *(_RATES if figure == "samples_per_s" else ()))
    return float(next(answer[name] for name in names if answer.get(name) is not None))


def ratio_with_interval(a: Sequence[float], b: Sequence[float]) -> str:
    """Return the geometric mean of a/b over the rounds, with an interval where it has one."""
    estimate = paired_ratio([math.log(ours / other) for ours, other in zip(a, b, strict=True)])
    ends = estimate.interval
    return f"{estimate.ratio:.3f}" + (f" ({ends.low:.3f} to {ends.high:.3f})" if ends else "")


if __name__ == "__main__":
    main()
