"""A picture file as RGB: libjpeg-turbo through simplejpeg for JPEG, Pillow for whatever else.

Pillow decodes with the same library, so the grey levels are the same; simplejpeg spares its
stripes, its conversion to RGB and its copy to an array, a quarter to a third of the time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torchvision.datasets.folder import pil_loader

try:
    from simplejpeg import decode_jpeg
except ImportError:  # a worker carried without it, or a platform without its wheel
    decode_jpeg = None

_JPEG = b"\xff\xd8\xff"


def decode_rgb(file: str) -> torch.Tensor:
    """Return the picture as uint8 [H, W, 3], its EXIF orientation left as it is stored.

    Raises `OSError` or what Pillow's decoders raise where there is no picture in it.
    """
    data = Path(file).read_bytes()
    if decode_jpeg is not None and data.startswith(_JPEG):
        try:
            return torch.from_numpy(decode_jpeg(data))
        except ValueError:
            pass  # CMYK, or damaged: Pillow takes what it can, and tells why it cannot
    return torch.from_numpy(np.array(pil_loader(file)))
