"""Batches for the training step: synthetic, from an image folder, or torchvision's FakeData.

Images come from torch's DataLoader, shuffled. Their grey levels are moved, a quarter of the bytes,
and normalised on the device: when a batch is asked for, or with `PrefetchedTransfer` while the
device computes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, Sampler, default_collate

from bench.config import FAKEDATA, SYNTHETIC, RunConfig
from bench.errors import UserError
from bench.records import ResolvedConfig
from bench.training.workloads import Batch, ImageInput, Workload

#: Images, float32 [N, 3, S, S], and labels, int64 [N]; in the host's memory uint8 [N, S, S, 3].
ImageBatch = tuple[torch.Tensor, torch.Tensor]
NextBatch = Callable[[], Batch]


class Batches:
    """An endless stream of full batches; by itself it gives the same one every time."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def next(self) -> Batch:
        """Return a batch of the workload, on the device.

        The copy to the device may still be under way in the device's current stream. The tensors
        hold this batch until the next call, which must come after all work on it is queued. Raises
        `UserError` for an image that cannot be decoded, and `RuntimeError` if a loader process
        dies.
        """
        return self._batch

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
        return Batches(_random_batch(config, resolved, workload, device, shard))
    image = workload.image
    if image is None:
        raise UserError(
            f"data={config.data!r}: {config.arch} takes no images of a data set; "
            "give data=synthetic"
        )
    # What reads files is imported where it is needed: synthetic runs do not pay for it.
    from bench.training.inputs.image_folder import FakeImages, open_image_folder

    images: Images
    if config.data == FAKEDATA:
        images = FakeImages(image, resolved.batch_size * config.world_size)
    else:
        images = open_image_folder(config, resolved, image)
    return LoaderBatches(images, image, config, resolved, device, shard)


