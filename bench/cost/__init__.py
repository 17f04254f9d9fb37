"""The cost of one training step: FLOP, bytes and memory of any model, from one fake step.

What counts a step imports torch when it is first used; a cost that was counted before needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.cost.cached import DEFAULT_CACHE_BYTES, StepSpec, cached_complexity, config_complexity
from bench.records.complexity import CallWork

if TYPE_CHECKING:
    from bench.cost.estimate import op_work, step_complexity

__all__ = [
    "DEFAULT_CACHE_BYTES",
    "CallWork",
    "StepSpec",
    "cached_complexity",
    "config_complexity",
    "op_work",
    "step_complexity",
]


def __getattr__(name: str) -> Any:
    if name not in ("op_work", "step_complexity"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bench.cost import estimate

    return getattr(estimate, name)
