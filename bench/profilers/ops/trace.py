"""One step under torch.profiler, read from the trace that it exports.

The trace's format has been stable for years, is what every viewer reads, and is the one place that
tells the bytes of a copy. An event of it is a JSON object: `ph` "X" for an interval, `cat` its
kind, `ts` and `dur` in microseconds, `tid` the thread, and in `args` the input shapes and the
`External id` by which a kernel names the op that launched it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from bench.training.devices import Device

Event = dict[str, Any]


def traced(
    step: Callable[[], object], device: Device, *, host: bool = True, shapes: bool = True
) -> list[Event]:
    """Run `step` once under torch.profiler, up to the device's last kernel; return the intervals.

    `host` False leaves the ops out where the device has kernels, which costs the step less.
    """
    activities = [ProfilerActivity.CPU]
    if device.backend == "cuda":
        activities = [ProfilerActivity.CUDA, *(activities if host else ())]
    else:
        # The profiler of a torch made for CUDA complains where there is none; read when it starts.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=activities, record_shapes=shapes) as profiler:
        step()
        device.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        # Names of kernels may hold control characters.
        trace = json.loads(file.read_text(encoding="utf-8", errors="replace"), strict=False)
    return [event for event in trace["traceEvents"] if event.get("ph") == "X"]
