"""Scenes with the statistics of photographs, drawn from random numbers.

A dead-leaves model: opaque shapes whose sizes follow a power law hide one another, which gives
the edges, the occlusions and the 1/f spectrum of natural images (Lee, Mumford and Huang,
"Occlusion models for natural images", IJCV 41, 2001). Each shape has its own colour, shading and
1/f texture.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from bench.training.dataset.look import COLOURS, TEXTURE_PIXELS, ClassLook, Floats, Plane

OUTLINE_POINTS = 24


def draw_scene(look: ClassLook, width: int, height: int, rng: np.random.Generator) -> Image.Image:
    """Draw one RGB scene of a class: sky and ground, then three layers of shapes, far to near."""
    textures = [cut(texture, width, height, rng) for texture in look.textures]
    scene = _backdrop(look, textures, rng)
    for blur_pixels in (float(rng.uniform(1, 4)), float(rng.uniform(0, 1)), 0.0):
        layer, mask = _draw_layer(look, textures, blur_pixels, rng)
        scene = _lay_over(scene, layer, mask, blur_pixels)
    return scene


def cut(texture: Plane, width: int, height: int, rng: np.random.Generator) -> Plane:
    """A window of `texture` at a random place."""
    top, left = rng.integers(0, (TEXTURE_PIXELS - height, TEXTURE_PIXELS - width))
    return texture[top : top + height, left : left + width]


def _backdrop(look: ClassLook, textures: list[Plane], rng: np.random.Generator) -> Image.Image:
    """Sky and ground: two vertical gradients, with clouds and with texture."""
    height = len(textures[0])
    sky_top, sky_low, near, far = look.palette[rng.choice(COLOURS, 4, replace=False)]
    horizon = int(height * np.clip(look.horizon + rng.normal(0, 0.1), 0.05, 0.9))
    rise = np.linspace(0, 1, horizon)[:, None] ** 1.5
    fall = np.linspace(0, 1, height - horizon)[:, None]
    column = np.concatenate([sky_top + (sky_low - sky_top) * rise, far + (near - far) * fall])
    relief = np.concatenate([0.08 * textures[2][:horizon], 0.3 * textures[1][horizon:]])
    scene = column[:, None, :].astype(np.float32) * (1 + relief)[:, :, None]
    return as_image(scene)


def _outlines(look: ClassLook, centres: Floats, radii: Floats, rng: np.random.Generator) -> Floats:
    """Points of every shape, shapes x points x (x, y)."""
    shapes, points = len(radii), look.corners or OUTLINE_POINTS
    angles = np.linspace(0, 2 * np.pi, points, endpoint=False) + rng.uniform(0, 6, (shapes, 1))
    if look.corners:
        edge = rng.uniform(0.75, 1.25, (shapes, points))
    else:
        lobes = rng.uniform(0, 0.2, (shapes, 2, 1))
        edge = 1 + lobes[:, 0] * np.sin(3 * angles) + lobes[:, 1] * np.sin(5 * angles)
    stretch = np.sqrt(rng.uniform(1, look.elongation, (shapes, 1)))
    along = radii[:, None] * edge * np.cos(angles) * stretch
    across = radii[:, None] * edge * np.sin(angles) / stretch
    turn = look.direction + rng.normal(0, 0.3, (shapes, 1))
    x = along * np.cos(turn) - across * np.sin(turn) + centres[:, :1]
    y = along * np.sin(turn) + across * np.cos(turn) + centres[:, 1:]
    return np.stack([x, y], axis=2)


def _draw_layer(
    look: ClassLook, textures: list[Plane], blur_pixels: float, rng: np.random.Generator
) -> tuple[Image.Image, Image.Image]:
    """Draw shapes, the largest beneath: their RGB picture, and the mask of what they cover."""
    height, width = textures[0].shape
    shapes = 1 + int(look.clutter * rng.uniform(0.3, 1.5))
    radii = np.sort(look.smallest * (1 + blur_pixels / 2) * (1 + rng.pareto(1.6, shapes)))[::-1]
    radii = np.minimum(radii, height / 3)
    centres = np.stack([rng.uniform(0, width, shapes), height * rng.beta(2, 1.3, shapes)], axis=1)
    ids_image = Image.new("L", (width, height))  # 0 is where the layer is open
    pen = ImageDraw.Draw(ids_image)
    for number, outline in enumerate(_outlines(look, centres, radii, rng), start=1):
        pen.polygon(outline.ravel().tolist(), fill=number)
    ids = np.asarray(ids_image).astype(np.intp)

    colours = look.palette[rng.integers(0, COLOURS, shapes)] * rng.uniform(0.7, 1.2, (shapes, 1))
    slopes = rng.normal(0, 0.25, (shapes, 2)) / radii[:, None]
    level = 1 - (slopes * centres).sum(axis=1)
    x, y = np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)[:, None]
    light = _spread(slopes[:, 0], ids) * x + _spread(slopes[:, 1], ids) * y + _spread(level, ids)
    detail = sum(_spread(rng.gamma(2, look.contrast, shapes), ids) * t for t in textures)
    layer = _spread(colours, ids) * (light.clip(0.2, 2) * np.exp(detail))[:, :, None]
    return as_image(layer), ids_image.point([0] + [255] * 255)


def _spread(values: Floats, ids: NDArray[np.intp]) -> Plane:
    """Each pixel's value: that of the shape that covers it, 0 where there is none."""
    table = np.concatenate([np.zeros_like(values[:1]), values]).astype(np.float32)
    return table.take(ids, axis=0)


def _lay_over(
    scene: Image.Image, layer: Image.Image, mask: Image.Image, blur_pixels: float
) -> Image.Image:
    """Put the layer over the scene where the mask is; its shadow falls to the lower right."""
    moved = mask.crop((-4, -8, mask.width - 4, mask.height - 8)).reduce(4)
    small = moved.filter(ImageFilter.BoxBlur(2))
    shadow = small.resize(mask.size, Image.Resampling.BILINEAR).point(lambda v: 255 - v // 2)
    dimmed = ImageChops.multiply(scene, Image.merge("RGB", [shadow] * 3))
    if blur_pixels:
        layer = layer.filter(ImageFilter.BoxBlur(blur_pixels))
    return Image.composite(layer, dimmed, mask.filter(ImageFilter.BoxBlur(0.4 + blur_pixels)))


def as_image(plane: Plane) -> Image.Image:
    """8-bit image of a plane; values outside 0 to 1 are cut off."""
    return Image.fromarray((plane * 255).clip(0, 255).astype(np.uint8))
