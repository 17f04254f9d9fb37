"""Holds predictions against what was measured: a step's memory here, or times of timm's.

`python research/score_predictions.py` compares the memory that the cost model says a step needs
with what tensors hold at once. It runs each step on the processor: the second one, whose momentum
is there.
With a table of timm's repository, such as `results/benchmark-train-amp-nchw-pt112-cu113-
rtx3090.csv`, each twelfth model is predicted by the datasheet of a device in no fit.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._pytree import tree_leaves

from analysis.prediction.device import find_target, predict_on
from bench.config import parse_config
from bench.cost import cached_ops
from bench.errors import UserError
from bench.records import StepSpec
from bench.training.step import AmpBf16, Fp32, TrainingStep, make_optimizer
from bench.training.workloads import find_workload

#: Model, batch size, precision, optimizer.
_STEPS = [
    (arch, batch, precision, optimizer)
    for arch, batches, optimizer in (
        ("resnet18", (2, 16), "sgd"), ("resnet50", (2, 8), "sgd"), ("vgg16", (1, 4), "sgd"),
        ("mobilenet_v2", (2, 8), "adamw"), ("densenet121", (1, 4), "sgd"),
        ("vit_b_16", (1, 4), "adamw"),
    )
    for batch in batches
    for precision in ("fp32", "amp")
]  # fmt: skip


def live_bytes(spec: StepSpec) -> int:
    """Return the most bytes that a step holds at once, its weights and batch among them."""
    workload = find_workload(spec.arch, image_size=spec.image_size, seq_len=spec.seq_len)
    model, batch = workload.build(), workload.batch(spec.batch_size)
    optimizer = make_optimizer(model, spec.optimizer, fused=spec.fused_optimizer)
    precision = AmpBf16("cpu") if spec.precision == "amp" else Fp32()
    step = TrainingStep(workload, model, optimizer, precision)
    step(lambda: batch)
    live, device = MemTracker(), torch.device("cpu")
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    live.track_external(model, optimizer, *tensors)
    with live:
        step(lambda: batch)
    return int(live.get_tracker_snapshot("peak")[device]["Total"])


def score_memory() -> None:
    """Print a row for each step, and the errors."""
    errors = []
    for arch, batch, precision, optimizer in _STEPS:
        asked = {"arch": arch, "batch_size": batch, "precision": precision, "optimizer": optimizer}
        spec = StepSpec.of(parse_config(asked))
        needed, live = cached_ops(spec).memory.needed_bytes, live_bytes(spec)
        errors.append(needed / live - 1)
        print(f"{arch} {precision} batch {batch}: {needed / 1e6:.0f} MB, live {live / 1e6:.0f} MB, "
              f"{100 * errors[-1]:+.2f} %", flush=True)  # fmt: skip
    missed = 100 * np.abs(errors)
    print(f"{len(missed)} steps: median {np.median(missed):.2f} %, worst {missed.max():.2f} %")


def score_times(table: Path) -> None:
    """Print a row for each model of a table, and the means; why a step is refused."""
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, nargs="?")
    table = parser.parse_args().table
    score_times(table) if table else score_memory()
