"""Hardware counters: Nsight Compute's files, read into records."""

from bench.profilers.files.read import read_counters, read_counters_of

__all__ = ["read_counters", "read_counters_of"]
