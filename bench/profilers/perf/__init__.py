"""Linux's perf over the measured window: cycles, instructions, cache and branch misses, FLOP."""

from bench.profilers.perf.tool import PerfTool, find_obstacle
