"""The cost of one training step: FLOP, bytes and memory of any model, from one fake step."""

from bench.complexity.estimate import DEFAULT_CACHE_BYTES, step_complexity
from bench.complexity.summary import complexity_row

__all__ = ["DEFAULT_CACHE_BYTES", "complexity_row", "step_complexity"]
