"""Random tensors made once on the device: the step without its input pipeline."""

from __future__ import annotations

import torch

from bench.config import RunConfig
from bench.records import ResolvedConfig
from bench.training.inputs.base import Batch, Batches, Shard
from bench.training.models import NUM_CLASSES


class SyntheticBatches(Batches):
    """The same random normal images and random labels every time, whatever their layout.

    Never zeros: multiplying them takes less power, so clocks rise and the step looks faster.
    """

    def __init__(
        self, config: RunConfig, resolved: ResolvedConfig, device: torch.device, shard: Shard
    ) -> None:
        drawn = torch.Generator(device=device).manual_seed(shard.seed(config.seed))
        layout = torch.channels_last if resolved.channels_last else torch.contiguous_format
        n, size = resolved.batch_size, resolved.image_size
        images = torch.randn((n, 3, size, size), device=device, generator=drawn)
        self._images = images.contiguous(memory_format=layout)
        self._labels = torch.randint(NUM_CLASSES, (n,), device=device, generator=drawn)

    def next(self) -> Batch:
        """Return the batch."""
        return self._images, self._labels
