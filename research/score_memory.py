"""Compares the memory that the cost model says a step needs with what tensors hold at once.

`python research/score_memory.py` runs each step on the processor: the second one, whose momentum is
there. Live bytes are those of all storages that an op has made and Python or autograd still holds.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.config import parse_config
from bench.cost import cached_ops
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


class LiveBytes(TorchDispatchMode):
    """While active, `peak` is the most bytes that storages held at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._now, self.peak = 0, 0
        self._seen: dict[int, Any] = {}

    def add(self, tree: Any) -> None:
        """Count the storages of all tensors in `tree`, until they are freed."""
        for tensor in tree_leaves(tree):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                address, size_bytes = storage._cdata, storage.nbytes()
                if address not in self._seen:
                    self._seen[address] = weakref.finalize(storage, self._free, address, size_bytes)
                    self._now += size_bytes
        self.peak = max(self.peak, self._now)

    def _free(self, address: int, size_bytes: int) -> None:
        del self._seen[address]
        self._now -= size_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.add(result)
        return result


def live_bytes(spec: StepSpec) -> int:
    """Return the most bytes that a step holds at once, its weights and batch among them."""
    workload = find_workload(spec.arch, image_size=spec.image_size, seq_len=spec.seq_len)
    model, batch = workload.build(), workload.batch(spec.batch_size)
    optimizer = make_optimizer(model, spec.optimizer, fused=spec.fused_optimizer)
    precision = AmpBf16("cpu") if spec.precision == "amp" else Fp32()
    step = TrainingStep(workload, model, optimizer, precision)
    step(lambda: batch)
    live = LiveBytes()
    live.add([*model.parameters(), *model.buffers(), batch, [*optimizer.state.values()]])
    with live:
        step(lambda: batch)
    return live.peak


def main() -> None:
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


if __name__ == "__main__":
    main()
