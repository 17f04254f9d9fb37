"""What the machine did while the worker measured, sampled by the launching process."""

from bench.launcher.telemetry.base import Reading, Source
from bench.launcher.telemetry.devices import SeveralDevices, device_source
from bench.launcher.telemetry.host import HostSource
from bench.launcher.telemetry.sampler import Sampler

__all__ = ["HostSource", "Reading", "Sampler", "SeveralDevices", "Source", "device_source"]
