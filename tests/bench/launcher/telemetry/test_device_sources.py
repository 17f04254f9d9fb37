"""What NVML, amdsmi and RAPL say, in the units of the names, and what they do not say."""

import gc
import math
import os
from unittest.mock import Mock

import pynvml
import pytest
from scripted_nvml import ScriptedDriver, ScriptedGpm, ScriptedNvml
from scripted_smi import ScriptedSmi

from bench.errors import Unknown
from bench.launcher.telemetry import Devices, Reading, Sampler, Source
from bench.launcher.telemetry.devices import GPU_SERIES, RaplSource, device_source
from bench.machine import UnknownFactError, gpu_drivers, probe
from bench.machine.gpu_drivers import GPM_SERIES, GpmCounters
from bench.records.metrics import MEAN_SERIES

DEVICE_FACTS = ("energy_j", "throttle_share", "slowed_share", "foreign_processes", "dram_bytes")
NO_GPM = "AttributeError: nvmlGpmQueryDeviceSupport"
NOBODY = 4_000_000_000  # above every system's highest process id
SHARE = "gpu_dram_bandwidth_percent"
IDLE = "import sys; print('on', flush=True); sys.stdin.read()"


@pytest.fixture
def worker(child):
    return child(IDLE)


@pytest.fixture
def nvidia(nvml, worker):
    return device_source("cuda", "GPU-1", worker.pid)


def seen(clock, source, between=lambda: None):
    """Telemetry of 3 s around which the source is read once a second."""
    sampler = Sampler(0.5, [source], clock)
    for _ in range(5):
        sampler.sample_now()
        clock.now_s += 1.0
        between()
    return sampler.telemetry(100.5, 103.5)


def test_nvmls_units_are_those_in_the_names(nvidia):
    reading = nvidia.read()
    assert reading.values == {
        "gpu_utilization_percent": 97.0,
        "gpu_memory_used_mb": 3000.0,
        "gpu_power_w": 412.5,
        "gpu_sm_clock_mhz": 1755.0,
        "gpu_temperature_c": 61.0,
    }
    assert set(reading.values) <= set(MEAN_SERIES)  # each has a mean among the metrics
    assert (reading.energy_j, reading.throttle_reasons) == (5000.0, frozenset())


def test_throttle_bits_have_names_and_older_drivers_are_asked_by_the_older_ones(nvml, nvidia):
    nvml.reasons = 0x04 | 0x08 | 0x20 | 0x40 | 0x80 | 0x200 | 0x400 | 0x02
    names = {"SwPowerCap", "HwSlowdown", "SwThermal", "HwThermal", "PowerBrake", "BoardLimit"}
    names |= {"Reliability", "ApplicationsClocksSetting"}  # clocks that somebody chose
    assert nvidia.read().throttle_reasons == names
    nvml.reasons = 0x40 | 0x01 | 0x10 | 0x100  # idle, and what is no limit
    assert nvidia.read().throttle_reasons == {"HwThermal"}
    nvml.unsupported = {"reasons", "temperature_c"}
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x08
    nvml.nvmlDeviceGetTemperature = lambda handle, sensor: 55
    reading = nvidia.read()
    assert reading.throttle_reasons == {"HwSlowdown"}
    assert reading.values["gpu_temperature_c"] == 55.0


def test_energy_and_throttling_of_a_window(nvml, nvidia, clock):
    def a_second_of_400_w_and_a_cap_of_the_power():
        nvml.energy_mj += 400_000
        nvml.slowed_ns[0] += 800_000_000
        nvml.reasons = 0x04

    telemetry = seen(clock, nvidia, a_second_of_400_w_and_a_cap_of_the_power)
    assert telemetry.energy_j == pytest.approx(400 * 3.0)
    assert telemetry.throttle_share == {"SwPowerCap": 1.0}
    assert telemetry.slowed_share == {"power": pytest.approx(0.8), "heat": 0.0}
    assert telemetry.foreign_processes == ()
    assert telemetry.missing == {"dram_bytes": NO_GPM}


def test_what_a_card_does_not_support_has_a_reason(nvml, worker, clock):
    nvml.unsupported = {"energy_mj", "reasons", "slowed_ns", "pids", "utilization"}
    source = device_source("cuda", "GPU-1", worker.pid)
    telemetry = seen(clock, source)
    for name in (*DEVICE_FACTS[:-1], "gpu_utilization_percent"):
        assert telemetry.missing[name] == "NVMLError: Not Supported"
    assert {one.name for one in telemetry.series} == set(GPU_SERIES[1:])


