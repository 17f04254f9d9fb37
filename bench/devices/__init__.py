"""The hardware a step runs on: one file per backend beside their common protocol."""

from bench.devices.base import Device, IterationTimer
from bench.devices.select import open_device

__all__ = ["Device", "IterationTimer", "open_device"]
