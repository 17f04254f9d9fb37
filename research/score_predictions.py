"""How far `mlproject predict --on` misses steps that others published, on a device in no fit.

`python research/score_predictions.py FILE` reads a table of timm's repository, `results/
benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv` or its like in `nhwc`. Each twelfth model is
predicted by the device's datasheet. An error is of the step's time.
"""

from __future__ import annotations

import os
import sys

import pandas as pd

from analysis.prediction.device import find_target, predict_on
from bench.config import parse_config
from bench.cost import cached_ops
from bench.errors import UserError

_DEVICE = "NVIDIA GeForce RTX 3090"
#: No choice of ours.
_EVERY = 12


def main(table: str) -> None:
    """Print a row for each model, and the means; why a step is refused."""
    os.environ["TIMM_FUSED_ATTN"] = "0"  # timm of that time had none
    target, found = find_target(_DEVICE, "amp-fp16"), []
    for row in pd.read_csv(table, dtype=str).to_dict("records")[::_EVERY]:
        asked = {"arch": f"timm:{row['model']}", "batch_size": row["train_batch_size"],
                 "image_size": row["train_img_size"], "precision": "amp-fp16"}  # fmt: skip
        try:
            step = predict_on(target, parse_config(asked), cached_ops)
        except UserError as error:
            print(error)
            continue
        rate = float(row["train_samples_per_sec"])
        error_of_time = rate / step.samples_per_s - 1
        inside = [low <= rate <= high for low, high in map(step.interval, (50, 90))]
        found.append((row["model"], error_of_time, abs(error_of_time), *inside))
    names = ["model", "error", "missed by", "in 50 %", "in 90 %"]
    scores = pd.DataFrame(found, columns=names)
    print(scores.to_string(index=False), scores.mean(numeric_only=True), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
