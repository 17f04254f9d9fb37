"""Time per op of a training step, joined with the cost model's FLOP and bytes of the same op."""

from bench.profiling.ops.profile import profile_ops
from bench.profiling.ops.tool import TorchTool

__all__ = ["TorchTool", "profile_ops"]
