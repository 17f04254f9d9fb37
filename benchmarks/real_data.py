"""What reading real JPEGs costs a training run: real data beside synthetic data, in turns.

    mlproject dataset generate --out data/generated
    python benchmarks/real_data.py data/generated --arch resnet18 --arch resnet50

Each round runs `mlproject run` on the folder and on synthetic data, the first one alternating, all
other settings alike. The ratio of their images/s is taken within a round; quoted is the geometric
mean with a 95 % t-interval over the rounds. On a CPU loading takes its processor time from the
training, so that a model's ratio is the better, the more it computes per image.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from side_by_side import Task, rounds_options, table_row, take_turns, tracked_run

REAL, SYNTHETIC = "real", "synthetic"

HEADER = (
    "| model | precision | batch | real images/s | synthetic | ratio (95 %) |\n"
    "|---|---|---|---|---|---|"
)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@rounds_options
@click.option("--workers", default="auto", show_default=True)
def main(
    folder: Path,
    tasks: Sequence[Task],
    rounds: int,
    measured_on: str,
    workers: str,
) -> None:
    """Print a row per model and precision as it is known."""
    click.echo(f"{measured_on}, workers {workers}\n\n{HEADER}")
    data = {REAL: [str(folder.absolute()), "--workers", workers], SYNTHETIC: ["synthetic"]}
    with tempfile.TemporaryDirectory() as records:
        for task in tasks:
            options = [*task.options, "--precision", task.precision, "--data"]
            sides = {
                name: partial(_images_per_s, [*options, *words], Path(records))
                for name, words in data.items()
            }
            click.echo(table_row(task, take_turns(sides, rounds), (REAL, SYNTHETIC)))


def _images_per_s(options: list[str], folder: Path) -> float:
    return float(tracked_run(options, folder)["throughput_images_per_s"])


if __name__ == "__main__":
    main()
