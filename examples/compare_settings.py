"""Measures two values of one setting in turns, and compares them with an interval.

Repeats are interleaved (A B, B A, ...), so that a machine that gets slower slows both alike.
"""

from pathlib import Path

import click

from analysis import compare_pairs, compared_metric, pair_runs, place
from bench import measure
from bench.config import RunConfig, parse_config
from bench.errors import UserError


@click.command()
@click.option("--setting", type=click.Choice(sorted(RunConfig.model_fields)), metavar="NAME",
              default="channels_last", show_default=True, help="name of the setting")  # fmt: skip
@click.option("--a", "value_a", default="false", show_default=True)
@click.option("--b", "value_b", default="true", show_default=True)
@click.option("--arch", default="resnet18", show_default=True, help="model by torchvision's name")
@click.option("--batch-size", default=16, show_default=True)
@click.option("--image-size", default=224, show_default=True, help="pixels a side")
@click.option("--iters", default=20, show_default=True, help="measured iterations of each run")
@click.option("--repeats", default=3, show_default=True)
@click.option("--records", type=Path, default="records", show_default=True)
def main(
    setting: str,
    value_a: str,
    value_b: str,
    arch: str,
    batch_size: int,
    image_size: int,
    iters: int,
    repeats: int,
    records: Path,
) -> None:
    """Measure A and B in turns and say which is faster."""
    common = {"arch": arch, "batch_size": batch_size, "image_size": image_size, "iters": iters}
    runs = {"A": [], "B": []}
    for repeat in range(1, repeats + 1):
        sides = [("A", value_a), ("B", value_b)]
        for side, value in sides if repeat % 2 else reversed(sides):
            try:
                config = parse_config({**common, setting: value, "repeat": repeat})
            except UserError as error:
                raise click.UsageError(str(error)) from None
            run = place(measure(config, records=records), [])
            if run.samples_per_s is None:
                raise SystemExit(f"{side} {setting}={value}: {run.outcome}: {run.reason}")
            print(f"{side} {setting}={value}: {run.samples_per_s:.4g} {run.rate_unit}")
            runs[side].append(run)
    metric = compared_metric(None, [*runs["A"], *runs["B"]])
    pairing = pair_runs(runs["A"], runs["B"], metric.name)
    for found in compare_pairs(pairing.pairs, metric):
        print(f"B over A: {found.estimate.ratio:.3f}; B is {found.word}: {found.because}")


if __name__ == "__main__":
    main()
