"""`mlproject predict`: samples/s at a batch size that was not measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commands.views.options import (
    WantedRuns,
    format_option,
    records_instead_option,
    wanted_runs_options,
)

if TYPE_CHECKING:
    from analysis.prediction import Prediction


@click.command()
@wanted_runs_options
@records_instead_option
@click.option("--arch", required=True, help="the model")
@click.option("--precision", help="needed where several were measured")
@click.option("--env", help="label of the machine; needed where several were measured")
@click.option(
    "--seq-len",
    type=click.IntRange(min=1),
    help="tokens of a sequence; needed where several were measured",
)
@click.option(
    "--batch-size",
    "batch_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    required=True,
    help="what to predict (may be given again)",
)
@format_option
def command(
    wanted: WantedRuns,
    records: tuple[Path, ...],
    arch: str,
    precision: str | None,
    env: str | None,
    seq_len: int | None,
    batch_sizes: tuple[int, ...],
    form: str,
) -> int:
    """Predict images/s, or sequences/s, from the batch sizes that were measured, with an interval.

    Also prints the model's error at each measured batch size when it is fitted without it. A batch
    that memory does not hold, or may not hold, is refused.

    Exit codes: 0 predicted; 2 no prediction can be made, or a wrong value.
    """
    runs = wanted.records(records).runs()
    from analysis.prediction import choose_curve, predict_batch

    curve = choose_curve(runs, arch, precision, env, seq_len)
    found = [predict_batch(curve, batch_size, runs) for batch_size in batch_sizes]
    if form == "json":
        click.echo(json.dumps([_facts(one) for one in found]))
    else:
        _print(found)
    return 0


def _facts(one: Prediction) -> dict[str, object]:
    from analysis.prediction.predicted_table import prediction_facts

    return {
        **prediction_facts(one),
        "held_out_error": one.curve.held_out_error,
        "held_out": dict(one.curve.held_out),
        "memory": one.memory,
        "runs": list(one.curve.runs),
    }


def _print(found: Sequence[Prediction]) -> None:
    from analysis.runs.quantities import interval, percent, three_digits
    from bench.config import a_sample, rate_unit

    for one in found:
        click.echo(
            f"{one.label} batch {one.batch_size}: {three_digits(one.samples_per_s)} "
            f"{rate_unit(one.sample)} "
            f"(95 %: {interval(one.low, one.high)})"
        )
        click.echo(f"    memory: {one.memory}")
    curve = found[0].curve
    errors = ", ".join(f"batch {batch} by {100 * error:+.1f} %" for batch, error in curve.held_out)
    click.echo(
        f"model: {three_digits(1e3 * curve.model.fixed_s)} ms a step and "
        f"{three_digits(1e3 * curve.model.per_sample_s)} ms {a_sample(found[0].sample)}"
    )
    click.echo(f"held out: missed by {percent(curve.held_out_error)} ({errors})")
    click.echo(f"runs: {' '.join(found[0].curve.runs)}")
