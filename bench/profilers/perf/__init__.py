"""Linux's perf over the measured window: cycles, instructions, cache and branch misses, FLOP."""
