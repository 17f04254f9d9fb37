"""How a batch gets from the loader's memory to the device; the base moves it when asked for it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.training.inputs.normalise import Normalise

Batch = tuple[torch.Tensor, torch.Tensor]


class Transfer:
    """Fetch, move, normalise, one after the other in the device's current stream.

    `fetch` gives images, uint8 [N, S, S, 3], and labels, int64 [N], in the host's memory.
    """

    def __init__(
        self,
        fetch: Callable[[], Batch],
        normalise: Normalise,
        device: torch.device,
        *,
        non_blocking: bool,
    ) -> None:
        self._fetch = fetch
        self._normalise = normalise
        self._device = device
        self._non_blocking = non_blocking

    def next(self) -> Batch:
        """Return images, float32 [N, 3, S, S], and labels, int64 [N], on the device."""
        images, labels = (
            part.to(self._device, non_blocking=self._non_blocking) for part in self._fetch()
        )
        return self._normalise(images, self._normalise.empty(images)), labels

    def close(self) -> None:
        """Nothing is under way."""