def test_what_a_gpu_counts_of_itself_stands_beside_the_rest(nvml, worker, clock, monkeypatch):
    counted = Mock(side_effect=[UnknownFactError("GPM: too soon"), ({SHARE: 50.0}, 3e9)])
    monkeypatch.setattr(gpu_drivers, "GpmCounters", lambda *_: Mock(read=counted))
    source = device_source("cuda", "GPU-1", worker.pid)
    first, second = source.read(), source.read()
    assert first.dram_bytes.reason == "GPM: too soon"
    assert set(first.values) == set(GPU_SERIES)
    assert (second.dram_bytes, second.values[SHARE], second.values["gpu_power_w"]) == (
        *(3e9, 50.0),
        412.5,
    )


def test_neighbours_before_or_after_are_named_and_the_workers_own_are_not(nvml, child):
    worker = child(
        "import subprocess, sys\n"
        "kin = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'])\n"
        "print(kin.pid, flush=True)\n"
        "sys.stdin.read()"
    )
    neighbour = child(IDLE)
    own = [worker.pid, int(worker.first_line)]
    nvml.pids = [*own, neighbour.pid]
    source = device_source("cuda", "GPU-1", worker.pid)
    nvml.pids = [*own, os.getpid()]
    found = source.foreign_processes()
    assert {line.split()[0] for line in found} == {str(neighbour.pid), str(os.getpid())}
    assert all("python" in line or "pytest" in line for line in found)


@pytest.mark.parametrize(
    ("afterwards", "found"), [([], ()), ([NOBODY], (f"{NOBODY} (of another container or user)",))]
)
def test_a_nameless_process_is_foreign_if_it_outlives_the_worker(nvml, worker, afterwards, found):
    # In a container NVML lists the host's process ids, the worker's own too, without names here.
    nvml.pids = [NOBODY]
    source = device_source("cuda", "GPU-1", worker.pid)
    assert source.foreign_processes() == ()
    worker.kill()
    worker.wait()
    nvml.pids = afterwards
    assert source.foreign_processes() == found


AMD_DEVICES = {"0x0000000000000007": "first", "0x00b8d7a35f2c9e04": "it"}
AMD = "AMD-00b8d7a35f2c9e04"


def test_an_amd_card_is_read_in_the_units_of_the_names(library, clock):
    smi = ScriptedSmi(AMD_DEVICES)

    def a_second_of_612_w():
        smi.energy += 40_000_000  # of 15.3 microjoules

    library("amdsmi", lambda: smi)
    source = device_source("cuda", AMD, 1)
    telemetry = seen(clock, source, a_second_of_612_w)
    assert {one.name: one.values[0] for one in telemetry.series} == {
        "gpu_utilization_percent": 98.0,
        "gpu_memory_used_mb": pytest.approx(1048.576),
        "gpu_power_w": 612.0,
        "gpu_sm_clock_mhz": 1900.0,
        "gpu_temperature_c": 71.0,
    }
    assert telemetry.energy_j == pytest.approx(3 * 612)
    assert telemetry.missing == dict.fromkeys(DEVICE_FACTS[1:], "not read from AMD GPUs")
    smi.lacking = {"current_socket_power", "energy_accumulator"}
    clock.now_s = 100.0
    missing = seen(clock, source).missing
    assert "N/A" in missing["gpu_power_w"]
    assert "N/A" in missing["energy_j"]


@pytest.mark.parametrize(
    ("uuid", "opened", "reason"),
    [
        ("GPU-1", Mock(side_effect=UnknownFactError("not installed")), "not installed"),
        ("GPU-2", ScriptedNvml, "NVML knows no device GPU-2"),
        (None, ScriptedNvml, "the device's UUID is unknown"),
        (AMD, lambda: ScriptedSmi({}), f"amdsmi knows no device {AMD}"),
        (AMD, Mock(side_effect=RuntimeError("no permission")), "RuntimeError: no permission"),
    ],
)
def test_a_card_that_cannot_be_read_has_the_reason_in_every_series(
    library, worker, clock, uuid, opened, reason
):
    library("amdsmi" if uuid == AMD else "nvml", opened)
    missing = seen(clock, device_source("cuda", uuid, worker.pid)).missing
    assert missing == dict.fromkeys([*GPU_SERIES, *DEVICE_FACTS], reason)


