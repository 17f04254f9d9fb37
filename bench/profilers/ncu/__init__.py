"""Nsight Compute: the hardware's counters of one step, kernel by kernel."""

from bench.profilers.ncu.tool import NcuTool
