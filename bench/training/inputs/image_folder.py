"""Real images from disk: decoded and cut to size, as torchvision's training references do.

Cut on uint8 in torch: the same filter as Pillow's, in a third of its time, and at most one grey
level from it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate
from torchvision.datasets import FakeData, ImageFolder
from torchvision.datasets.folder import pil_loader
from torchvision.transforms import RandomResizedCrop

from bench.config import RunConfig, user_path
from bench.errors import UserError, one_line
from bench.images import check_image_folder
from bench.records import ResolvedConfig
from bench.training.inputs import Draw, ImageSample
from bench.training.workloads import ImageInput

try:
    from simplejpeg import decode_jpeg
except ImportError:  # a worker carried without it, or a platform without its wheel
    decode_jpeg = None

_JPEG = b"\xff\xd8\xff"
#: Shorter side before the centre crop, over the crop: torchvision's references take 256 and 224.
RESIZE_RATIO = 256 / 224
#: Share of the picture's area, and width over height, that RandomResizedCrop draws from.
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
MIRRORED = 0.5
#: torch's own generator is one for all threads.
_DRAWING = threading.Lock()


class DecodedImages:
    """Images of an ImageFolder as uint8 [S, S, 3] with their class number.

    Without `augment` the shorter side becomes 256/224 of S and the centre is cut out; with it a
    random part is resized and half of the images are mirrored. A whole batch is made by `threads`
    threads; with more than one it cannot be sent to other processes.
    """

    def __init__(self, root: Path, image: ImageInput, *, augment: bool, threads: int = 1) -> None:
        self._root = root
        self._size = image.size
        self._augment = augment
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._files = list_images(root, image.classes)

    def __len__(self) -> int:
        return len(self._files)

    def __getitems__(self, draws: Sequence[Draw]) -> list[ImageSample]:
        """Return a batch's samples: what torch's DataLoader asks for where there is this."""
        return list((self._pool.map if self._pool else map)(self.__getitem__, draws))

    def __getitem__(self, draw: Draw) -> ImageSample:
        file, label = self._files[draw.image]
        try:
            picture = decode_rgb(file)
        except MemoryError:
            raise
        except Exception as error:  # decoders raise many kinds on damaged data
            return UserError(
                f"data={str(self._root)!r}: {file!r} cannot be decoded ({one_line(error)}): "
                "replace or delete it"
            )
        if self._augment:
            return random_cut(picture, self._size, draw.seed), label
        return centre_cut(picture, self._size), label


def open_image_folder(
    config: RunConfig, resolved: ResolvedConfig, image: ImageInput
) -> DecodedImages:
    """Open the ImageFolder `config.data`.

    Raises `UserError` if it is not one, if its images do not fill a batch of every device, or if it
    has more classes than the model distinguishes.
    """
    images = DecodedImages(
        user_path(config.data),
        image,
        augment=config.augment,
        # Without loader processes the step waits, and its cores are free.
        threads=resolved.threads if resolved.workers == 0 else 1,
    )
    devices = config.world_size
    if len(images) < resolved.batch_size * devices:
        raise UserError(
            f"data={config.data!r}: {len(images)} images do not fill a batch of "
            f"{resolved.batch_size} on each of {devices} devices: "
            f"give batch_size={len(images) // devices} or less, or a larger folder"
        )
    return images


def list_images(root: Path, classes: int) -> list[tuple[str, int]]:
    """Return the files of the ImageFolder at `root` with their class numbers.

    Raises `UserError` if it is not one, or has more than `classes`, which the model distinguishes.
    """
    try:
        folder = ImageFolder(root)
    except OSError:
        check_image_folder(root)  # says what is wrong, and the remedy
        raise
    if len(folder.classes) > classes:
        raise UserError(
            f"data={str(root)!r}: {len(folder.classes)} classes: "
            f"give a folder of at most {classes}, which is what the model tells apart"
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


def centre_cut(picture: torch.Tensor, size: int) -> torch.Tensor:
    """Resize the shorter side to 256/224 of `size`, cut the centre out: Resize and CenterCrop.

    Returns uint8 [S, S, 3], which may be a view of `picture`, uint8 [H, W, 3].
    """
    height, width = picture.shape[:2]
    shorter = round(size * RESIZE_RATIO)
    if width < height:
        height, width = int(shorter * height / width), shorter
    else:
        height, width = shorter, int(shorter * width / height)
    top, left = (round((side - size) / 2) for side in (height, width))
    return _resized(picture, height, width)[top : top + size, left : left + size]


def random_cut(picture: torch.Tensor, size: int, seed: int) -> torch.Tensor:
    """Resize a random part and mirror every second one: RandomResizedCrop, RandomHorizontalFlip.

    One seed draws what they would draw after `torch.manual_seed`. Returns uint8 [S, S, 3], which
    may be a view of `picture`, uint8 [H, W, 3].
    """
    (top, left, height, width), mirrored = _draw(picture, seed)
    cut = _resized(picture[top : top + height, left : left + width], size, size)
    return cut.flip(1) if mirrored else cut


def _draw(picture: torch.Tensor, seed: int) -> tuple[tuple[int, int, int, int], bool]:
    """Return a part (top, left, height, width) and whether to mirror it.

    torchvision draws from torch's own generator, which is left as it was: without loader processes
    it is the one that the model's dropout draws from.
    """
    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        part = RandomResizedCrop.get_params(picture.permute(2, 0, 1), list(SCALE), list(RATIO))
        return part, bool(torch.rand(1) < MIRRORED)


def _resized(picture: torch.Tensor, height: int, width: int) -> torch.Tensor:
    # The batch dimension first: torch then sees channels_last, and takes and gives it as it is.
    planes = picture.unsqueeze(0).permute(0, 3, 1, 2)
    resized = interpolate(planes, (height, width), mode="bilinear", antialias=True)
    return resized.permute(0, 2, 3, 1).squeeze(0)


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
