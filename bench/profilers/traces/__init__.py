"""Reads what profilers traced here or elsewhere: intervals on the host and on devices."""

from bench.profilers.traces.range_counters import counter_totals, read_counters
from bench.profilers.traces.read import read_trace
from bench.profilers.traces.trace import CounterRange, DeviceSpan, HostSpan, Trace

__all__ = [
    "CounterRange",
    "DeviceSpan",
    "HostSpan",
    "Trace",
    "counter_totals",
    "read_counters",
    "read_trace",
]
