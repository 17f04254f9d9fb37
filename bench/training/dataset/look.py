"""What the pictures of one class have in common: colours, textures, shapes.

Colours are RGB and planes float32, height x width, with 1.0 as white.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
