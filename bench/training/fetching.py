"""An iteration without a model: what `data_only=true` measures."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

#: Why a record of such a run lacks what a model would have given.
NO_MODEL = "data_only=true: no model ran"


class FetchingStep:
    """Fetch a batch onto the device and do nothing with it; the loss is not a number."""

    _no_loss = torch.tensor(math.nan)

    def __call__(self, next_batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """Fetch one batch."""
        next_batch()
        return self._no_loss
