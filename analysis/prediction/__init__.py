"""Samples/s at batch sizes that were not measured, how surely, and where no prediction is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from analysis.prediction.curve import (
    PredictedCurve,
    Prediction,
    choose_curve,
    fit_curve,
    memory_of,
    predict_batch,
)
from analysis.runs.run import Run

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "PredictedCurve",
    "Prediction",
    "choose_curve",
    "fit_curve",
    "memory_of",
    "predict",
    "predict_batch",
]


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
    table: pd.DataFrame = pd.DataFrame(predict_batch(curve, int(n), runs).facts for n in wanted)
    return table
