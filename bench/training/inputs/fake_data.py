"""torchvision's FakeData through the same loader: a test of the loader, not of a device.

Drawing an image's noise costs about what decoding a JPEG does. The step without its input is what
`data=synthetic` measures.
"""

from __future__ import annotations

import numpy as np
import torch
from torchvision.datasets import FakeData

from bench.training.inputs.loader import Draw
from bench.training.workloads import ImageInput

IMAGES = 10_000  # an epoch; more where a batch is larger


class FakeImages:
    """Random images as uint8 [S, S, 3] with a random label, made when asked for."""

    def __init__(self, image: ImageInput, batch_size: int) -> None:
        self._images = FakeData(
            size=max(IMAGES, batch_size),
            image_size=(3, image.size, image.size),
            num_classes=image.classes,
        )

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, draw: Draw) -> tuple[torch.Tensor, int]:
        image, label = self._images[draw.image]
        return torch.from_numpy(np.array(image)), label
