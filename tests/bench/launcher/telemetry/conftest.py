"""A scripted clock, and a graphics card that says what the test wants."""

from types import SimpleNamespace

import pytest
from fakes import ScriptedClock


class NVMLError(Exception):
    pass


class ScriptedNvml:
    """One card, `GPU-1`. Attributes are its state; those named in `unsupported` raise."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    def __init__(self):
        self.utilization = 97
        self.memory_bytes = 3_000_000_000
        self.power_mw = 412_500
        self.sm_clock_mhz = 1755
        self.temperature_c = 61
        self.energy_mj = 5_000_000
        self.reasons = 0
        self.slowed_ns = {0: 0, 1: 0}
        self.pids = []
        self.unsupported = set()

    def _value(self, name):
        if name in self.unsupported:
            raise NVMLError("Not Supported")
        return getattr(self, name)

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid != "GPU-1":
            raise NVMLError("Not Found")
        return "card"

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        return SimpleNamespace(gpu=self._value("utilization"), memory=0)

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return SimpleNamespace(used=self._value("memory_bytes"), total=80_000_000_000)

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        return self._value("power_mw")

    def nvmlDeviceGetClockInfo(self, handle, clock):  # noqa: N802
        assert clock == self.NVML_CLOCK_SM
        return self._value("sm_clock_mhz")

    def nvmlDeviceGetTemperatureV(self, handle, sensor):  # noqa: N802
        assert sensor == self.NVML_TEMPERATURE_GPU
        return self._value("temperature_c")

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        return self._value("energy_mj")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):  # noqa: N802
        return self._value("reasons")

    def nvmlDeviceGetViolationStatus(self, handle, policy):  # noqa: N802
        return SimpleNamespace(violationTime=self._value("slowed_ns")[policy])

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=1) for pid in self._value("pids")]


@pytest.fixture
def clock():
    return ScriptedClock()


@pytest.fixture
def nvml():
    return ScriptedNvml()
