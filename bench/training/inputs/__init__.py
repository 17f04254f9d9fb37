"""Batches for the training step: synthetic, from an image folder, or torchvision's FakeData."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from bench.config import FAKEDATA, SYNTHETIC, RunConfig
from bench.errors import UserError
from bench.records import ResolvedConfig
from bench.training.workloads import Batch, Workload

#: Images, float32 [N, 3, S, S], and labels, int64 [N]; in the host's memory uint8 [N, S, S, 3].
ImageBatch = tuple[torch.Tensor, torch.Tensor]
NextBatch = Callable[[], Batch]


class Batches(ABC):
    """An endless stream of full batches."""

    @abstractmethod
    def next(self) -> Batch:
        """Return a batch of the workload, on the device.

        The copy to the device may still be under way in the device's current stream. The tensors
        hold this batch until the next call, which must come after all work on it is queued. Raises
        `UserError` for an image that cannot be decoded, and `RuntimeError` if a loader process
        dies.
        """

    def close(self) -> None:
        """End loader processes and copies, where there are some; may be called twice."""


class Shard(NamedTuple):
    """The part of the data that rank `rank` of `ranks` processes trains on."""

    rank: int = 0
    ranks: int = 1

    def seed(self, seed: int) -> int:
        """Return this rank's seed; rank 0 keeps `seed`.

        Not a sum, which would give rank 1 of one seed the data of rank 0 of the next. 32 bits,
        since torch's generator on the CPU forgets the others.
        """
        if self.rank == 0:
            return seed
        digest = hashlib.sha256(f"{seed}/{self.rank}".encode()).digest()
        return int.from_bytes(digest[:4], "big")


ALL = Shard()


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


def open_batches(
    config: RunConfig,
    resolved: ResolvedConfig,
    workload: Workload,
    device: torch.device,
    shard: Shard = ALL,
) -> Batches:
    """Open the batches of `shard` that `config.data` names, and start their loader processes.

    Raises `UserError` for a folder that cannot be trained on.
    """
    if config.data == SYNTHETIC:
        return SyntheticBatches(config, resolved, workload, device, shard)
    image = workload.image
    if image is None:
        raise UserError(
            f"data={config.data!r}: {config.arch} takes no images of a data set; "
            "give data=synthetic"
        )
    # What reads files is imported where it is needed: synthetic runs do not pay for it.
    from bench.training.inputs.image_folder import FakeImages, open_image_folder
    from bench.training.inputs.loader import Images, LoaderBatches

    images: Images
    if config.data == FAKEDATA:
        images = FakeImages(image, resolved.batch_size * config.world_size)
    else:
        images = open_image_folder(config, resolved, image)
    return LoaderBatches(images, image, config, resolved, device, shard)
