"""The next batch moved and normalised on a second stream while the device computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from bench.training.inputs.base import Batch, NextBatch
from bench.training.inputs.transfer import Normalise


class Slot(Protocol):
    """A batch's place on the device, written again and again."""

    @property
    def batch(self) -> Batch:
        """Images, float32 [N, 3, S, S], and labels, int64 [N]."""

    def fill(self, host: Batch) -> None:
        """Queue the copy and the normalisation of a batch of the host's in the current stream."""


class DeviceSlot:
    """Room for one batch, as grey levels and normalised, made for batches like `host`."""

    def __init__(
        self, host: Batch, normalise: Normalise, device: torch.device, *, non_blocking: bool
    ) -> None:
        images, labels = host
        self._levels = torch.empty_like(images, device=device)
        self._labels = torch.empty_like(labels, device=device)
        self._images = normalise.empty(self._levels)
        self._normalise = normalise
        self._non_blocking = non_blocking

    @property
    def batch(self) -> Batch:
        """The tensors that every `fill` writes."""
        return self._images, self._labels

    def fill(self, host: Batch) -> None:
        """Queue the copy and the normalisation in the current stream."""
        images, labels = host
        self._levels.copy_(images, non_blocking=self._non_blocking)
        self._labels.copy_(labels, non_blocking=self._non_blocking)
        self._normalise(self._levels, self._images)


class PrefetchedTransfer:
    """Two slots on the device: one is computed on while a side stream fills the other.

    They are made once, not per batch: a host that runs ahead of the device would otherwise hold as
    many batches there as it is ahead. A slot is filled again only after everything that was queued
    on it, and read only after it is full; the two streams wait for each other, the host for none.
    """

    def __init__(
        self,
        fetch: NextBatch,
        make_slot: Callable[[Batch], Slot],
        device: torch.device,
        cuda: Any = torch.cuda,
    ) -> None:
        self._fetch = fetch
        self._make_slot = make_slot
        self._device = device
        self._cuda = cuda
        self._side = cuda.Stream(device)
        self._resting: list[Slot] = []
        self._ahead: Slot | None = None
        self._given: Slot | None = None

    def next(self) -> Batch:
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

    def _send(self, current: Any) -> Slot:
        host = self._fetch()
        slot = self._resting.pop() if self._resting else self._make_slot(host)
        # The slot's last reader, or the last owner of its new memory, is in the current stream.
        self._side.wait_stream(current)
        with self._cuda.stream(self._side):
            slot.fill(host)
        return slot
