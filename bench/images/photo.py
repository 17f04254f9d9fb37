"""Photograph-like JPEGs, drawn from random numbers: what a class looks like, and its pictures.

A picture is a dead-leaves model: opaque shapes whose sizes follow a power law hide one another,
which gives the edges, the occlusions and the 1/f spectrum of natural images (Lee, Mumford and
Huang, "Occlusion models for natural images", IJCV 41, 2001). Each shape has its own colour and
light, and a 1/f texture; a sensor's noise lies over all. Planes are float32, height x width.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

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
