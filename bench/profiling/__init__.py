"""Looks inside one training step: ncu, perf and PyTorch's profiler, each a tool of its own."""
