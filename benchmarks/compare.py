"""Two commands by turns: what each measures, and their ratio with a 95 % interval.

    python benchmarks/compare.py                              # all cases
    python benchmarks/compare.py step start --rounds 10
    python benchmarks/compare.py pull --runs 10000
    python benchmarks/compare.py --a "python new.py" --b "python old.py" --figure samples_per_s

A figure is `seconds`, the wall time of the whole process; `processor_s`, the processor time of it
and all that it starts, which other work on the machine changes little; or a key of the JSON that a
command prints. The first command of a round goes last in the next one, so that neither profits from
drift. Ratios are taken within a round; shown is their geometric mean with Student's t interval.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shlex
import shutil
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
_RUN = "{python} {project}/mlproject.py run --format json"
_BARE = "{python} {project}/benchmarks/bare_loop.py"
_SMALL = "--arch resnet18 --batch-size 4 --image-size 64 --warmup-iters 2 --iters 10 --threads 1"
_WATCHED = f"{_BARE} --arch small --batch-size 32 --threads 1 --iters 40000"
_PLAIN = "{python} {project}/benchmarks/plain_client.py"
_SEARCH = """{python} -c "import mlflow; \
mlflow.search_runs(search_all_experiments=True).to_csv('b.csv')" """
_OURS = "{python} {project}/mlproject.py"


@dataclass(frozen=True)
class Case:
    """Two commands, the figure that both give, and the ratio that is promised.

    `before` are commands that make what both need. `afresh`: each turn has a copy of that.
    """

    a: str
    b: str
    figure: str = "seconds"
    promised: str = ""
    before: tuple[str, ...] = ()
    afresh: bool = False


CASES = {
    "step": Case(f"{_RUN} {_STEP}", f"{_BARE} {_STEP}", "samples_per_s", "at least 0.99"),
    "step in amp": Case(
        f"{_RUN} {_STEP} --precision amp", f"{_BARE} {_STEP} --bf16", "samples_per_s",
        "at least 0.99"),
    "start": Case(f"{_RUN} {_TINY}", f"{_BARE} {_TINY}", promised="at most 1.25"),
    "complexity": Case(
        "{python} {project}/mlproject.py complexity --arch resnet18", '{python} -c "import torch"',
        promised="at most 1.2 where the model was not seen before"),
    "help": Case("{python} {project}/mlproject.py --help", '{python} -c "import click, rich"',
                 promised="at most 2"),
    "real data": Case(
        f"{_RUN} {_STEP} --data {{data}}", f"{_RUN} {_STEP}", "samples_per_s", "at least 0.95"),
    "tracked run": Case(
        f"{_OURS} run {_SMALL} --explain false", f"{_BARE} {_SMALL} --track", "processor_s",
        "at most 0.8", (f"{_BARE} {_SMALL} --track",)),
    "pull": Case(
        f"{_OURS} pull --out a.csv", _SEARCH, "processor_s",
        "at most 0.25 of 160 runs, 0.05 of 10,000",
        ("{python} {project}/benchmarks/many_runs.py {runs}", f"{_OURS} pull --out a.csv")),
    "import": Case(
        f"{_OURS} import results.csv", f"{_PLAIN} upload", "processor_s", "at most 0.5",
        (_SEARCH, f"{_PLAIN} table 40", f"{_OURS} import results.csv --no-track --records counted"),
        afresh=True),
    "predict": Case(
        f"{_OURS} predict --arch resnet50 --batch-size 32 --on 'NVIDIA L4'",
        '{python} -c "import torch"', "processor_s", "at most 1.3", afresh=True),
    "watch": Case(
        f"{_OURS} watch --keep-going --no-track --seconds 12 -- {_WATCHED}", _WATCHED, "step_ms",
        "at most 1.02"),
}  # fmt: skip
#: What `mlproject run` calls a rate.
_RATES = ("throughput_images_per_s", "throughput_samples_per_s")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--rounds", default=5, show_default=True)
@click.option("--arch", default="resnet18", show_default=True, help="of the steps")
@click.option("--data", default="data/generated", show_default=True, help="an image folder")
@click.option("--runs", default=160, show_default=True, help="in the store of a pull")
@click.option("--a", "first", help="a command of your own, and")
@click.option("--b", "second", help="what it is compared with")
@click.option("--figure", default="seconds", show_default=True, help="that both give")
def main(
    names: Sequence[str],
    rounds: int,
    arch: str,
    data: str,
    runs: int,
    first: str | None,
    second: str | None,
    figure: str,
) -> None:
    """Print a row for each case as it is known."""
    if (first is None) != (second is None):
        raise click.UsageError("--a and --b belong together")
    given = {"your commands": Case(first, second, figure)} if first and second else {}
    cases = given or {name: CASES[name] for name in names or CASES}
    words = {
        "python": shlex.quote(sys.executable), "project": shlex.quote(str(PROJECT)), "arch": arch,
        "data": shlex.quote(str(PROJECT / data)), "runs": str(runs),
    }  # fmt: skip
    click.echo(f"{cpu_model()}, {usable_cores()} cores; {rounds} rounds\n")
    click.echo("| case | figure | A | B | A / B (95 %) | promised |\n|---|---|---|---|---|---|")
    for name, case in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            took = take_turns(case, rounds, Path(folder), {} if given else words)
        medians = " | ".join(f"{statistics.median(side):.4g}" for side in took)
        ratio = ratio_with_interval(*took)
        click.echo(f"| {name} | {case.figure} | {medians} | {ratio} | {case.promised} |")


def take_turns(
    case: Case, rounds: int, folder: Path, words: Mapping[str, str]
) -> tuple[list[float], list[float]]:
    """Return the figure of both commands, round by round; without `words` they are a user's own.

    Those run in the project, with a store in `folder`; the others in `folder`, or a copy of it.
    """
    for command in case.before:
        figure_of(shlex.split(command.format(**words, folder=folder)), "seconds", folder, folder)
    measured: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            with tempfile.TemporaryDirectory() as copy:
                here = Path(copy, "turn") if case.afresh else folder
                if case.afresh:
                    shutil.copytree(folder, here)
                text = (case.a, case.b)[side]
                command = shlex.split(text.format(**words, folder=here) if words else text)
                took = figure_of(command, case.figure, here if words else PROJECT, here)
            measured[side].append(took)
    return measured


def processor_s() -> float:
    """Return the processor time of all processes that this one has waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def figure_of(command: Sequence[str], figure: str, where: Path, folder: Path) -> float:
    """Run a command and return its figure. Raises `ClickException` where it fails.

    Its store, its records and its cache are in `folder`.
    """
    store = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "MLPROJECT_RECORDS": f"{folder}/records",
        "XDG_CACHE_HOME": f"{folder}/cache",
    }
    before_s, begin_s = processor_s(), time.perf_counter()
    done = subprocess.run(
        command, cwd=where, env={**os.environ, **store}, capture_output=True, text=True
    )
    seconds = time.perf_counter() - begin_s
    if done.returncode:
        raise click.ClickException(f"{shlex.join(command)}: {done.stderr.strip()[-400:]}")
    if figure == "processor_s":
        return processor_s() - before_s
    if figure == "seconds":
        return seconds
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    answer = json.loads(lines[-1])
    names = (figure, *(_RATES if figure == "samples_per_s" else ()))
    return float(next(answer[name] for name in names if answer.get(name) is not None))


def ratio_with_interval(a: Sequence[float], b: Sequence[float]) -> str:
    """Return the geometric mean of a/b over the rounds, with an interval where it has one."""
    estimate = paired_ratio([math.log(ours / other) for ours, other in zip(a, b, strict=True)])
    ends = estimate.interval
    return f"{estimate.ratio:.3f}" + (f" ({ends.low:.3f} to {ends.high:.3f})" if ends else "")


if __name__ == "__main__":
    main()
