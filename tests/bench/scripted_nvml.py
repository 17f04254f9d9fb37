"""NVIDIA's management library with a card that is not here."""

from types import SimpleNamespace


class NVMLError(Exception):
    pass


class ScriptedNvml:
    """One card, known by `uuid`. Attributes are its state; those named in `unsupported` raise."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, uuid="GPU-1"):
        self.uuid = uuid
        self.utilization = 97
        self.memory_bytes = 3_000_000_000
        self.power_mw = 412_500
        self.limit_mw = 700_000
        self.sm_clock_mhz = 1755
        self.application_clock_mhz = 1980
        self.temperature_c = 61
        self.energy_mj = 5_000_000
        self.reasons = 0
        self.slowed_ns = {0: 0, 1: 0}
        self.pids = []
        self.unsupported = set()

    def _value(self, name, handle):
        assert handle == "card"
        if name in self.unsupported:
            raise NVMLError("Not Supported")
        return getattr(self, name)

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return "580.95.05"

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid != self.uuid:
            raise NVMLError("Not Found")
        return "card"

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        return SimpleNamespace(gpu=self._value("utilization", handle), memory=0)

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return SimpleNamespace(used=self._value("memory_bytes", handle), total=80_000_000_000)

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        return self._value("power_mw", handle)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):  # noqa: N802
        return self._value("limit_mw", handle)

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle):  # noqa: N802
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle):  # noqa: N802
        return 16

    def nvmlDeviceGetMaxClockInfo(self, handle, clock):  # noqa: N802
        assert (handle, clock) == ("card", self.NVML_CLOCK_SM)
        return 1980

    def nvmlDeviceGetApplicationsClock(self, handle, clock):  # noqa: N802
        assert clock == self.NVML_CLOCK_SM
        return self._value("application_clock_mhz", handle)

    def nvmlDeviceGetClockInfo(self, handle, clock):  # noqa: N802
        assert clock == self.NVML_CLOCK_SM
        return self._value("sm_clock_mhz", handle)

    def nvmlDeviceGetTemperatureV(self, handle, sensor):  # noqa: N802
        assert sensor == self.NVML_TEMPERATURE_GPU
        return self._value("temperature_c", handle)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        return self._value("energy_mj", handle)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):  # noqa: N802
        return self._value("reasons", handle)

    def nvmlDeviceGetViolationStatus(self, handle, policy):  # noqa: N802
        return SimpleNamespace(violationTime=self._value("slowed_ns", handle)[policy])

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=1) for pid in self._value("pids", handle)]
