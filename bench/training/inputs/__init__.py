"""Batches for the training step: synthetic, from an image folder, or torchvision's FakeData."""

from __future__ import annotations

import torch

from bench.config import FAKEDATA, SYNTHETIC, RunConfig
from bench.errors import UserError
from bench.records import ResolvedConfig
from bench.training.inputs.base import ALL, Batches, Shard, SyntheticBatches
from bench.training.inputs.loader import Images, LoaderBatches
from bench.training.workloads import Workload

__all__ = ["Batches", "open_batches"]


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
    images: Images
    if config.data == FAKEDATA:
        from bench.training.inputs.image_folder import FakeImages

        images = FakeImages(image, resolved.batch_size * config.world_size)
    else:
        from bench.training.inputs.image_folder import open_image_folder

        images = open_image_folder(config, resolved, image)
    return LoaderBatches(images, image, config, resolved, device, shard)
