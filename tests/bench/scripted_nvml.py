"""NVIDIA's management library with a card that is not here."""

import ctypes
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


class ScriptedDriver:
    """The driver's library behind the real `pynvml`, of one GPU; functions are called as in C.

    `rates` are what GPM says of any two samples, by metric id; `refused` has an error by function.
    """

    def __init__(self, pynvml):
        self.nvml = pynvml
        self.supported, self.slices, self.is_slice = 1, None, 0
        self.memory_mhz, self.bus_bits = 2619, 5120  # of an H100 SXM
        self.rates, self.errors, self.refused = {}, {}, {}
        self.taken, self.freed, self.pairs = [], [], []

    def __getattr__(self, name):
        if (code := self.refused.get(name)) is None:
            raise AttributeError(name)  # a driver that is older than the function
        return lambda *_: code

    def nvmlDeviceIsMigDeviceHandle(self, card, answer):  # noqa: N802
        answer._obj.value = self.is_slice
        return 0

    def nvmlDeviceGetMigMode(self, card, now, pending):  # noqa: N802
        if self.slices is None:
            return self.nvml.NVML_ERROR_NOT_SUPPORTED
        now._obj.value = pending._obj.value = self.slices
        return 0

    def nvmlDeviceGetMemoryBusWidth(self, card, answer):  # noqa: N802
        answer._obj.value = self.bus_bits
        return 0

    def nvmlDeviceGetClockInfo(self, card, kind, answer):  # noqa: N802
        assert kind.value == self.nvml.NVML_CLOCK_MEM
        answer._obj.value = self.memory_mhz
        return 0


class ScriptedGpm(ScriptedDriver):
    """A driver that has GPM's functions."""

    def __getattribute__(self, name):
        refused = super().__getattribute__("__dict__").get("refused", {})
        return (lambda *_: refused[name]) if name in refused else super().__getattribute__(name)

    def nvmlGpmQueryDeviceSupport(self, card, answer):  # noqa: N802
        assert answer._obj.version == self.nvml.NVML_GPM_SUPPORT_VERSION
        answer._obj.isSupportedDevice = self.supported
        return 0

    def nvmlGpmSampleAlloc(self, answer):  # noqa: N802
        kind = self.nvml.struct_c_nvmlGpmSample_t
        answer._obj.contents = kind()
        return 0

    def nvmlGpmSampleFree(self, sample):  # noqa: N802
        self.freed.append(address(sample))
        return 0

    def nvmlGpmSampleGet(self, card, sample):  # noqa: N802
        self.taken.append(address(sample))
        return 0

    def nvmlGpmMetricsGet(self, asked):  # noqa: N802
        asked = asked._obj
        assert asked.version == self.nvml.NVML_GPM_METRICS_GET_VERSION
        self.pairs.append((address(asked.sample1), address(asked.sample2)))
        for metric in asked.metrics[: asked.numMetrics]:
            metric.value = self.rates.get(metric.metricId, 0.0)
            metric.nvmlReturn = self.errors.get(metric.metricId, 0)
        return 0


def address(sample):
    return ctypes.cast(sample, ctypes.c_void_p).value
