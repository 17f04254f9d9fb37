"""The hardware a step runs on: one file per backend beside their common protocol."""

from bench.training.devices.base import Device, IterationTimer
from bench.training.devices.select import open_device

__all__ = ["Device", "IterationTimer", "open_device"]
