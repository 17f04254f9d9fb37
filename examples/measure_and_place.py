"""Measures one model and places it under this machine's roof.

The roofs are measured first, where `records/` holds none of this machine: about a minute.
"""

from pathlib import Path

import click

from analysis import draw_roofline, place, save_figure, single_axes
from bench import RunConfig, measure, measure_roofs


@click.command()
@click.option("--arch", default="resnet18", show_default=True, help="model by torchvision's name")
@click.option("--precision", default="fp32", show_default=True)
@click.option("--batch-size", default=16, show_default=True)
@click.option("--image-size", default=224, show_default=True, help="pixels a side")
@click.option("--iters", default=20, show_default=True, help="measured iterations")
@click.option("--records", type=Path, default="records", show_default=True)
@click.option("--out", type=Path, default="figures", show_default=True, help="folder of the figure")
def main(
    arch: str,
    precision: str,
    batch_size: int,
    image_size: int,
    iters: int,
    records: Path,
    out: Path,
) -> None:
    """Measure one model, print its point under the roof and draw it."""
    config = RunConfig(
        arch=arch, precision=precision, batch_size=batch_size, image_size=image_size, iters=iters
    )
    roofs = measure_roofs(records=records, if_missing=True)
    run = place(measure(config, records=records), [roofs])
    print(f"{run.label}: {run.outcome}, {run.verdict}")
    for problem in run.problems:
        print(f"  {problem}")
    if run.point is None:
        raise SystemExit(1)
    point = run.point
    print(
        f"  {run.samples_per_s:.4g} {run.rate_unit}, {point.attained_flops_per_s / 1e9:.4g} "
        f"GFLOP/s at {point.intensity_min:.3g} to {point.intensity_max:.3g} FLOP/byte\n"
        f"  {point.fraction_of_roof_min:.0%} to {point.fraction_of_roof_max:.0%} of the roof, "
        f"bound: {point.bound}"
    )
    figure, axes = single_axes()
    draw_roofline(axes, [run])
    png, _ = save_figure(figure, out, "roofline")
    print(f"  {png}")


if __name__ == "__main__":
    main()
