"""The cost of one training step: FLOP, bytes and memory of any model, from one fake step."""

from bench.cost.estimate import (
    DEFAULT_CACHE_BYTES,
    complexity_row,
    config_complexity,
    op_work,
    step_complexity,
)
from bench.cost.fake_step import StepSpec
from bench.records.complexity import CallWork

__all__ = [
    "DEFAULT_CACHE_BYTES",
    "CallWork",
    "StepSpec",
    "complexity_row",
    "config_complexity",
    "op_work",
    "step_complexity",
]
