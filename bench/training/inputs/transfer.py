"""How a batch gets from the loader's memory to the device, and from grey levels to a model's input.

Grey levels are moved and normalised on the device: a quarter of the bytes. `Transfer` moves a batch
when it is asked for one, `PrefetchedTransfer` the next one while the device computes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from bench.training.inputs import Batches, ImageBatch, NextBatch
from bench.training.workloads import ImageInput


class Normalise:
    """ToTensor and Normalize in one product and sum: (x / 255 - mean) / std."""

    def __init__(self, image: ImageInput, device: torch.device, *, channels_last: bool) -> None:
        mean, std = (torch.tensor(each, device=device) for each in (image.mean, image.std))
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


class Transfer(Batches):
    """Fetch, move, normalise, one after the other in the device's current stream.

    `fetch` gives images, uint8 [N, S, S, 3], and labels, int64 [N], in the host's memory.
    """

    def __init__(
        self, fetch: NextBatch, normalise: Normalise, device: torch.device, *, non_blocking: bool
    ) -> None:
        self._fetch = fetch
        self._normalise = normalise
        self._device = device
        self._non_blocking = non_blocking

    def next(self) -> ImageBatch:
        """Return images, float32 [N, 3, S, S], and labels, int64 [N], on the device."""
        images, labels = (
            part.to(self._device, non_blocking=self._non_blocking) for part in self._fetch()
        )
        return self._normalise(images, self._normalise.empty(images)), labels


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


class PrefetchedTransfer(Batches):
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


def open_transfer(
    fetch: NextBatch, normalise: Normalise, device: torch.device, *, non_blocking: bool
) -> Batches:
    """Return the way to `device`: beside the computation where it has streams."""
    if device.type != "cuda":
        return Transfer(fetch, normalise, device, non_blocking=non_blocking)
    make_slot = partial(DeviceSlot, normalise=normalise, device=device, non_blocking=non_blocking)
    return PrefetchedTransfer(fetch, make_slot, device)
