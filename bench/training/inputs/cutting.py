"""Pictures of any size cut to the model's, as torchvision's training references do.

On uint8 in torch: the same filter as Pillow's, in a third of its time, and at most one grey level
from it. Pictures are uint8 [H, W, 3], height first.
"""

from __future__ import annotations

import threading

import torch
from torch.nn.functional import interpolate
from torchvision.transforms import RandomResizedCrop

#: Shorter side before the centre crop, over the crop: torchvision's references take 256 and 224.
RESIZE_RATIO = 256 / 224
#: Share of the picture's area, and width over height, that RandomResizedCrop draws from.
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
MIRRORED = 0.5
#: torch's own generator is one for all threads.
_DRAWING = threading.Lock()


def shorter_side(size: int) -> int:
    """Return what the shorter side becomes before `size` pixels are cut out of the centre."""
    return round(size * RESIZE_RATIO)


class CentreCut:
    """The shorter side resized to 256/224 of `size`, then the centre: Resize and CenterCrop."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._shorter = shorter_side(size)

    def __call__(self, picture: torch.Tensor, seed: int) -> torch.Tensor:
        """Return uint8 [S, S, 3], which may be a view; nothing is drawn from `seed`."""
        height, width = picture.shape[:2]
        if width < height:
            height, width = int(self._shorter * height / width), self._shorter
        else:
            height, width = self._shorter, int(self._shorter * width / height)
        top, left = (round((side - self._size) / 2) for side in (height, width))
        resized = _resized(picture, height, width)
        return resized[top : top + self._size, left : left + self._size]


class RandomCut:
    """A random part resized, every second one mirrored: RandomResizedCrop, RandomHorizontalFlip.

    One seed draws what they would draw after `torch.manual_seed`.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    def __call__(self, picture: torch.Tensor, seed: int) -> torch.Tensor:
        """Return uint8 [S, S, 3], which may be a view."""
        (top, left, height, width), mirrored = _draw(picture, seed)
        part = picture[top : top + height, left : left + width]
        cut = _resized(part, self._size, self._size)
        return cut.flip(1) if mirrored else cut


def _draw(picture: torch.Tensor, seed: int) -> tuple[tuple[int, int, int, int], bool]:
    """Return a part (top, left, height, width) and whether to mirror it.

    torchvision draws from torch's own generator, which is left as it was: without loader processes
    it is the one that the model's dropout draws from.
    """
    with _DRAWING:
        state = torch.get_rng_state()
        torch.default_generator.manual_seed(seed)
        try:
            part = RandomResizedCrop.get_params(picture.permute(2, 0, 1), list(SCALE), list(RATIO))
            return part, bool(torch.rand(1) < MIRRORED)
        finally:
            torch.set_rng_state(state)


def _resized(picture: torch.Tensor, height: int, width: int) -> torch.Tensor:
    # The batch dimension first: torch then sees channels_last, and takes and gives it as it is.
    planes = picture.unsqueeze(0).permute(0, 3, 1, 2)
    resized = interpolate(planes, (height, width), mode="bilinear", antialias=True)
    return resized.permute(0, 2, 3, 1).squeeze(0)
