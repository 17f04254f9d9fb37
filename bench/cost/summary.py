"""A model's complexity as one flat row, per image where that has a meaning."""

from __future__ import annotations

from typing import Any

from bench.records import Complexity


def complexity_row(complexity: Complexity) -> dict[str, Any]:
    """Return the facts of `complexity` for JSON; whole numbers stay integers.

    Counts per image are whole where the images of a batch share nothing; they share the weights
    and their update. `bytes_per_image_min` is the fused traffic, `bytes_per_image_max` the eager.
    """

    def per_image(total: int) -> int | float:
        images, rest = divmod(total, complexity.batch_size)
        return total / complexity.batch_size if rest else images

    return {
        "arch": complexity.arch,
        "batch_size": complexity.batch_size,
        "image_size": complexity.image_size,
        "precision": complexity.precision,
        "math_mode": complexity.math_mode,
        "parameters": complexity.parameters,
        "activations_per_image": complexity.activations,
        "forward_macs_per_image": per_image(complexity.forward_macs),
        "step_flops_per_image": per_image(complexity.step_flops),
        "elementwise_flops_per_image": per_image(complexity.elementwise_flops),
        "bytes_per_image_min": per_image(complexity.fused_bytes),
        "bytes_per_image_max": per_image(complexity.eager_bytes),
        "bytes_per_image_compulsory": per_image(complexity.compulsory_bytes),
        "cache_bytes": complexity.cache_bytes,
        "intensity_min": complexity.intensity_min,
        "intensity_max": complexity.intensity_max,
        **complexity.memory.model_dump(),
        "method": complexity.method,
    }
