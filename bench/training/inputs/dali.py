"""Batches that NVIDIA DALI reads, decodes and cuts, on the device itself where that is CUDA.

The pictures are those of `image_folder`, decoded with smooth chroma as libjpeg does, resized with
antialias, EXIF's orientation left alone; where the centre falls between two pixels it may be the
other one. Random cuts and the order have DALI's own generator.
"""

from __future__ import annotations

from typing import Any

import torch

from bench.config import RunConfig, user_path
from bench.errors import UserError
from bench.records import ResolvedConfig
from bench.training.inputs.base import Batches, ImageBatch, Shard
from bench.training.inputs.image_folder import (
    MIRRORED,
    RATIO,
    SCALE,
    check_batch_fills,
    list_images,
    shorter_side,
)
from bench.training.inputs.transfer import Normalise
from bench.training.workloads import ImageInput

#: How DALI's messages begin where a file is to blame, and not the machine.
_BLAMES_A_FILE = ("Failed to decode", "nvImageCodec failure", "File mapping failed")
_OUTPUTS = ["images", "labels"]


class DaliBatches(Batches):
    """Full, shuffled batches of a folder's images, epoch after epoch; `workers` threads make them.

    What would not fill a batch of each rank is left out of every epoch; the seed says what. The
    same seed gives the same batches, whatever the number of threads.
    """

    def __init__(
        self,
        config: RunConfig,
        resolved: ResolvedConfig,
        image: ImageInput,
        device: torch.device,
        shard: Shard,
    ) -> None:
        files = list_images(user_path(config.data), image.classes)
        check_batch_fills(config, resolved, len(files))
        try:
            from nvidia.dali.plugin.base_iterator import LastBatchPolicy
            from nvidia.dali.plugin.pytorch import DALIGenericIterator
        except ImportError:
            raise UserError(
                "decoder=dali: NVIDIA DALI is not installed: "
                "pip install nvidia-dali-cuda120 (Linux only), or give decoder=cpu"
            ) from None
        self._path = config.data
        self._normalise = Normalise(image, device, channels_last=resolved.channels_last)
        self._batches = DALIGenericIterator(
            [_pipeline(files, config, resolved, image.size, device, shard)],
            _OUTPUTS,
            reader_name="files",
            auto_reset=True,
            last_batch_policy=LastBatchPolicy.DROP,
            prepare_first_batch=False,  # its errors belong to the first batch
        )

    def next(self) -> ImageBatch:
        """Return images, float32 [N, 3, S, S], and labels, int64 [N], on the device."""
        try:
            batch = next(self._batches, None) or next(self._batches)
        except RuntimeError as error:
            if blamed := _blamed(error):
                raise UserError(
                    f"data={self._path!r}: NVIDIA DALI cannot decode an image ({blamed}): "
                    "replace or delete it, or give decoder=cpu"
                ) from None
            raise
        levels, labels = (batch[0][name] for name in _OUTPUTS)
        images = self._normalise(levels, self._normalise.empty(levels))
        return images, labels.to(torch.int64).squeeze(1)

    def close(self) -> None:
        """End the threads."""
        self._batches = iter(())


def _pipeline(
    files: list[tuple[str, int]],
    config: RunConfig,
    resolved: ResolvedConfig,
    image_size: int,
    device: torch.device,
    shard: Shard,
) -> Any:
    from nvidia.dali import Pipeline, fn, math, types

    on_gpu = device.type == "cuda"
    # In an order of the seed's own, so that a rank's shard and DALI's buffer see every class; whole
    # batches, since DALI would begin the next epoch with the rest.
    whole = resolved.batch_size * shard.ranks
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(config.seed))
    kept = [files[number] for number in order[: len(files) // whole * whole]]
    decoding = {
        "device": "mixed" if on_gpu else "cpu",
        "output_type": types.RGB,
        "jpeg_fancy_upsampling": True,
        "adjust_orientation": False,
    }
    crop = (image_size, image_size)
    resizing = {"interp_type": types.INTERP_LINEAR, "antialias": True}
    pipeline = Pipeline(
        batch_size=resolved.batch_size,
        num_threads=resolved.workers,
        device_id=device.index if on_gpu else None,
        seed=shard.seed(config.seed),
        prefetch_queue_depth=config.prefetch_factor,
    )
    with pipeline:
        encoded, labels = fn.readers.file(
            files=[file for file, _ in kept],
            labels=[label for _, label in kept],
            random_shuffle=True,
            seed=config.seed,
            shard_id=shard.rank,
            num_shards=shard.ranks,
            name="files",
        )
        if config.augment:
            part = fn.decoders.image_random_crop(
                encoded, random_area=SCALE, random_aspect_ratio=RATIO, **decoding
            )
            cut = fn.resize(part, size=crop, **resizing)
            cut = fn.flip(cut, horizontal=fn.random.coin_flip(probability=MIRRORED))
        else:
            picture = fn.decoders.image(encoded, **decoding)
            # As torchvision does: the longer side is rounded down, whatever that does to the ratio.
            sides = fn.peek_image_shape(encoded, adjust_orientation=False)[:2]
            size = math.floor(shorter_side(image_size) * sides / fn.reductions.min(sides))
            cut = fn.crop(fn.resize(picture, size=size, **resizing), crop=crop)
        # Labels in pageable memory would make the host wait for the device, each iteration.
        pipeline.set_outputs(cut, labels.gpu() if on_gpu else labels)
    return pipeline


def _blamed(error: RuntimeError) -> str | None:
    """Return DALI's line about a file, or None where it speaks of something else."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line.startswith(_BLAMES_A_FILE)), None)