RANGE_UJ = 262_143_328_850


@pytest.fixture
def packages(tree):
    """Two packages, and the zones that would count the same energy again."""
    zones = {
        "intel-rapl:0": "package-0",
        "intel-rapl:1": "package-1",
        "intel-rapl:0:0": "core",
        "intel-rapl:2": "psys",
        "intel-rapl-mmio:0": "package-0",
    }
    for zone, name in zones.items():
        files = {"name": name, "max_energy_range_uj": RANGE_UJ, "energy_uj": 1_000_000}
        tree({f"sys/class/powercap/{zone}/{file}": f"{text}\n" for file, text in files.items()})
    return lambda zone, energy_uj: tree({f"sys/class/powercap/{zone}/energy_uj": f"{energy_uj}\n"})


def test_packages_add_up_nothing_counts_twice_and_a_counter_wraps_around(packages, clock):
    write = packages
    write("intel-rapl:1", RANGE_UJ - 4_000_000)
    source = RaplSource(clock)
    assert source.read().values == {}
    write("intel-rapl:0", 1_000_000 + 30_000_000)
    write("intel-rapl:1", 16_000_000)
    for other in ("intel-rapl:0:0", "intel-rapl:2", "intel-rapl-mmio:0"):
        write(other, 1_000_000 + 99_000_000)
    clock.now_s += 2.0
    reading = source.read()
    assert reading.energy_j == pytest.approx(50.0)
    assert reading.values == {"cpu_package_power_w": pytest.approx(25.0)}
    assert reading.throttle_reasons == reading.slowed_s == Unknown("not read for CPUs")
    root = write("intel-rapl:1", 17_000_000)
    assert source.read().energy_j == pytest.approx(51.0)
    source = device_source("cpu", None, os.getpid())
    assert isinstance(source, RaplSource)
    counter = root / "sys/class/powercap/intel-rapl:0/energy_uj"
    telemetry = seen(clock, source, lambda: counter.unlink(missing_ok=True))
    assert "No such file" in telemetry.missing["energy_j"]  # it closed during the run


@pytest.mark.parametrize(
    ("backend", "energy", "rest"),
    [
        ("cpu", "the kernel shows no RAPL energy counter", "no NVIDIA device in this run"),
        ("mps", *["Apple shows its GPU's energy and clocks to root only (powermetrics)"] * 2),
    ],
)
def test_a_device_that_tells_nothing_has_reasons(clock, tree, backend, energy, rest):
    missing = seen(clock, device_source(backend, None, os.getpid())).missing
    assert missing == {**dict.fromkeys(DEVICE_FACTS, rest), "energy_j": energy}


# What a GPU counts of itself, through the real pynvml, by a scripted driver


CARD = pynvml.c_nvmlDevice_t()
PEAK = 2 * 2619e6 * 5120 / 8  # 3.352e12 B/s, an H100's datasheet says 3350 GB/s