def _random_batch(
    config: RunConfig,
    resolved: ResolvedConfig,
    workload: Workload,
    device: torch.device,
    shard: Shard,
) -> Batch:
    """A random batch of the workload, the same whatever the layout of its images."""
    layout = torch.channels_last if resolved.channels_last else torch.contiguous_format

    def placed(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.to(device)
        return tensor.contiguous(memory_format=layout) if tensor.dim() == 4 else tensor

    # The generators go on as if nothing had been drawn, whatever the batch and the rank.
    with torch.random.fork_rng([device] if device.type == "cuda" else []), device:
        torch.manual_seed(shard.seed(config.seed))
        batch = workload.batch(resolved.batch_size)
    return tree_map_only(torch.Tensor, placed, batch)


class Normalise:
    """ToTensor and Normalize in one product and sum: (x / 255 - mean) / std."""

    def __init__(self, image: ImageInput, device: torch.device, *, channels_last: bool) -> None:
        mean, std = (torch.tensor(rgb, device=device) for rgb in (image.mean, image.std))
        self._scale, self._shift = 1 / (255 * std), -mean / std
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        # Only CUDA's kernels convert while they read; elsewhere that takes a detour.
        self._converts = device.type == "cuda"

    def empty(self, images: torch.Tensor) -> torch.Tensor:
        """Return a float32 [N, 3, S, S], not yet written, for `images`, uint8 [N, S, S, 3]."""
        n, height, width, channels = images.shape
        return torch.empty(
            (n, channels, height, width), device=self._scale.device, memory_format=self._layout
        )

    def __call__(self, images: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Write the normalised `images`, uint8 [N, S, S, 3], to `out`, which `empty` made."""
        scale, shift = self._scale, self._shift
        if self._layout == torch.channels_last and not self._converts:
            # Whole rows, not three channels at a time: a third of the time on a CPU.
            width = images.shape[2]
            levels, to = images.view(-1, 3 * width), out.permute(0, 2, 3, 1).view(-1, 3 * width)
            scale, shift = scale.repeat(width), shift.repeat(width)
        else:
            levels, to = images.permute(0, 3, 1, 2), out
            scale, shift = scale.view(3, 1, 1), shift.view(3, 1, 1)
        torch.addcmul(shift, levels if self._converts else to.copy_(levels), scale, out=to)
        return out


class DeviceSlot:
    """Room for one batch, as grey levels and normalised, made for batches like `host`."""

    def __init__(
        self, host: ImageBatch, normalise: Normalise, device: torch.device, *, non_blocking: bool
    ) -> None:
        images, labels = host
        self._levels = torch.empty_like(images, device=device)
        #: The tensors that every `fill` writes.
        self.batch: ImageBatch = (
            normalise.empty(self._levels),
            torch.empty_like(labels, device=device),
        )
        self._normalise = normalise
        self._non_blocking = non_blocking

    def fill(self, host: ImageBatch) -> None:
        """Queue the copy and the normalisation in the current stream."""
        images, labels = host
        self._levels.copy_(images, non_blocking=self._non_blocking)
        self.batch[1].copy_(labels, non_blocking=self._non_blocking)
        self._normalise(self._levels, self.batch[0])


class PrefetchedTransfer:
    """Two slots on the device: one is computed on while a side stream fills the other.

    They are made once, not per batch: a host that runs ahead of the device would otherwise hold as
    many batches there as it is ahead. A slot is filled again only after everything that was queued
    on it, and read only after it is full; the two streams wait for each other, the host for none.
    """

    def __init__(
        self,
        fetch: NextBatch,
        make_slot: Callable[[ImageBatch], DeviceSlot],
        device: torch.device,
        cuda: Any = torch.cuda,
    ) -> None:
        self._fetch = fetch
        self._make_slot = make_slot
        self._device = device
        self._cuda = cuda
        self._side = cuda.Stream(device)
        self._resting: list[DeviceSlot] = []
        self._ahead: DeviceSlot | None = None
        self._given: DeviceSlot | None = None

    def next(self) -> ImageBatch:
        """Return the batch whose way began a call ago, and send the one after it on its way.

        It holds until the next call, before which all work on it must be queued.
        """
        current = self._cuda.current_stream(self._device)
        full = self._ahead or self._send(current)
        current.wait_stream(self._side)
        if self._given is not None:
            self._resting.append(self._given)
        self._given, self._ahead = full, None
        self._ahead = self._send(current)
        return full.batch

    def close(self) -> None:
        """Wait for the batch that is on its way."""
        self._side.synchronize()

    def _send(self, current: Any) -> DeviceSlot:
        host = self._fetch()
        slot = self._resting.pop() if self._resting else self._make_slot(host)
        # The slot's last reader, or the last owner of its new memory, is in the current stream.
        self._side.wait_stream(current)
        with self._cuda.stream(self._side):
            slot.fill(host)
        return slot


_MAX_EXIT_S = 2.0


class Draw(NamedTuple):
    """One image to load, by number; `seed` fixes its augmentation, whichever process loads it."""

    image: int
    seed: int


#: An image, uint8 [S, S, 3], and its label; or why it cannot be read: a value, because torch
#: rewrites the message of an exception that leaves a loader process.
ImageSample = tuple[torch.Tensor, int] | UserError


class Images(Protocol):
    """Makes one sample of each draw; picklable."""

    def __len__(self) -> int: ...

    def __getitem__(self, draw: Draw) -> ImageSample: ...


class LoaderBatches(Batches):
    """Full, shuffled batches of `images`, epoch after epoch.

    Order and augmentation depend on the seed alone, not on the number of workers. The processes
    start at once, so that they decode while the model is built. Persistent workers go from epoch
    to epoch without a pause, as in the middle of a large data set; others end with each epoch, and
    new ones start.
    """

    def __init__(
        self,
        images: Images,
        image: ImageInput,
        config: RunConfig,
        resolved: ResolvedConfig,
        device: torch.device,
        shard: Shard = ALL,
    ) -> None:
        self._loader: DataLoader[Any] | None = _data_loader(images, config, resolved, shard)
        self._iterator = self._start()
        self._device, self._non_blocking = device, config.non_blocking
        self._normalise = Normalise(image, device, channels_last=resolved.channels_last)
        self._ahead: PrefetchedTransfer | None = None
        if device.type == "cuda":  # it has streams
            make_slot = partial(
                DeviceSlot,
                normalise=self._normalise,
                device=device,
                non_blocking=config.non_blocking,
            )
            self._ahead = PrefetchedTransfer(self._fetch, make_slot, device)

    def next(self) -> ImageBatch:
        """Return images, float32 [N, 3, S, S], and labels, int64 [N], on the device."""
        if self._ahead is not None:
            return self._ahead.next()
        images, labels = (
            part.to(self._device, non_blocking=self._non_blocking) for part in self._fetch()
        )
        return self._normalise(images, self._normalise.empty(images)), labels

    def close(self) -> None:
        """End the loader processes; a batch in the making is finished first."""
        # Dropping the iterator is not enough: the traceback of an interrupt holds on to it.
        shut_down = getattr(self._iterator, "_shutdown_workers", None)
        if shut_down is not None:
            # Once a process was killed, torch raises here whenever another of them ends.
            with suppress(RuntimeError):
                shut_down()
        if self._ahead is not None:
            self._ahead.close()
        self._loader, self._iterator = None, iter(())

    def _fetch(self) -> ImageBatch:
        try:
            batch = next(self._iterator, None)
            if batch is None:
                self._iterator = self._start()
                batch = next(self._iterator)
        except (ConnectionError, EOFError) as error:
            # The other end of a pipe is gone before its process is: torch's handler raises here
            # and names it, unless the system has no such signal.
            time.sleep(_MAX_EXIT_S)
            raise RuntimeError("a loader process ended before its work did") from error
        if isinstance(batch, UserError):
            raise batch
        images, labels = batch
        return images, labels

    def _start(self) -> Iterator[Any]:
        if self._loader is None:
            raise RuntimeError("these batches are closed")
        return iter(self._loader)


def _data_loader(
    images: Images, config: RunConfig, resolved: ResolvedConfig, shard: Shard
) -> DataLoader[Any]:
    has_processes = resolved.workers > 0
    persistent = config.persistent_workers and has_processes
    batch_size, seed = resolved.batch_size, config.seed
    return DataLoader(
        images,  # type: ignore[arg-type]  # map-style data sets need not derive from Dataset
        batch_size=batch_size,
        sampler=ShuffledDraws(len(images), batch_size, seed, endless=persistent, shard=shard),
        num_workers=resolved.workers,
        collate_fn=_collate,
        pin_memory=resolved.pin_memory,
        drop_last=True,
        generator=torch.Generator().manual_seed(seed),
        prefetch_factor=config.prefetch_factor if has_processes else None,
        persistent_workers=persistent,
    )


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


def _collate(samples: list[ImageSample]) -> Any:
    unreadable = (sample for sample in samples if isinstance(sample, UserError))
    return next(unreadable, None) or default_collate(samples)
