import os
import shutil

import pytest

from bench.launcher.telemetry import Sampler, device_source
from bench.launcher.telemetry.base import DEVICE_FACTS
from bench.launcher.telemetry.devices import RaplSource
from bench.machine.probes import UnknownFactError

RANGE_UJ = 262_143_328_850


@pytest.fixture
def packages(tmp_path):
    """Two packages, and the zones that would count the same energy again."""
    zones = {
        "intel-rapl:0": "package-0",
        "intel-rapl:1": "package-1",
        "intel-rapl:0:0": "core",
        "intel-rapl:2": "psys",
        "intel-rapl-mmio:0": "package-0",
    }
    base = tmp_path / "sys/class/powercap"
    for zone, name in zones.items():
        (base / zone).mkdir(parents=True)
        (base / zone / "name").write_text(f"{name}\n")
        (base / zone / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
        (base / zone / "energy_uj").write_text("1000000\n")

    def write(zone, energy_uj):
        (base / zone / "energy_uj").write_text(f"{energy_uj}\n")

    return tmp_path, write


def test_packages_add_up_and_nothing_counts_twice(packages, clock):
    root, write = packages
    source = RaplSource(root, clock)
    assert source.read().values == {}
    write("intel-rapl:0", 1_000_000 + 30_000_000)
    write("intel-rapl:1", 1_000_000 + 20_000_000)
    for other in ("intel-rapl:0:0", "intel-rapl:2", "intel-rapl-mmio:0"):
        write(other, 1_000_000 + 99_000_000)
    clock.now_s += 2.0
    reading = source.read()
    assert reading.energy_j == pytest.approx(50.0)
    assert reading.values == {"cpu_package_power_w": pytest.approx(25.0)}
    assert source.missing["throttle_share"] == "not read for CPUs"
    assert "cpu_utilization_percent" in source.missing["foreign_processes"]


def test_a_counter_that_wraps_around_counts_on(packages, clock):
    root, write = packages
    write("intel-rapl:0", RANGE_UJ - 4_000_000)
    source = RaplSource(root, clock)
    write("intel-rapl:0", 6_000_000)
    assert source.read().energy_j == pytest.approx(10.0)
    write("intel-rapl:0", 7_000_000)
    assert source.read().energy_j == pytest.approx(11.0)


def test_a_counter_that_closes_during_the_run_is_a_reason(packages, clock):
    root, _ = packages
    sampler = Sampler(0.5, [], clock)
    sampler.add(RaplSource(root, clock))
    (root / "sys/class/powercap/intel-rapl:0/energy_uj").unlink()
    clock.now_s += 0.5
    sampler.sample()
    assert "No such file" in sampler.telemetry(99.0, 101.0).missing["energy_j"]


def test_a_counter_for_root_alone_is_a_reason(packages, without_rights):
    written, _ = packages
    root, as_nobody = without_rights
    shutil.copytree(written / "sys", root / "sys")
    (root / "sys/class/powercap/intel-rapl:0/energy_uj").chmod(0)
    with as_nobody(), pytest.raises(UnknownFactError, match="Permission denied"):
        RaplSource(root)


def test_a_cpu_run_takes_rapl_where_there_is_one(packages, tmp_path_factory):
    root, _ = packages
    assert isinstance(device_source("cpu", None, os.getpid(), root), RaplSource)
    empty = tmp_path_factory.mktemp("empty")
    source = device_source("cpu", None, os.getpid(), empty)
    assert source.measures_device
    assert source.missing == {
        "energy_j": "the kernel shows no RAPL energy counter",
        "throttle_share": "no NVIDIA device in this run",
        "slowed_share": "no NVIDIA device in this run",
        "foreign_processes": "no NVIDIA device in this run",
    }


def test_an_apple_gpu_tells_nothing(clock):
    sampler = Sampler(0.5, [device_source("mps", None, os.getpid())], clock)
    missing = sampler.telemetry(100.0, 101.0).missing
    assert set(missing) == set(DEVICE_FACTS)
    assert "powermetrics" in missing["energy_j"]
