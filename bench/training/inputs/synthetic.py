"""Random tensors made once on the device: the step without its input pipeline."""

from __future__ import annotations

import torch

from bench.training.inputs.base import Batch
from bench.training.models import NUM_CLASSES


class SyntheticBatches:
    """The same random normal images and random labels every time, whatever their layout.

    Never zeros: multiplying them takes less power, so clocks rise and the step looks faster.
    """

    workers = 0

    def __init__(
        self,
        device: torch.device,
        *,
        batch_size: int,
        image_size: int,
        channels_last: bool,
        seed: int,
    ) -> None:
        generator = torch.Generator(device=device).manual_seed(seed)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        shape = (batch_size, 3, image_size, image_size)
        images = torch.randn(shape, device=device, generator=generator)
        self._images = images.contiguous(memory_format=layout)
        self._labels = torch.randint(NUM_CLASSES, (batch_size,), device=device, generator=generator)

    def next(self) -> Batch:
        """Return the batch."""
        return self._images, self._labels

    def close(self) -> None:
        """Do nothing: there are no loader processes."""
