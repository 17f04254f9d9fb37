"""Time per op of a step, by PyTorch's own profiler, joined with the cost model's FLOP and bytes."""
