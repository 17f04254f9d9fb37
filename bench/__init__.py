"""Measures how fast a device trains a neural network, each time in a fresh process.

    from bench import RunConfig, measure
    record = measure(RunConfig(arch="resnet18", batch_size=16))

Every name is imported when it is first used: `import bench.errors` costs nothing more.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.config import RunConfig
    from bench.cost.estimate import count_step
    from bench.errors import UserError
    from bench.launcher.measurement import measure, measure_roofs
    from bench.records import CeilingsRecord, RunRecord
    from bench.records.folders import read_records

__all__ = [
    "CeilingsRecord",
    "RunConfig",
    "RunRecord",
    "UserError",
    "count_step",
    "measure",
    "measure_roofs",
    "read_records",
]
_MODULES = {
    "CeilingsRecord": "bench.records",
    "RunConfig": "bench.config",
    "RunRecord": "bench.records",
    "UserError": "bench.errors",
    "count_step": "bench.cost.estimate",
    "measure": "bench.launcher.measurement",
    "measure_roofs": "bench.launcher.measurement",
    "read_records": "bench.records.folders",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