@pytest.fixture
def driver(monkeypatch):
    """Return a function that puts a library in the place of the driver's."""

    def install(kind=ScriptedGpm):
        library = kind(pynvml)
        monkeypatch.setattr(pynvml, "nvmlLib", library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return library

    return install


class Gpm(Source):
    """GPM alone, as a GPU's source has it."""

    measures_device = True

    def __init__(self, clock):
        self.gpm = GpmCounters(pynvml, CARD, clock)

    def read(self):
        counted = probe(self.gpm.read)
        series, dram_bytes = ({}, counted) if isinstance(counted, Unknown) else counted
        return Reading(series, dram_bytes=dram_bytes)


def test_shares_are_in_percent_and_traffic_in_megabytes(driver, clock):
    library = driver()
    library.rates = {5: 41.5, 10: 55.0, 12: 7.0, 20: 100.0, 60: 1000.0}
    gpm = GpmCounters(pynvml, CARD, clock)
    clock.now_s += 2.0
    series, dram_bytes = gpm.read()
    assert series == dict.fromkeys(GPM_SERIES, 0.0) | {
        "gpu_tensor_active_percent": 41.5,
        "gpu_dram_bandwidth_percent": 55.0,
        "gpu_fp32_active_percent": 7.0,
        "gpu_pcie_sent_mb_per_s": pytest.approx(104.8576),  # 100 MiB/s
        "gpu_nvlink_received_mb_per_s": pytest.approx(1048.576),
    }
    assert dram_bytes == pytest.approx(0.55 * PEAK * 2)
    assert set(series) <= set(MEAN_SERIES)  # each has a mean among the metrics


def test_each_reading_is_of_the_time_since_the_one_before(driver, clock):
    library = driver()
    gpm = GpmCounters(pynvml, CARD, clock)
    total = 0.0
    for share, seconds, mhz in ((50.0, 1.0, 2619), (100.0, 0.5, 2619), (10.0, 2.0, 1000)):
        library.rates, library.memory_mhz = {10: share}, mhz
        clock.now_s += seconds
        total += share / 100 * seconds * 2e6 * mhz * 640
        assert gpm.read()[1] == pytest.approx(total)
    first, second, third = library.pairs
    assert first[0] != first[1]
    assert second == first[::-1]
    assert third == first
    assert library.taken == [first[0], first[1], second[1], third[1]]
    del gpm
    gc.collect()
    assert sorted(library.freed) == sorted(first)


def test_a_reading_that_fails_loses_no_bytes(driver, clock):
    library = driver()
    library.rates = {10: 50.0}
    gpm = GpmCounters(pynvml, CARD, clock)
    clock.now_s += 0.05
    with pytest.raises(UnknownFactError, match=r"over 0\.1 s apart"):
        gpm.read()
    clock.now_s += 0.95
    library.rates = {10: math.nan}
    with pytest.raises(UnknownFactError, match="nan"):
        gpm.read()
    library.rates, library.errors = {10: 50.0}, {61: pynvml.NVML_ERROR_NOT_SUPPORTED}
    clock.now_s += 1.0
    series, dram_bytes = gpm.read()
    assert dram_bytes == pytest.approx(0.5 * PEAK * 2.0)
    assert series["gpu_nvlink_sent_mb_per_s"].reason == "GPM: error 3, value 0.0"
    assert series["gpu_dram_bandwidth_percent"] == 50.0


def test_bytes_of_a_window_are_interpolated_at_its_ends(driver, clock):
    library = driver()
    library.rates = {10: 40.0}
    sampler = Sampler(0.5, [Gpm(clock)], clock)
    for second in range(6):
        library.rates = {10: 40.0 if second < 3 else 80.0}
        clock.now_s += 1.0
        sampler.sample_now()
    begin_s = clock.now_s - 5.0  # a reading is at begin_s, and each second after it
    telemetry = sampler.telemetry(begin_s + 0.5, begin_s + 4.5)
    # half a second and one at 40 %, and two and a half at 80 %
    assert telemetry.dram_bytes == pytest.approx((1.5 * 0.4 + 2.5 * 0.8) * PEAK)
    assert telemetry.mean("gpu_dram_bandwidth_percent") == pytest.approx((40 + 40 + 80 + 80) / 4)


def test_of_several_devices_the_bytes_add_up_and_one_without_leaves_them_unknown(driver, clock):
    driver().rates = {10: 50.0}
    both = Devices()
    for rank in (0, 1):
        both.join(rank, Gpm(clock))
    clock.now_s += 1.0
    assert both.read().dram_bytes == pytest.approx(PEAK)
    both.join(1, Source())
    clock.now_s += 1.0
    assert isinstance(both.read().dram_bytes, Unknown)


HAVE = " (GPUs from Hopper on have it, drivers from 520 on)"
UNSUPPORTED = {
    "Ampere": ({"supported": 0}, "GPM: Not Supported" + HAVE),
    "a slice": ({"is_slice": 1}, "GPM: not read from a GPU in slices (MIG)"),
    "a GPU in slices": ({"slices": 1}, "GPM: not read from a GPU in slices (MIG)"),
    "no rights": (
        {"refused": {"nvmlGpmSampleGet": pynvml.NVML_ERROR_NO_PERMISSION}},
        "GPM: Insufficient Permissions" + HAVE,
    ),
    "a vGPU": (
        {"refused": {"nvmlGpmQueryDeviceSupport": pynvml.NVML_ERROR_NOT_SUPPORTED}},
        "GPM: Not Supported" + HAVE,
    ),
    "a driver too old": (None, "GPM: Function Not Found" + HAVE),
}


@pytest.mark.parametrize(("state", "reason"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_a_device_without_it_gives_one_reason(driver, clock, state, reason):
    vars(driver(ScriptedDriver if state is None else ScriptedGpm)).update(state or {})
    with pytest.raises(UnknownFactError) as raised:
        GpmCounters(pynvml, CARD, clock)
    assert str(raised.value) == reason
