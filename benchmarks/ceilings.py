"""Is the measured fp32 roof of this CPU as high as the best that its libraries reach?

Alternates `measure_ceilings` with fp32 matrix products by torch.matmul, NumPy and oneDNN, and
holds the roof against each. About a minute: `python -m benchmarks.ceilings`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import click
import numpy
import torch

from bench.roofs import measure_ceilings, sustained_rate
from bench.roofs.probe import Launch, Probe, best_sample
from bench.roofs.probe_sampler import ProbeGroup, ProbeSampler
from bench.roofs.roof_probes import Product, arithmetic_restored, linear_probe, product_probe
from bench.training.devices import Device, open_device

SIZES = (512, 1024, 2048)
GROUP_S = 0.1
WANTED = 0.98


def numpy_probe(shape: Product) -> Probe:
    """`numpy.matmul`: the BLAS that NumPy was built with."""

    def prepare() -> Launch:
        random = numpy.random.default_rng(0)
        a = random.standard_normal((shape.m, shape.k), dtype=numpy.float32)
        b = random.standard_normal((shape.k, shape.n), dtype=numpy.float32)
        result = numpy.empty((shape.m, shape.n), dtype=numpy.float32)
        return lambda: numpy.matmul(a, b, out=result)

    return Probe("numpy", "fp32", "flops_per_s", shape.flops, 0, prepare)


def packed_probe(shape: Product) -> Probe:
    """OneDNN's linear with its weight in oneDNN's own layout, as compiled inference uses it."""

    def prepare() -> Launch:
        x, weight = torch.randn(shape.m, shape.k), torch.randn(shape.n, shape.k)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, shape.m)
        linear = torch.ops.mkldnn._linear_pointwise
        return lambda: linear(x, packed, None, "none", [], "")

    return Probe("oneDNN packed", "fp32", "flops_per_s", shape.flops, 0, prepare)


RIVALS: dict[str, Callable[[Product], Probe]] = {
    # the BLAS that torch was built with
    "torch.matmul": lambda shape: product_probe(shape, "fp32", torch.device("cpu")),
    "numpy.matmul": numpy_probe,
    "oneDNN linear": linear_probe,
    "oneDNN linear, packed weight": packed_probe,
}


def rivals_rates(device: Device, seconds: float) -> dict[str, float]:
    """Return each library's highest sustained rate over the sizes, in FLOP/s."""
    groups = [
        ProbeGroup(name, [make(Product(n, n, n, "NT")) for n in SIZES])
        for name, make in RIVALS.items()
    ]
    with arithmetic_restored(), torch.inference_mode():
        ProbeSampler(device, time.perf_counter, GROUP_S, lambda line: None).sample(groups, seconds)
    best = {group.title: best_sample(group.samples()) for group in groups}
    for group in groups:
        if best[group.title] is None:
            click.echo(f"{group.title}: {'; '.join(group.notes)}", err=True)
    return {name: sustained_rate(sample.rates) for name, sample in best.items() if sample}


@click.command()
@click.option("--rounds", default=3, show_default=True, help="Times to measure each side.")
@click.option("--seconds", default=12.0, show_default=True, help="Time of one side in one round.")
def main(rounds: int, seconds: float) -> None:
    """Print the ratio of the fp32 roof to each library's rate, medians over the rounds."""
    device = open_device("cpu")
    roofs: list[float] = []
    reached: dict[str, list[float]] = {}
    for number in range(rounds):
        click.echo(f"round {number + 1} of {rounds}", err=True)
        ceilings, _ = measure_ceilings(device, budget_s=seconds)
        fp32 = next(ceiling for ceiling in ceilings if ceiling.math_mode == "fp32")
        if fp32.peak_flops_per_s is None:
            raise click.ClickException(f"no fp32 roof: {fp32.missing['peak_flops_per_s']}")
        roofs.append(fp32.peak_flops_per_s)
        for name, rate in rivals_rates(device, seconds).items():
            reached.setdefault(name, []).append(rate)
    click.echo(
        f"{device.info().name}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    roof = statistics.median(roofs)
    click.echo(f"{'':<30}{'GFLOP/s':>10}{'roof / it':>11}")
    click.echo(f"{'measured roof':<30}{roof / 1e9:>10.1f}{1:>11.3f}")
    medians = {name: statistics.median(rates) for name, rates in reached.items()}
    for name, rate in medians.items():
        click.echo(f"{name:<30}{rate / 1e9:>10.1f}{roof / rate:>11.3f}")
    ratio = roof / max(medians.values())
    click.echo(f"roof against the best of them: {ratio:.3f} (wanted: at least {WANTED})")


if __name__ == "__main__":
    main()
