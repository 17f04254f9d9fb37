"""What a training step is fed from."""

from __future__ import annotations

from typing import Protocol

import torch


class Batches(Protocol):
    """An endless stream of full batches."""

    workers: int  # processes that prepare them

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images, float32 [N, 3, S, S], and labels, int64 [N], both on the device.

        The copy to the device may still be under way in the device's current stream. The tensors
        hold this batch until the next call, which must come after all work on it is queued. Raises
        `UserError` for an image that cannot be decoded, and `RuntimeError` if a loader process
        dies.
        """

    def close(self) -> None:
        """End the loader processes; may be called twice."""
