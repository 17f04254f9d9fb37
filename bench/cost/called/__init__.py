"""The work of single ops that someone else's profiler printed, from what they were given."""

from bench.cost.called.called_ops import work_of

__all__ = ["work_of"]
