"""Linux's perf: the processor's own counters."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

from bench.doctor.check import Check, ok
from bench.machine.probes import ROOT
from bench.profilers.perf import find_obstacle, paranoia


def perf_checks(root: Path = ROOT) -> Iterator[Check]:
    """Try what a profile would do with perf; where that fails, say why. Other systems have none."""
    if platform.system() != "Linux":
        return
    obstacle = find_obstacle(root)
    if obstacle is None:
        yield ok("perf", f"counts; perf_event_paranoid is {paranoia(root)}")
    else:
        yield Check("perf", "warning", obstacle.cause, obstacle.remedy)
