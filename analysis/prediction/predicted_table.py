"""Predictions as a table for a notebook: what `mlproject predict` prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from analysis.prediction.curve import choose_curve
from analysis.prediction.predicted_batch import predict_batch
from analysis.runs.placed import Run

if TYPE_CHECKING:
    import pandas as pd


def predict(
    runs: Sequence[Run],
    arch: str,
    batch_sizes: int | Iterable[int],
    *,
    precision: str | None = None,
    env: str | None = None,
) -> pd.DataFrame:
    """Predict images/s at batch sizes that were not measured, as `mlproject predict` does.

    `runs` are of three batch sizes or more, such as `pull_records(campaign="night-1").runs()`.
    `precision` and `env`, the machine's label, are needed where the runs have several of the model.

    Columns: `label`, `batch_size`; `images_per_s` with the 95 % interval `low` and `high` of a new
    measurement; `fixed_s` and `per_image_s`, the two terms of the model; `held_out_error`, by how
    much, as a share, the model misses the measured batch sizes when it is fitted without them;
    `memory`, what the batch needs of the device.

    Raises `UserError` where no prediction can be made: too few batch sizes, or a batch that memory
    does not hold.
    """
    import pandas as pd

    curve = choose_curve(runs, arch, precision, env)
    wanted = [batch_sizes] if isinstance(batch_sizes, int) else batch_sizes
    names = ("label", "batch_size", "images_per_s", "low", "high")
    table: pd.DataFrame = pd.DataFrame(
        {
            **{name: getattr(one, name) for name in names},
            "fixed_s": one.curve.model.fixed_s,
            "per_image_s": one.curve.model.per_image_s,
            "held_out_error": one.curve.held_out_error,
            "memory": one.memory,
        }
        for one in (predict_batch(curve, batch_size, runs) for batch_size in wanted)
    )
    return table
