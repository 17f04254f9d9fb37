"""Holds predictions against timm's times of training on a device in no fit.

`python research/score_predictions.py TABLE` takes a table of timm's repository, such as
`results/benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv`. Each twelfth model is predicted by the
device's datasheet, in the layout that the name says.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pandas as pd

from analysis.prediction.device import find_target, predict_on
from bench.config import parse_config
from bench.cost import cached_ops
from bench.errors import UserError


def score_times(table: Path) -> None:
    """Print a row for each model, and the means; why a step is refused."""
    os.environ["TIMM_FUSED_ATTN"] = "0"  # timm of that time had none
    layout = "false" if "nchw" in table.name else "true"
    target, rows = find_target("NVIDIA GeForce RTX 3090", "amp-fp16"), []
    for row in pd.read_csv(table, dtype=str).to_dict("records")[::12]:
        asked = {"arch": f"timm:{row['model']}", "batch_size": row["train_batch_size"],
                 "image_size": row["train_img_size"], "precision": "amp-fp16",
                 "channels_last": layout}  # fmt: skip
        try:
            step = predict_on(target, parse_config(asked), cached_ops)
        except UserError as error:
            print(error)
            continue
        rate = float(row["train_samples_per_sec"])
        error_of_time = rate / step.samples_per_s - 1
        inside = [low <= rate <= high for low, high in map(step.interval, (50, 90))]
        rows.append((row["model"], error_of_time, abs(error_of_time), *inside))
    scores = pd.DataFrame(rows, columns=["model", "error", "missed by", "in 50 %", "in 90 %"])
    print(scores.to_string(index=False), scores.mean(numeric_only=True), sep="\n")


if __name__ == "__main__":
    score_times(Path(sys.argv[1]))
