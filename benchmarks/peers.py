"""This framework beside its peers: same model, batch and precision, in alternation.

    python benchmarks/peers.py --arch resnet18 --arch mobilenet_v2 --timm ~/pytorch-image-models

Each round runs `mlproject run`, the bare loop (`bare_loop.py`) and, given a checkout of timm, its
`benchmark.py --bench train` as it ships, in an order that changes from round to round. Ratios are
taken within a round, which heat and neighbours share; quoted is their geometric mean with a 95 %
t-interval over the rounds. `--set KNOB=VALUE` gives this framework a tuned setting.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click
from side_by_side import (
    Task,
    bare_run,
    output_of,
    rounds_options,
    table_row,
    take_turns,
    tracked_run,
)

#: timm's names of torchvision's models, where they differ.
_TIMM_NAMES = {"mobilenet_v2": "mobilenetv2_100"}
OURS, BARE, TIMM = "mlproject", "bare loop", "timm"


def timm(task: Task, checkout: Path, python: str) -> float:
    """Run timm's training benchmark as it ships, on the device that torch finds."""
    import torch

    command = [
        *(python, "benchmark.py", "--bench", "train", "--no-retry"),
        *("--model", _TIMM_NAMES.get(task.arch, task.arch)),
        *("--batch-size", str(task.batch_size)),
        *("--device", "cuda" if torch.cuda.is_available() else "cpu"),
        *("--num-warm-iter", str(task.warmup_iters), "--num-bench-iter", str(task.iters)),
    ]
    if task.precision != "fp32":
        command += ["--amp", "--amp-dtype", "bfloat16"]
    printed = output_of(command, checkout)
    answer = json.loads(printed[printed.index("--result") + len("--result") :])
    return float(answer["train_samples_per_sec"])


def ours(task: Task, knobs: Sequence[str], folder: Path) -> float:
    """Run `mlproject run`, tracked in a SQLite store."""
    options = [*task.options, "--precision", task.precision]
    for knob in knobs:
        name, _, value = knob.partition("=")
        options += [f"--{name.replace('_', '-')}", value]
    return float(tracked_run(options, folder)["throughput_images_per_s"])


def bare(task: Task) -> float:
    """Run the bare loop."""
    return float(bare_run(task.options, task.precision)["samples_per_s"])


HEADER = (
    "| model | precision | batch | setting | mlproject images/s | bare loop | timm "
    "| mlproject / bare (95 %) | mlproject / timm (95 %) |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


@click.command()
@rounds_options
@click.option("--set", "knobs", multiple=True, metavar="KNOB=VALUE", help="of mlproject alone")
@click.option("--timm", "checkout", type=click.Path(exists=True, path_type=Path))
@click.option("--timm-python", default=sys.executable, help="a Python that has timm's needs")
def main(
    tasks: Sequence[Task],
    rounds: int,
    measured_on: str,
    knobs: tuple[str, ...],
    checkout: Path | None,
    timm_python: str,
) -> None:
    """Run the rounds and print a row per model and precision as it is known."""
    click.echo(f"{measured_on}\n\n{HEADER}")
    setting = [" ".join(knobs) or "default"]
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks:
            sides: dict[str, Callable[[], float]] = {
                OURS: partial(ours, task, knobs, Path(folder)),
                BARE: partial(bare, task),
            }
            if checkout is not None:
                sides[TIMM] = partial(timm, task, checkout, timm_python)
            click.echo(table_row(task, take_turns(sides, rounds), (OURS, BARE, TIMM), setting))


if __name__ == "__main__":
    main()
