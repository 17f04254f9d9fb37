"""Which image comes next, and what its augmentation is drawn from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.utils.data import Sampler


class Draw(NamedTuple):
    """One image to load, by number; `seed` fixes its augmentation, whichever process loads it."""

    image: int
    seed: int


class Shard(NamedTuple):
    """The part of the data that rank `rank` of `ranks` processes trains on."""

    rank: int = 0
    ranks: int = 1

    def seed(self, seed: int) -> int:
        """Return a seed of this rank's own; rank 0 keeps `seed`.

        Not a sum, which would give rank 1 of one seed the data of rank 0 of the next. 32 bits,
        since torch's generator on the CPU forgets the others.
        """
        if self.rank == 0:
            return seed
        digest = hashlib.sha256(f"{seed}/{self.rank}".encode()).digest()
        return int.from_bytes(digest[:4], "big")


ALL = Shard()


class ShuffledDraws(Sampler[Draw]):
    """All images in a new order each epoch, except those that would not fill a batch of each rank.

    Every rank draws the same order and takes its own part of it, so that in an epoch no image is
    read twice. With `endless`, one epoch follows on the other without a pause. Otherwise every
    iteration over this sampler is one epoch.
    """

    def __init__(
        self, images: int, batch_size: int, seed: int, *, endless: bool, shard: Shard = ALL
    ) -> None:
        self._images = images
        whole = batch_size * shard.ranks
        self._kept = images // whole * whole
        self._part = slice(shard.rank, None, shard.ranks)
        self._generator = torch.Generator().manual_seed(seed)
        self._endless = endless

    def __iter__(self) -> Iterator[Draw]:
        while True:
            order = torch.randperm(self._images, generator=self._generator)[: self._kept]
            seeds = torch.randint(2**62, (self._kept,), generator=self._generator)
            yield from map(Draw, order[self._part].tolist(), seeds[self._part].tolist())
            if not self._endless:
                return
