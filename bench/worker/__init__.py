"""What runs inside the worker process: it composes device, model, data and window."""

from bench.worker.ceilings import measure_roofs
from bench.worker.measurement import measure

__all__ = ["measure", "measure_roofs"]
