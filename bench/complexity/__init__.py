"""The cost of one training step: FLOP, bytes and memory of any model, from one fake step."""

from bench.complexity.estimate import DEFAULT_CACHE_BYTES, step_complexity

__all__ = ["DEFAULT_CACHE_BYTES", "step_complexity"]
