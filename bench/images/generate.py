"""Makes an ImageFolder of photograph-like JPEGs without a network, drawn from random numbers.

A picture is a dead-leaves model: opaque shapes whose sizes follow a power law hide one another,
which gives the edges, the occlusions and the 1/f spectrum of natural images (Lee, Mumford and
Huang, "Occlusion models for natural images", IJCV 41, 2001). Each shape has its own colour and
light, and a 1/f texture; a sensor's noise lies over all. Planes are float32, height x width.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from bench.config import user_path
from bench.errors import UserError
from bench.images import claimed

Plane = NDArray[np.float32]
Floats = NDArray[np.float64]

_COLOURS = 6
_TEXTURE_PIXELS = 768  # a side
_OUTLINE_POINTS = 12
_MOST_SHAPES = 255  # a shape's number is one byte
_SMALLEST_PIXELS = 4.0  # the power law of sizes starts here
#: Width and height in landscape, and how often: most of ImageNet is 500 pixels on the longer side.
_SIZES = ((500, 375), (500, 333), (500, 400), (500, 500), (500, 281), (640, 480), (400, 300))
_SIZE_SHARES = (0.45, 0.24, 0.08, 0.08, 0.03, 0.09, 0.03)
_PORTRAIT_SHARE = 0.25
_QUALITIES = (92, 95, 95, 95)
_CHROMA_420 = 2  # Pillow's number for 4:2:0


@dataclass(frozen=True)
class ClassLook:
    """What the pictures of one class have in common."""

    palette: Floats  # colours x RGB, white is 255
    texture: Plane  # square, mean 0, SD 1
    grain: Plane  # white noise, likewise
    corners: int  # of a shape
    stretch: float  # longest over shortest axis of a shape
    shapes: int  # in a picture, as a rule
    contrast: float  # of the texture


def draw_look(rng: np.random.Generator) -> ClassLook:
    """Draw what one class looks like from `rng`."""
    side = (_TEXTURE_PIXELS, _TEXTURE_PIXELS)
    return ClassLook(
        palette=rng.uniform(30, 230, (_COLOURS, 1)) * rng.uniform(0.6, 1.1, (_COLOURS, 3)),
        texture=_texture(float(rng.uniform(0.7, 1.1)), rng),
        grain=rng.standard_normal(side, dtype=np.float32),
        corners=int(rng.choice([3, 4, 5, _OUTLINE_POINTS])),
        stretch=float(rng.uniform(1, 3)),
        shapes=int(rng.uniform(100, 220)),
        contrast=float(rng.uniform(0.08, 0.2)),
    )


def _texture(exponent: float, rng: np.random.Generator) -> Plane:
    size = _TEXTURE_PIXELS
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None, :])
    spectrum = np.fft.rfft2(rng.standard_normal((size, size)))
    noise = np.fft.irfft2(spectrum * (frequency + 0.01) ** -exponent, (size, size))
    texture: Plane = ((noise - noise.mean()) / noise.std()).astype(np.float32)
    return texture


def draw_photo(look: ClassLook, rng: np.random.Generator) -> bytes:
    """Draw one picture of the class `look` from `rng`: baseline JPEG, 4:2:0."""
    width, height = _SIZES[rng.choice(len(_SIZES), p=_SIZE_SHARES)]
    if rng.random() < _PORTRAIT_SHARE:
        width, height = height, width
    count = min(_MOST_SHAPES, int(look.shapes * rng.uniform(0.7, 1.15)))
    covering = _shapes(look, count, width, height, rng)
    colours = look.palette[rng.integers(0, _COLOURS, count + 1)]
    colours = colours * rng.uniform(0.7, 1.2, (count + 1, 1))
    contrast = rng.gamma(2, look.contrast / 2, count + 1).astype(np.float32)
    light = rng.normal(0, 0.4, (count + 1, 2)).astype(np.float32)  # over the picture
    x = np.linspace(-1, 1, width, dtype=np.float32)
    y = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    level = 1 + light[:, 0][covering] * x + light[:, 1][covering] * y
    level = level.clip(0.3, 1.7) * np.exp(contrast[covering] * _cut(look.texture, covering, rng))
    scene = colours.astype(np.float32)[covering] * level[:, :, None]
    scene += _cut(look.grain, covering, rng)[:, :, None] * np.float32(rng.uniform(1, 3))
    file = io.BytesIO()
    picture = Image.fromarray(scene.clip(0, 255).astype(np.uint8))
    picture.save(file, "JPEG", quality=int(rng.choice(_QUALITIES)), subsampling=_CHROMA_420)
    return file.getvalue()


def _shapes(
    look: ClassLook, count: int, width: int, height: int, rng: np.random.Generator
) -> NDArray[np.intp]:
    """The number of the shape that each pixel shows, height x width; 0 where there is none."""
    image = Image.new("L", (width, height))
    pen = ImageDraw.Draw(image)
    radii = np.sort(_SMALLEST_PIXELS * (1 + rng.pareto(1.2, count)))[::-1].clip(max=height / 3)
    for number, radius in enumerate(radii, start=1):  # the largest beneath
        turn = rng.uniform(0, 2 * np.pi)
        angles = turn + np.linspace(0, 2 * np.pi, look.corners, endpoint=False)
        edge = radius * rng.uniform(0.75, 1.25, look.corners)
        x = rng.uniform(0, width) + edge * np.cos(angles) * look.stretch**0.5
        y = rng.uniform(0, height) + edge * np.sin(angles) / look.stretch**0.5
        pen.polygon(np.stack([x, y], axis=1).ravel().tolist(), fill=number)
    return np.asarray(image).astype(np.intp)


def _cut(plane: Plane, like: NDArray[np.intp], rng: np.random.Generator) -> Plane:
    top, left = rng.integers(
        0, [side - part for side, part in zip(plane.shape, like.shape, strict=True)]
    )
    return plane[top : top + like.shape[0], left : left + like.shape[1]]


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
            # a name of its own: what a kill leaves is written over the next time
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
