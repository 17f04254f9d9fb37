"""NVIDIA's management library with a card that is not here."""

from types import SimpleNamespace


class NVMLError(Exception):
    pass


#: What each function of a card's handle answers, of the card's state by the names below.
_ANSWERS = {
    "Name": lambda state: "NVIDIA H200",
    "UtilizationRates": lambda state: SimpleNamespace(gpu=state("utilization"), memory=0),
    "MemoryInfo": lambda state: SimpleNamespace(used=state("memory_bytes"), total=80_000_000_000),
    "PowerUsage": lambda state: state("power_mw"),
    "EnforcedPowerLimit": lambda state: state("limit_mw"),
    "MaxPcieLinkGeneration": lambda state: 5,
    "MaxPcieLinkWidth": lambda state: 16,
    "MaxClockInfo": lambda state, clock: {1: 1980}[clock],
    "ApplicationsClock": lambda state, clock: {1: state("application_clock_mhz")}[clock],
    "ClockInfo": lambda state, clock: {1: state("sm_clock_mhz")}[clock],
    "TemperatureV": lambda state, sensor: {0: state("temperature_c")}[sensor],
    "TotalEnergyConsumption": lambda state: state("energy_mj"),
    "CurrentClocksEventReasons": lambda state: state("reasons"),
    "ViolationStatus": lambda state, policy: SimpleNamespace(
        violationTime=state("slowed_ns")[policy]
    ),
    "ComputeRunningProcesses": lambda state: [
        SimpleNamespace(pid=pid, usedGpuMemory=1) for pid in state("pids")
    ],
}


class ScriptedNvml:
    """One card, known by `uuid`. Attributes are its state; those named in `unsupported` raise."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, uuid="GPU-1"):
        self.uuid = uuid
        self.utilization, self.temperature_c = 97, 61
        self.memory_bytes = 3_000_000_000
        self.power_mw, self.limit_mw, self.energy_mj = 412_500, 700_000, 5_000_000
        self.sm_clock_mhz, self.application_clock_mhz = 1755, 1980
        self.reasons, self.slowed_ns = 0, {0: 0, 1: 0}
        self.pids = []
        self.unsupported = set()

    def _state(self, name):
        if name in self.unsupported:
            raise NVMLError("Not Supported")
        return getattr(self, name)

    def __getattr__(self, name):
        answer = _ANSWERS.get(name.removeprefix("nvmlDeviceGet"))
        if answer is None:
            raise AttributeError(name)

        def asked(handle, *given):
            assert handle == "card"
            return answer(self._state, *given)

        return asked

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return "580.95.05"

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return "card"

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid != self.uuid:
            raise NVMLError("Not Found")
        return "card"
