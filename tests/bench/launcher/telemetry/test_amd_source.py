import pytest
from scripted_smi import ScriptedSmi

from bench.launcher.telemetry import Sampler, device_source
from bench.launcher.telemetry.devices import GPU_SERIES
from bench.machine.probes import UnknownFactError

DEVICES = {"0x0000000000000007": "first", "0x00b8d7a35f2c9e04": "it"}
UUID = "AMD-00b8d7a35f2c9e04"


def test_an_amd_card_is_read_in_the_units_of_the_names(clock):
    smi = ScriptedSmi(DEVICES)
    sampler = Sampler(0.5, [device_source("cuda", UUID, 1, smi_opener=lambda: smi)], clock)
    for _ in range(5):
        sampler.sample_now()
        clock.now_s += 1.0
        smi.energy += 40_000_000  # of 15.3 microjoules: 612 W
    telemetry = sampler.telemetry(100.5, 103.5)
    seen = {one.name: one.values[0] for one in telemetry.series}
    assert seen == {
        "gpu_utilization_percent": 98.0,
        "gpu_memory_used_mb": pytest.approx(1048.576),
        "gpu_power_w": 612.0,
        "gpu_sm_clock_mhz": 1900.0,
        "gpu_temperature_c": 71.0,
    }
    assert set(seen) == set(GPU_SERIES)
    assert telemetry.energy_j == pytest.approx(3 * 612)
    assert telemetry.missing == dict.fromkeys(
        ("throttle_share", "slowed_share", "foreign_processes"), "not read from AMD GPUs"
    )


def test_what_an_amd_card_does_not_tell_has_a_reason(clock):
    smi = ScriptedSmi(DEVICES, lacking=("current_socket_power", "energy_accumulator"))
    sampler = Sampler(0.5, [device_source("cuda", UUID, 1, smi_opener=lambda: smi)], clock)
    sampler.sample_now()
    missing = sampler.telemetry(99.0, 101.0).missing
    for name in ("gpu_power_w", "energy_j"):
        assert "N/A" in missing[name]


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        ({}, "amdsmi knows no device AMD-00b8"),
        (UnknownFactError("not installed here"), "not installed here"),
        (RuntimeError("no permission"), "no permission"),  # as amdsmi's own errors are
    ],
)
def test_without_amdsmi_or_the_device_each_series_has_the_reason(clock, devices, reason):
    def opened():
        if isinstance(devices, Exception):
            raise devices
        return ScriptedSmi(devices)

    sampler = Sampler(0.5, [device_source("cuda", UUID, 1, smi_opener=opened)], clock)
    missing = sampler.telemetry(99.0, 101.0).missing
    assert all(reason in missing[name] for name in (*GPU_SERIES, "energy_j"))
