"""The processes that train together: a single one, the base, or a rank of several."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from bench.config import RunConfig
from bench.errors import UnsupportedError
from bench.training.devices import Device, open_device
from bench.training.inputs.base import Shard
from bench.training.window import WindowPlan


class Team:
    """A single process: it waits for no other and sends no gradients."""

    shard = Shard()

    def open_device(self, config: RunConfig) -> Device:
        """Open this process's device, and join the others.

        Raises `UnsupportedError` for a configuration of several devices: it needs as many.
        """
        if config.world_size > 1:
            raise UnsupportedError(
                f"devices={config.devices}, nodes={config.nodes}: this looks at one device's step; "
                "use devices=1 and nodes=1"
            )
        return open_device(config.backend)

    def wrap(self, model: torch.nn.Module, device: Device) -> torch.nn.Module:
        """Return `model` with its gradients averaged over all processes."""
        return model

    def no_gradient_sync(self) -> AbstractContextManager[object]:
        """Context of a forward and backward pass whose gradients stay in this process."""
        return nullcontext()

    def plan(
        self, iterations: int, max_seconds: float | None, warmup_times_s: Sequence[float]
    ) -> WindowPlan:
        """Agree on the window before it begins."""
        return WindowPlan(iterations, max_seconds)

    def agree(self, passed: bool) -> bool:
        """Return whether `passed` is true in any process; all call this at the same place."""
        return passed

    def barrier(self) -> None:
        """Return when every process has reached this call."""
