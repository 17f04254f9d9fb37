"""Predictions as a table for a notebook: what `mlproject predict` prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from analysis.prediction.curve import choose_curve
from analysis.prediction.predicted_batch import Prediction, predict_batch
from analysis.runs.run import Run
from bench.config import column_noun, rate_column

if TYPE_CHECKING:
    import pandas as pd


def predict(
    runs: Sequence[Run],
    arch: str,
    batch_sizes: int | Iterable[int],
    *,
    precision: str | None = None,
    env: str | None = None,
    seq_len: int | None = None,
) -> pd.DataFrame:
    """Predict samples/s at batch sizes that were not measured, as `mlproject predict` does.

    `runs` are of three batch sizes or more, such as `pull_records(campaign="night-1").runs()`.
    `precision`, `env`, the machine's label, and `seq_len` in tokens are needed where the runs have
    several of the model.

    Columns: `label`, `batch_size`; `images_per_s` with the 95 % interval `low` and `high` of a new
    measurement; `fixed_s` and `per_image_s`, the two terms of the model (`samples_per_s` and
    `per_sample_s` where the model does not train on images); `held_out_error`, by how
    much, as a share, the model misses the measured batch sizes when it is fitted without them;
    `memory`, what the batch needs of the device.

    Raises `UserError` where no prediction can be made: too few batch sizes, or a batch that memory
    does not hold.
    """
    import pandas as pd

    curve = choose_curve(runs, arch, precision, env, seq_len)
    wanted = batch_sizes if isinstance(batch_sizes, Iterable) else [batch_sizes]
    table: pd.DataFrame = pd.DataFrame(
        {
            **prediction_facts(one),
            "held_out_error": one.curve.held_out_error,
            "memory": one.memory,
        }
        for one in (predict_batch(curve, int(batch_size), runs) for batch_size in wanted)
    )
    return table


def prediction_facts(one: Prediction) -> dict[str, object]:
    """Return a prediction with its interval, and the two terms of its model, by their columns."""
    return {
        "label": one.label,
        "batch_size": one.batch_size,
        rate_column(one.sample): one.samples_per_s,
        "low": one.low,
        "high": one.high,
        "fixed_s": one.curve.model.fixed_s,
        f"per_{column_noun(one.sample)}_s": one.curve.model.per_sample_s,
    }
