"""Random tensors made once on the device: the step without its input pipeline."""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_map_only

from bench.config import RunConfig
from bench.records import ResolvedConfig
from bench.training.inputs.base import Batches, Shard
from bench.training.workloads import Batch, Workload


class SyntheticBatches(Batches):
    """The same random batch of the workload every time, whatever the layout of its images."""

    def __init__(
        self,
        config: RunConfig,
        resolved: ResolvedConfig,
        workload: Workload,
        device: torch.device,
        shard: Shard,
    ) -> None:
        layout = torch.channels_last if resolved.channels_last else torch.contiguous_format

        def placed(tensor: torch.Tensor) -> torch.Tensor:
            tensor = tensor.to(device)
            return tensor.contiguous(memory_format=layout) if tensor.dim() == 4 else tensor

        # The generators go on as if nothing had been drawn, whatever the batch and the rank.
        with torch.random.fork_rng([device] if device.type == "cuda" else []), device:
            torch.manual_seed(shard.seed(config.seed))
            batch = workload.batch(resolved.batch_size)
        self._batch = tree_map_only(torch.Tensor, placed, batch)

    def next(self) -> Batch:
        """Return the batch."""
        return self._batch
