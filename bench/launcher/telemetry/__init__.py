"""What the machine did while the worker measured, sampled by the launching process."""

from bench.launcher.telemetry.devices import HostSource, device_source
from bench.launcher.telemetry.sampler import Devices, Reading, Sampler, Source
