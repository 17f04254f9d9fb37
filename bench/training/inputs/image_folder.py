"""Real images from disk: decoded and cut to size, as ImageNet training does."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import pil_loader

from bench.errors import UserError
from bench.training.dataset import check_image_folder
from bench.training.inputs.cutting import CentreCut, RandomCut
from bench.training.inputs.loader import Draw, Unreadable
from bench.training.models import NUM_CLASSES

try:
    from simplejpeg import decode_jpeg
except ImportError:  # a worker carried without it, or a platform without its wheel
    decode_jpeg = None

_JPEG = b"\xff\xd8\xff"


class DecodedImages:
    """Images of an ImageFolder as uint8 [S, S, 3] with their class number.

    Without `augment` the shorter side becomes 256/224 of S and the centre is cut out; with it a
    random part is resized and half of the images are mirrored. A whole batch is made by `threads`
    threads; with more than one it cannot be sent to other processes.
    """

    def __init__(self, root: Path, image_size: int, *, augment: bool, threads: int = 1) -> None:
        self._root = root
        self._augment = augment
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._files = list_images(root)
        self._cut = RandomCut(image_size) if augment else CentreCut(image_size)

    def __len__(self) -> int:
        return len(self._files)

    def __getitems__(self, draws: Sequence[Draw]) -> list[tuple[torch.Tensor, int] | Unreadable]:
        """Return a batch's samples: what torch's DataLoader asks for where there is this."""
        return list((self._pool.map if self._pool else map)(self.__getitem__, draws))

    def __getitem__(self, draw: Draw) -> tuple[torch.Tensor, int] | Unreadable:
        file, label = self._files[draw.image]
        try:
            picture = decode_rgb(file)
        except MemoryError:
            raise
        except Exception as error:  # decoders raise many kinds on damaged data
            reason = " ".join(str(error).split())
            return Unreadable(
                f"data={str(self._root)!r}: {file!r} cannot be decoded ({reason}): "
                "replace or delete it"
            )
        return self._cut(picture, draw.seed), label


def open_image_folder(
    path: str,
    *,
    image_size: int,
    augment: bool,
    batch_size: int,
    devices: int = 1,
    threads: int = 1,
) -> DecodedImages:
    """Open the ImageFolder at `path`.

    Raises `UserError` if it is not one, if its images do not fill a batch of every device, or if it
    has more classes than the models distinguish.
    """
    root = Path(path).expanduser()
    images = DecodedImages(root, image_size, augment=augment, threads=threads)
    check_batch_fills(path, len(images), batch_size, devices)
    return images


def check_batch_fills(path: str, images: int, batch_size: int, devices: int) -> None:
    """Raise `UserError` where the folder at `path` has too few images for one batch of each."""
    if images < batch_size * devices:
        each = f" on each of {devices} devices" if devices > 1 else ""
        raise UserError(
            f"data={path!r}: {images} images do not fill a batch of {batch_size}{each}: "
            f"give batch_size={images // devices} or less, or a larger folder"
        )


def list_images(root: Path) -> list[tuple[str, int]]:
    """Return the files of the ImageFolder at `root` with their class numbers.

    Raises `UserError` if it is not one, or has more classes than the models distinguish.
    """
    try:
        folder = ImageFolder(root)
    except OSError:
        check_image_folder(root)  # says what is wrong, and the remedy
        raise
    if len(folder.classes) > NUM_CLASSES:
        raise UserError(
            f"data={str(root)!r}: {len(folder.classes)} classes: "
            f"give a folder of at most {NUM_CLASSES}, which is what the models tell apart"
        )
    files: list[tuple[str, int]] = folder.samples
    return files


def decode_rgb(file: str) -> torch.Tensor:
    """Return the picture as uint8 [H, W, 3], its EXIF orientation left as it is stored.

    JPEG goes through simplejpeg, everything else through Pillow. Both decode with libjpeg-turbo, so
    the grey levels are the same; simplejpeg saves Pillow's stripes, conversion to RGB and copy to
    an array, a quarter to a third of the time. Raises `OSError` or what Pillow's decoders raise
    where there is no picture in it.
    """
    data = Path(file).read_bytes()
    if decode_jpeg is not None and data.startswith(_JPEG):
        try:
            return torch.from_numpy(decode_jpeg(data))
        except ValueError:
            pass  # CMYK, or damaged: Pillow takes what it can, and says why it cannot
    return torch.from_numpy(np.array(pil_loader(file)))
