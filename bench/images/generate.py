"""Makes an ImageFolder of photograph-like JPEGs without a network."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event

import numpy as np

from bench.config import user_path
from bench.errors import UserError
from bench.images.folder import claimed
from bench.images.photo import draw_look, draw_photo

#: Raised whenever the pictures of a seed change, so that old and new are never mixed.
GENERATOR_VERSION = 2
MAX_CLASSES = 1000  # the classes of ImageNet's models
MAX_IMAGES_PER_CLASS = 100_000  # five digits of file name


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
    `on_image` is called after every picture, from several threads. Returns the number of pictures
    made now. Raises `UserError` for a bad number, for a folder that holds something else, and when
    the disk is full or may not be written.
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
    with claimed(root, settings):
        return _paint(root, classes, images_per_class, seed, on_image)


def _require(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UserError(f"{name}={value}: give a number from {least} to {most}")


def _paint(
    root: Path, classes: int, images_per_class: int, seed: int, on_image: Callable[[], None]
) -> int:
    """Draw the missing pictures and return their number.

    Each class has a thread: numpy and Pillow release Python's lock.
    """
    stopped = Event()

    def paint_class(number: int) -> int:
        folder = root / f"class_{number:03d}"
        folder.mkdir(exist_ok=True)
        files = [folder / f"{image:05d}.jpg" for image in range(images_per_class)]
        missing = [(image, file) for image, file in enumerate(files) if not file.exists()]
        if not missing:
            return 0
        look = draw_look(np.random.default_rng([seed, number]))
        for image, file in missing:
            if stopped.is_set():
                break
            unfinished = file.with_name(f"{file.name}.part")
            unfinished.write_bytes(draw_photo(look, np.random.default_rng([seed, number, image])))
            unfinished.replace(file)
            on_image()
        return len(missing)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        futures = [threads.submit(paint_class, number) for number in range(classes)]
        try:
            return sum(future.result() for future in as_completed(futures))
        except BaseException:
            stopped.set()
            threads.shutdown(cancel_futures=True)
            raise
