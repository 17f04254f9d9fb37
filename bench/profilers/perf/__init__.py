"""Linux's perf over the measured window: cycles, instructions, cache and branch misses, FLOP."""

from bench.profilers.perf.perf_obstacle import find_obstacle, paranoia
from bench.profilers.perf.perf_tool import PerfTool

__all__ = ["PerfTool", "find_obstacle", "paranoia"]
