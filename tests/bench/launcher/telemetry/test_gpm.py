"""What a GPU counts of itself, through the real pynvml and its structures, by a scripted driver."""

import gc
import math

import pynvml
import pytest
from scripted_nvml import ScriptedDriver, ScriptedGpm

from bench.errors import Unknown
from bench.launcher.telemetry import Devices, Reading, Sampler, Source
from bench.machine import UnknownFactError, probe
from bench.machine.gpu_drivers import GPM_SERIES, GpmCounters
from bench.records.metrics import MEAN_SERIES

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
