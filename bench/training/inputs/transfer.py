"""How a batch gets from the loader's memory to the device, and from grey levels to a model's input.

Grey levels are moved and normalised on the device: a quarter of the bytes. The base moves a batch
when it is asked for one.
"""

from __future__ import annotations

import torch

from bench.training.inputs.base import Batch, NextBatch

#: ImageNet's mean and standard deviation of R, G and B, from torchvision's references.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Normalise:
    """ToTensor and Normalize in one product and sum: (x / 255 - mean) / std."""

    def __init__(self, device: torch.device, *, channels_last: bool) -> None:
        mean, std = torch.tensor(MEAN, device=device), torch.tensor(STD, device=device)
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


class Transfer:
    """Fetch, move, normalise, one after the other in the device's current stream.

    `fetch` gives images, uint8 [N, S, S, 3], and labels, int64 [N], in the host's memory.
    """

    def __init__(
        self,
        fetch: NextBatch,
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
        """Do nothing: no copy is under way."""
