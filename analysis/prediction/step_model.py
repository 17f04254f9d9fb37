"""Time of a step over its batch size, from the terms of the roofline.

    t(b) = fixed + per_image * b

What a step costs once (launches, the optimizer's traffic over the parameters) and what each image
costs (its arithmetic and its traffic, each linear in the batch). The roof bounds the second from
below: no image can take less than the larger of its FLOP and its fused bytes at the peaks. With
arithmetic and traffic both linear in the batch, times alone cannot tell them apart, so they are one
term.

Fitted by least squares of relative errors, since a step of ten times the length is no less surely
measured; neither term is negative (nnls).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize


@dataclass(frozen=True)
class StepModel:
    """Seconds: once a step, and for each image."""

    fixed_s: float
    per_image_s: float

    def step_s(self, batch_size: float) -> float:
        """Return the time of a step of `batch_size` images."""
        return self.fixed_s + self.per_image_s * batch_size

    def images_per_s(self, batch_size: float) -> float:
        """Return the throughput at `batch_size`."""
        return batch_size / self.step_s(batch_size)


def fit_step(
    batch_sizes: Sequence[float], steps_s: Sequence[float], least_per_image_s: float = 0.0
) -> StepModel:
    """Fit the two terms; `least_per_image_s` is what the roof asks for each image.

    Needs two batch sizes. A roof that the measured steps outrun is left out: it is wrong.
    """
    batches, times = np.asarray(batch_sizes, dtype=float), np.asarray(steps_s, dtype=float)
    if np.any(least_per_image_s * batches > times):
        least_per_image_s = 0.0
    design = np.column_stack([np.ones_like(batches), batches]) / times[:, None]
    target = (times - least_per_image_s * batches) / times
    (fixed, above), _ = optimize.nnls(design, target)
    return StepModel(float(fixed), float(above) + least_per_image_s)


def leverage(
    batch_sizes: Sequence[float], steps_s: Sequence[float], at: float, at_s: float
) -> float:
    """Return x' (X'X)^-1 x of the relative fit: how far from the measured sizes `at` lies."""
    batches, times = np.asarray(batch_sizes, dtype=float), np.asarray(steps_s, dtype=float)
    design = np.column_stack([np.ones_like(batches), batches]) / times[:, None]
    place = np.array([1.0, at]) / at_s
    return float(place @ np.linalg.pinv(design.T @ design) @ place)
