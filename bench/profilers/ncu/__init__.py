"""Nsight Compute: the hardware's counters of one step, kernel by kernel."""
