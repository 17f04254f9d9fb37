"""One photograph-like JPEG: a scene seen through a camera, at the sizes that ImageNet has."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageChops, ImageFilter

from bench.training.dataset.look import ClassLook
from bench.training.dataset.scene import as_image, cut, draw_scene

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
    picture = _develop(draw_scene(look, width, height, rng), look, rng)
    file = io.BytesIO()
    quality = int(rng.choice(QUALITIES))
    picture.save(file, "JPEG", quality=quality, subsampling=CHROMA_420)
    return file.getvalue()


def _develop(scene: Image.Image, look: ClassLook, rng: np.random.Generator) -> Image.Image:
    """The camera: light falling off, exposure and colour cast, lens, noise of the sensor."""
    x = np.linspace(-1, 1, scene.width, dtype=np.float32)
    y = np.linspace(-1, 1, scene.height, dtype=np.float32)[:, None]
    falloff = as_image(1 - np.float32(rng.uniform(0, 0.2)) * (x * x + y * y))
    scene = ImageChops.multiply(scene, Image.merge("RGB", [falloff] * 3))
    gains = rng.uniform(0.93, 1.07, 3) * rng.uniform(1.2, 2.2)
    curves = 255 * (1 - np.exp(-gains[:, None] * np.linspace(0, 1, 256)))
    seen = scene.point(curves.astype(int).ravel().tolist())
    seen = seen.filter(ImageFilter.BoxBlur(float(rng.uniform(0.0, 0.25))))
    noise = cut(look.grain, *scene.size, rng) * np.float32(rng.uniform(1, 7) / 255)
    grain = as_image(noise + np.float32(128 / 255))
    return ImageChops.add(seen, Image.merge("RGB", [grain] * 3), offset=-128)
