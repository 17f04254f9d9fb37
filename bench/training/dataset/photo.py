"""Photograph-like JPEGs, drawn from random numbers: what a class looks like, a scene, a camera.

A scene is a dead-leaves model: opaque shapes whose sizes follow a power law hide one another, which
gives the edges, the occlusions and the 1/f spectrum of natural images (Lee, Mumford and Huang,
"Occlusion models for natural images", IJCV 41, 2001). Each shape has its own colour, shading and
1/f texture. Colours are RGB and planes float32, height x width, with 1.0 as white.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter

Plane = NDArray[np.float32]
Floats = NDArray[np.float64]

COLOURS = 6
TEXTURE_PIXELS = 768  # a side
#: Hues of sky, foliage, grass, earth, wood and skin, as a share of the colour circle.
NATURAL_HUES = (0.58, 0.55, 0.30, 0.22, 0.11, 0.07, 0.04)


@dataclass(frozen=True)
class ClassLook:
    """What the pictures of one class have in common."""

    palette: Floats  # COLOURS x RGB
    textures: tuple[Plane, ...]  # each TEXTURE_PIXELS square, mean 0, SD 1
    grain: Plane  # white noise, likewise
    corners: int  # straight sides of a shape, or 0 for rounded outlines
    elongation: float  # longest over shortest axis of a shape
    direction: float  # of shapes and texture, radians
    smallest: float  # pixels; the power law of sizes starts here
    clutter: float  # shapes in a layer, as a rule; a layer holds at most 255
    contrast: float  # of the texture
    horizon: float  # share of the height that is sky


def draw_look(rng: np.random.Generator) -> ClassLook:
    """Draw what one class looks like from `rng`."""
    direction = float(rng.uniform(0, np.pi))
    roughness = float(rng.uniform(0.4, 1.0))
    return ClassLook(
        palette=_palette(rng),
        textures=(
            _texture(roughness, 1.0, direction, rng),
            _texture(roughness, 4.0, direction, rng),
            np.abs(_texture(0.9, 1.0, direction, rng)) - np.float32(0.8),  # veins, cracks
        ),
        grain=rng.standard_normal((TEXTURE_PIXELS, TEXTURE_PIXELS), dtype=np.float32),
        corners=int(rng.choice([0, 0, 0, 3, 4, 4, 5])),
        elongation=float(rng.uniform(1, 3.5)),
        direction=direction,
        smallest=float(rng.uniform(3, 8)),
        clutter=float(rng.uniform(30, 165)),
        contrast=float(rng.uniform(0.1, 0.2)),
        horizon=float(rng.uniform(0.1, 0.7)),
    )


def _palette(rng: np.random.Generator) -> Floats:
    """Colours of natural hue and low saturation, dark to light."""
    hue = rng.choice(NATURAL_HUES, COLOURS) + rng.normal(0, 0.02, COLOURS)
    hue[-1] = rng.uniform(0, 1)
    saturation = rng.beta(2, 3, COLOURS)
    value = rng.permutation(np.linspace(0.12, 0.9, COLOURS))
    sector = np.mod(hue[:, None] * 6 + np.array([5, 3, 1]), 6)
    share = np.clip(np.minimum(sector, 4 - sector), 0, 1)
    colours: Floats = value[:, None] * (1 - saturation[:, None] * share)
    return colours


def _texture(exponent: float, stretch: float, direction: float, rng: np.random.Generator) -> Plane:
    """Noise of amplitude 1/f**exponent, longer by `stretch` along `direction`."""
    size = TEXTURE_PIXELS
    fy, fx = np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None, :]
    along = (fx * np.cos(direction) + fy * np.sin(direction)) * stretch
    across = fy * np.cos(direction) - fx * np.sin(direction)
    amplitude = (along**2 + across**2 + 1e-4).astype(np.float32) ** np.float32(-exponent / 2)
    spectrum = np.fft.rfft2(rng.standard_normal((size, size), dtype=np.float32))
    noise: Plane = np.fft.irfft2(spectrum * amplitude, (size, size)).astype(np.float32)
    noise -= noise.mean()
    noise /= noise.std()
    return noise


OUTLINE_POINTS = 24


def _draw_scene(look: ClassLook, width: int, height: int, rng: np.random.Generator) -> Image.Image:
    """Draw one RGB scene of a class: sky and ground, then three layers of shapes, far to near."""
    textures = [_cut(texture, width, height, rng) for texture in look.textures]
    scene = _backdrop(look, textures, rng)
    for blur_pixels in (float(rng.uniform(1, 4)), float(rng.uniform(0, 1)), 0.0):
        layer, mask = _draw_layer(look, textures, blur_pixels, rng)
        scene = _lay_over(scene, layer, mask, blur_pixels)
    return scene


def _cut(texture: Plane, width: int, height: int, rng: np.random.Generator) -> Plane:
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
    return _as_image(scene)


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
    return _as_image(layer), ids_image.point([0] + [255] * 255)


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


def _as_image(plane: Plane) -> Image.Image:
    """8-bit image of a plane; values outside 0 to 1 are cut off."""
    return Image.fromarray((plane * 255).clip(0, 255).astype(np.uint8))


#: Width and height in landscape, and how often: most of ImageNet is 500 pixels on the longer side.
SIZES = ((500, 375), (500, 333), (500, 400), (500, 500), (500, 281), (640, 480), (400, 300))
SIZE_SHARES = (0.45, 0.24, 0.08, 0.08, 0.03, 0.09, 0.03)
PORTRAIT_SHARE = 0.25
QUALITIES = (92, 95, 95, 95)
CHROMA_420 = 2  # Pillow's number for 4:2:0


def draw_photo(look: ClassLook, rng: np.random.Generator) -> bytes:
    """Draw one picture of the class `look` from `rng`: baseline JPEG, 4:2:0."""
    width, height = SIZES[rng.choice(len(SIZES), p=SIZE_SHARES)]
    if rng.random() < PORTRAIT_SHARE:
        width, height = height, width
    picture = _develop(_draw_scene(look, width, height, rng), look, rng)
    file = io.BytesIO()
    quality = int(rng.choice(QUALITIES))
    picture.save(file, "JPEG", quality=quality, subsampling=CHROMA_420)
    return file.getvalue()


def _develop(scene: Image.Image, look: ClassLook, rng: np.random.Generator) -> Image.Image:
    """The camera: light falling off, exposure and colour cast, lens, noise of the sensor."""
    x = np.linspace(-1, 1, scene.width, dtype=np.float32)
    y = np.linspace(-1, 1, scene.height, dtype=np.float32)[:, None]
    falloff = _as_image(1 - np.float32(rng.uniform(0, 0.2)) * (x * x + y * y))
    scene = ImageChops.multiply(scene, Image.merge("RGB", [falloff] * 3))
    gains = rng.uniform(0.93, 1.07, 3) * rng.uniform(1.2, 2.2)
    curves = 255 * (1 - np.exp(-gains[:, None] * np.linspace(0, 1, 256)))
    seen = scene.point(curves.astype(int).ravel().tolist())
    seen = seen.filter(ImageFilter.BoxBlur(float(rng.uniform(0.0, 0.25))))
    noise = _cut(look.grain, *scene.size, rng) * np.float32(rng.uniform(1, 7) / 255)
    grain = _as_image(noise + np.float32(128 / 255))
    return ImageChops.add(seen, Image.merge("RGB", [grain] * 3), offset=-128)
