"""What the machine did while the worker measured, sampled by the launching process."""

from bench.telemetry.base import Reading, Source
from bench.telemetry.host import HostSource
from bench.telemetry.sampler import Sampler
from bench.telemetry.select import device_source
from bench.telemetry.several import SeveralDevices

__all__ = ["HostSource", "Reading", "Sampler", "SeveralDevices", "Source", "device_source"]
