"""Batches for the training step: synthetic, from an image folder, or torchvision's FakeData."""

from __future__ import annotations

import torch

from bench.config import FAKEDATA, SYNTHETIC, RunConfig
from bench.records import ResolvedConfig
from bench.training.inputs.base import ALL, Batches, Shard
from bench.training.inputs.loader import Images, LoaderBatches, LoaderOptions
from bench.training.inputs.synthetic import SyntheticBatches

__all__ = ["Batches", "open_batches"]


def open_batches(
    config: RunConfig, resolved: ResolvedConfig, device: torch.device, shard: Shard = ALL
) -> Batches:
    """Open the batches of `shard` that `config.data` names, and start their loader processes.

    Raises `UserError` for a folder that cannot be trained on.
    """
    if config.data == SYNTHETIC:
        return SyntheticBatches(
            device,
            batch_size=resolved.batch_size,
            image_size=resolved.image_size,
            channels_last=resolved.channels_last,
            seed=shard.seed(config.seed),
        )
    # What reads files is imported where it is needed: synthetic runs do not pay for it.
    options = LoaderOptions(
        batch_size=resolved.batch_size,
        seed=config.seed,
        workers=resolved.workers,
        prefetch_factor=config.prefetch_factor,
        persistent_workers=config.persistent_workers,
        pin_memory=resolved.pin_memory,
        non_blocking=config.non_blocking,
        channels_last=resolved.channels_last,
        shard=shard,
    )
    if config.decoder == "dali":
        from bench.training.inputs.dali import DaliBatches

        return DaliBatches(
            config.data,
            device,
            options,
            image_size=resolved.image_size,
            augment=config.augment,
        )
    return LoaderBatches(_open_images(config, resolved), device, options)


def _open_images(config: RunConfig, resolved: ResolvedConfig) -> Images:
    whole_batch = resolved.batch_size * config.world_size
    if config.data == FAKEDATA:
        from bench.training.inputs.fake_data import FakeImages

        return FakeImages(resolved.image_size, whole_batch)
    from bench.training.inputs.image_folder import open_image_folder

    return open_image_folder(
        config.data,
        image_size=resolved.image_size,
        augment=config.augment,
        batch_size=resolved.batch_size,
        devices=config.world_size,
        # Without loader processes the step waits, and its cores are free.
        threads=resolved.threads if resolved.workers == 0 else 1,
    )
