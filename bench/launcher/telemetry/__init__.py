"""What the machine did while the worker measured, sampled by the launching process."""

from bench.launcher.telemetry.devices import device_source
from bench.launcher.telemetry.host import HostSource
from bench.launcher.telemetry.sampler import Devices, Reading, Sampler, Source

__all__ = ["Devices", "HostSource", "Reading", "Sampler", "Source", "device_source"]
