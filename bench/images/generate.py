"""Makes an ImageFolder of JPEGs without a network that cost as much to decode as photographs.

A picture is random noise whose amplitude falls with frequency as natural images' does, with a
sensor's white noise over it. There is nothing in it to learn.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from bench.config import user_path
from bench.errors import UserError
from bench.images import claimed

#: Most of ImageNet is 500 pixels on the longer side.
_LONG_PIXELS, _SHORT_PIXELS = 500, 375
_PORTRAIT_SHARE = 0.25
#: Power falls with frequency to about the -2.4: van der Schaaf and van Hateren, Vision Research 36,
#: 1996, found -2 and a little more.
_AMPLITUDE_EXPONENT = -1.3
#: These make files of 105 KB, 4.5 bits per pixel, as cameras do.
_CONTRASTS = (15.0, 55.0)  # SD of a picture, of 255
_COLOUR_SHARE = 0.25
_GRAIN = 2.0
_QUALITY = 95
_CHROMA_420 = 2  # Pillow's number for 4:2:0

#: Raised whenever the pictures of a seed change, so that old and new are never mixed.
GENERATOR_VERSION = 3
MAX_CLASSES = 1000  # the classes of ImageNet's models
MAX_IMAGES_PER_CLASS = 100_000  # five digits of file name


def draw_photo(rng: np.random.Generator) -> bytes:
    """Draw one picture from `rng`: baseline JPEG, 4:2:0."""
    width, height = _LONG_PIXELS, _SHORT_PIXELS
    if rng.random() < _PORTRAIT_SHARE:
        width, height = height, width
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    white = rng.standard_normal((3, height, width), dtype=np.float32)
    falling = np.fft.rfft2(white) * (frequency + 1 / _LONG_PIXELS) ** _AMPLITUDE_EXPONENT
    grey, red, blue = np.fft.irfft2(falling, (height, width))
    planes = np.stack([grey + _COLOUR_SHARE * red, grey, grey + _COLOUR_SHARE * blue], axis=2)
    grain = _GRAIN * rng.standard_normal((height, width, 1), dtype=np.float32)
    scene = 128 + rng.uniform(*_CONTRASTS) / grey.std() * planes + grain
    file = io.BytesIO()
    picture = Image.fromarray(scene.clip(0, 255).astype(np.uint8))
    picture.save(file, "JPEG", quality=_QUALITY, subsampling=_CHROMA_420)
    return file.getvalue()


def generate_image_folder(
    out: str | Path,
    *,
    classes: int,
    images_per_class: int,
    seed: int = 0,
    on_image: Callable[[], None] = lambda: None,
) -> int:
    """Make `classes` x `images_per_class` JPEGs under `out`, one sub-folder per class.

    A whole folder of the same settings is left alone, and an interrupted one is completed. The
    pictures of one seed are equal for equal versions of numpy and Pillow on like processors.
    `on_image` is called after every picture. Returns the number of pictures made now. Raises
    `UserError` for a bad number, for a folder that holds something else, and when the disk is full
    or may not be written.
    """
    _require("classes", classes, 1, MAX_CLASSES)
    _require("images_per_class", images_per_class, 1, MAX_IMAGES_PER_CLASS)
    _require("seed", seed, 0, 2**32 - 1)
    root = user_path(out)
    settings = {
        "made_by": "mlproject dataset generate",
        "version": GENERATOR_VERSION,
        "classes": classes,
        "images_per_class": images_per_class,
        "seed": seed,
    }
    made = 0
    with claimed(root, settings), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        try:
            for number in range(classes):
                folder = root / f"class_{number:03d}"
                folder.mkdir(exist_ok=True)
                files = {image: folder / f"{image:05d}.jpg" for image in range(images_per_class)}
                missing = {image: file for image, file in files.items() if not file.exists()}
                seeds = ([seed, number, image] for image in missing)
                for _ in threads.map(_write_photo, missing.values(), seeds):
                    made += 1
                    on_image()
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
    return made


def _require(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UserError(f"{name}={value}: give a number from {least} to {most}")


def _write_photo(file: Path, seed: list[int]) -> None:
    # a name of its own: what a kill leaves is written over the next time
    unfinished = file.with_name(f"{file.name}.part")
    unfinished.write_bytes(draw_photo(np.random.default_rng(seed)))
    unfinished.replace(file)
