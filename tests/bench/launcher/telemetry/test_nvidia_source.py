import os

import pytest

from bench.launcher.telemetry import Sampler, device_source
from bench.launcher.telemetry.base import DEVICE_FACTS
from bench.launcher.telemetry.devices import GPU_SERIES, NvidiaSource
from bench.machine.probes import UnknownFactError
from bench.records.metrics import MEAN_SERIES

NOBODY = 4_000_000_000  # above every system's highest process id


IDLE = "import sys; print('on', flush=True); sys.stdin.read()"


@pytest.fixture
def worker(child):
    return child(IDLE)


def test_units_are_those_in_the_names(nvml, worker):
    reading = device_source("cuda", "GPU-1", worker.pid, nvml_opener=lambda: nvml).read()
    assert reading.values == {
        "gpu_utilization_percent": 97.0,
        "gpu_memory_used_mb": 3000.0,
        "gpu_power_w": 412.5,
        "gpu_sm_clock_mhz": 1755.0,
        "gpu_temperature_c": 61.0,
    }
    assert set(reading.values) <= set(MEAN_SERIES)  # each has a mean among the metrics
    assert reading.energy_j == 5000.0
    assert reading.throttle_reasons == frozenset()


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x04, {"SwPowerCap"}),
        (0x08, {"HwSlowdown"}),
        (0x20, {"SwThermal"}),
        (0x40, {"HwThermal"}),
        (0x80, {"PowerBrake"}),
        (0x200, {"BoardLimit"}),
        (0x400, {"Reliability"}),
        (0x04 | 0x40, {"SwPowerCap", "HwThermal"}),
        (0x01, set()),  # idle
        (0x02, {"ApplicationsClocksSetting"}),  # clocks that somebody chose
        (0x10 | 0x100, set()),
    ],
)
def test_throttle_bits_have_names(nvml, worker, bits, names):
    nvml.reasons = bits
    assert NvidiaSource(nvml, "GPU-1", worker.pid).read().throttle_reasons == names


def test_energy_and_throttling_of_a_window(nvml, worker, clock):
    sampler = Sampler(0.5, [], clock)
    sampler.add(NvidiaSource(nvml, "GPU-1", worker.pid))
    for step in range(8):  # 400 W; the power cap from the fifth sample on
        clock.now_s += 0.5
        nvml.energy_mj += 200_000
        nvml.reasons = 0x04 if step >= 4 else 0x01
        nvml.slowed_ns[0] += 400_000_000 if step >= 4 else 0
        sampler.sample()
    telemetry = sampler.telemetry(100.75, 103.75)
    assert telemetry.energy_j == pytest.approx(400 * 3.0)
    assert telemetry.throttle_share == {"SwPowerCap": pytest.approx(3 / 6)}
    assert telemetry.slowed_share == {"power": pytest.approx(3.5 * 0.4 / 3.0), "heat": 0.0}
    assert telemetry.foreign_processes == ()
    assert telemetry.missing == {}


def test_what_a_card_does_not_support_has_a_reason(nvml, worker, clock):
    nvml.unsupported = {"energy_mj", "reasons", "slowed_ns", "pids", "utilization"}
    sampler = Sampler(0.5, [], clock)
    sampler.add(NvidiaSource(nvml, "GPU-1", worker.pid))
    telemetry = sampler.telemetry(99.0, 101.0)
    for name in (*DEVICE_FACTS, "gpu_utilization_percent"):
        assert telemetry.missing[name] == "NVMLError: Not Supported"
    assert {one.name for one in telemetry.series} == set(GPU_SERIES[1:])


def test_older_drivers_are_asked_by_the_older_names(nvml, worker):
    nvml.unsupported = {"reasons", "temperature_c"}
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x08
    nvml.nvmlDeviceGetTemperature = lambda handle, sensor: 55
    reading = NvidiaSource(nvml, "GPU-1", worker.pid).read()
    assert reading.throttle_reasons == {"HwSlowdown"}
    assert reading.values["gpu_temperature_c"] == 55.0


def test_the_workers_own_processes_are_not_foreign(nvml, child):
    worker = child(
        "import subprocess, sys\n"
        "kin = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'])\n"
        "print(kin.pid, flush=True)\n"
        "sys.stdin.read()"
    )
    nvml.pids = [worker.pid, int(worker.first_line)]
    assert NvidiaSource(nvml, "GPU-1", worker.pid).foreign_processes() == ()


def test_neighbours_before_or_after_are_named(nvml, worker, child):
    neighbour = child(IDLE)
    nvml.pids = [worker.pid, neighbour.pid]
    source = NvidiaSource(nvml, "GPU-1", worker.pid)
    nvml.pids = [worker.pid, os.getpid()]
    found = source.foreign_processes()
    assert {line.split()[0] for line in found} == {str(neighbour.pid), str(os.getpid())}
    assert all("python" in line or "pytest" in line for line in found)


@pytest.mark.parametrize(
    ("afterwards", "found"), [([], ()), ([NOBODY], (f"{NOBODY} (of another container or user)",))]
)
def test_a_nameless_process_is_foreign_if_it_outlives_the_worker(nvml, worker, afterwards, found):
    # In a container NVML lists the host's process ids, the worker's own too, without names here.
    nvml.pids = [NOBODY]
    source = NvidiaSource(nvml, "GPU-1", worker.pid)
    assert source.foreign_processes() == ()
    worker.kill()
    worker.wait()
    nvml.pids = afterwards
    assert source.foreign_processes() == found


@pytest.mark.parametrize(
    ("uuid", "has_nvml", "reason"),
    [
        ("GPU-1", False, "NVML: NVML Shared Library Not Found"),
        ("GPU-2", True, "NVML knows no device GPU-2"),
        (None, True, "the device's UUID is unknown"),
    ],
)
def test_a_card_that_cannot_be_read_has_the_reason_in_every_series(
    nvml, worker, clock, uuid, has_nvml, reason
):
    def opened():
        if not has_nvml:
            raise UnknownFactError("NVML: NVML Shared Library Not Found")
        return nvml

    sampler = Sampler(0.5, [], clock)
    sampler.add(device_source("cuda", uuid, worker.pid, nvml_opener=opened))
    missing = sampler.telemetry(99.0, 101.0).missing
    assert missing == dict.fromkeys([*GPU_SERIES, *DEVICE_FACTS], reason)
