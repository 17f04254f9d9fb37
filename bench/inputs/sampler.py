"""Which image comes next, and what its augmentation is drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.utils.data import Sampler


class Draw(NamedTuple):
    """One image to load, by number; `seed` fixes its augmentation, whichever process loads it."""

    image: int
    seed: int


class ShuffledDraws(Sampler[Draw]):
    """All images in a new order each epoch, except those that would not fill a batch.

    With `endless`, one epoch follows on the other without a pause. Otherwise every iteration over
    this sampler is one epoch.
    """

    def __init__(self, images: int, batch_size: int, seed: int, *, endless: bool) -> None:
        self._images = images
        self._kept = images // batch_size * batch_size
        self._generator = torch.Generator().manual_seed(seed)
        self._endless = endless

    def __iter__(self) -> Iterator[Draw]:
        while True:
            order = torch.randperm(self._images, generator=self._generator)[: self._kept]
            seeds = torch.randint(2**62, (self._kept,), generator=self._generator)
            yield from map(Draw, order.tolist(), seeds.tolist())
            if not self._endless:
                return
