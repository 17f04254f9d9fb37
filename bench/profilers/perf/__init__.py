"""Linux's perf over the measured window: cycles, instructions, cache and branch misses, FLOP."""

from bench.profilers.perf.obstacle import find_obstacle
from bench.profilers.perf.tool import PerfTool

__all__ = ["PerfTool", "find_obstacle"]
