"""What reading real JPEGs costs a training run: real data beside synthetic data, in turns.

    mlproject dataset generate --out data/generated
    python benchmarks/real_data.py data/generated --arch resnet18 --arch resnet50

Each round runs `mlproject run` on the folder and on synthetic data, the first one alternating, all
other settings alike. The ratio of their images/s is taken within a round; quoted is the geometric
mean with a 95 % t-interval over the rounds. On a CPU the loader's processes take their processor
time from the training, so that a model's ratio is the better, the more it computes per image.
"""

from __future__ import annotations

import platform
import statistics
import tempfile
from pathlib import Path

import click
from side_by_side import ratio_with_interval, tracked_run

from bench.environment import cpu_model, usable_cores

REAL, SYNTHETIC = "real", "synthetic"

HEADER = (
    "| model | precision | batch | real images/s | synthetic | ratio (95 %) |\n"
    "|---|---|---|---|---|---|"
)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--arch", "archs", multiple=True, default=["resnet18"], show_default=True)
@click.option("--precision", "precisions", multiple=True, default=["fp32", "amp"])
@click.option("--batch-size", default=16, show_default=True)
@click.option("--warmup-iters", default=5, show_default=True)
@click.option("--iters", default=20, show_default=True)
@click.option("--rounds", default=4, show_default=True)
@click.option("--workers", default="auto", show_default=True)
def main(
    folder: Path,
    archs: tuple[str, ...],
    precisions: tuple[str, ...],
    batch_size: int,
    warmup_iters: int,
    iters: int,
    rounds: int,
    workers: str,
) -> None:
    """Print a row per model and precision as it is known."""
    click.echo(
        f"{cpu_model()}, {usable_cores()} cores, {platform.system()}; {rounds} rounds of {iters} "
        f"iterations after {warmup_iters} of warm-up, workers {workers}\n\n{HEADER}"
    )
    data = {REAL: [str(folder.absolute()), "--workers", workers], SYNTHETIC: ["synthetic"]}
    window = ["--warmup-iters", str(warmup_iters), "--iters", str(iters)]
    with tempfile.TemporaryDirectory() as records:
        for arch in archs:
            for precision in precisions:
                what = ["--arch", arch, "--precision", precision, "--batch-size", str(batch_size)]
                rates: dict[str, list[float]] = {REAL: [], SYNTHETIC: []}
                for number in range(rounds):
                    for name in (REAL, SYNTHETIC) if number % 2 else (SYNTHETIC, REAL):
                        told = tracked_run([*what, *window, "--data", *data[name]], Path(records))
                        rates[name].append(told["throughput_images_per_s"])
                medians = (f"{statistics.median(rates[name]):.2f}" for name in (REAL, SYNTHETIC))
                ratio = ratio_with_interval(rates[REAL], rates[SYNTHETIC])
                click.echo(f"| {' | '.join([arch, precision, str(batch_size), *medians, ratio])} |")


if __name__ == "__main__":
    main()
