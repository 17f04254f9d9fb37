"""Real processes under real psutil; only the time between two readings is a given one."""

import time
from types import SimpleNamespace

import psutil
import pytest

from bench.errors import Unknown
from bench.launcher.telemetry.devices import HostSource, ProcessTree
from bench.machine import UnknownFactError
from bench.records.metrics import MEAN_SERIES

BUSY = "print('on', flush=True)\nwhile True: pass"
IDLE = "import sys; print('on', flush=True); sys.stdin.read()"
#: A parent that does nothing and a child that computes, as a loader's worker does.
FAMILY = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {BUSY!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def cpu_s(pid):
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def wait_until_it_used(pid, seconds):
    goal = cpu_s(pid) + seconds
    while cpu_s(pid) < goal:
        time.sleep(0.01)


def test_a_busy_child_is_seen(child, clock):
    popen = child(BUSY)
    source = HostSource(popen.pid, clock)
    before = cpu_s(popen.pid)
    wait_until_it_used(popen.pid, 0.2)
    clock.now_s += 1.0
    values = source.read().values
    used = cpu_s(popen.pid) - before
    # What it used over a second that only the given clock knows, to the kernel's 10 ms ticks.
    assert 15 <= values["worker_cpu_percent"] <= 100 * used + 5
    assert values["worker_rss_mb"] > 1
    assert set(source.read().known) <= set(MEAN_SERIES)  # each has a mean among the metrics
    assert 0 <= values["cpu_utilization_percent"] <= 100
    assert 0 < values["memory_used_mb"] < psutil.virtual_memory().total / 1e6


def test_a_grandchild_counts_as_the_worker(child, clock):
    popen = child(FAMILY)
    grandchild = int(popen.first_line)
    tree = ProcessTree(popen.pid, clock)
    with pytest.raises(UnknownFactError, match="two readings"):
        tree.cpu_percent()
    wait_until_it_used(grandchild, 0.2)
    clock.now_s += 1.0
    assert tree.cpu_percent() >= 15
    assert grandchild in tree.seen
    alone = psutil.Process(popen.pid).memory_info().rss / 1e6
    assert tree.rss_mb() > 1.5 * alone


def test_a_process_born_later_is_found_when_the_list_is_renewed(child, clock):
    popen = child(
        "import subprocess, sys\n"
        "print('on', flush=True)\n"
        "sys.stdin.readline()\n"
        f"kin = subprocess.Popen([sys.executable, '-c', {IDLE!r}], stdout=subprocess.PIPE)\n"
        "print(kin.pid, flush=True)\n"
        "kin.wait()"
    )
    tree = ProcessTree(popen.pid, clock)
    assert tree.seen == {popen.pid}
    popen.stdin.write("go\n")
    popen.stdin.flush()
    born = int(popen.stdout.readline())
    assert born not in tree.seen
    clock.now_s += 2.0
    assert tree.seen == {popen.pid, born}


def test_an_ended_worker_has_no_values_and_a_reason(child, clock):
    popen = child(IDLE)
    source = HostSource(popen.pid, clock)
    popen.kill()
    popen.wait()
    clock.now_s += 10
    values = source.read().values
    assert (
        values["worker_rss_mb"] == values["worker_cpu_percent"] == Unknown("the worker has ended")
    )
    assert "cpu_utilization_percent" in source.read().known


def test_what_a_host_gives_to_other_guests_is_not_other_processes_load(child, clock, monkeypatch):
    cores = psutil.cpu_count()
    monkeypatch.setattr(psutil, "cpu_percent", lambda: 90.0)
    stolen = SimpleNamespace(steal=60.0)
    monkeypatch.setattr(psutil, "cpu_times_percent", lambda: stolen)
    source = HostSource(child(IDLE).pid, clock)
    clock.now_s += 1
    values = source.read().values
    assert values["stolen_cpu_percent"] == 60.0 * cores
    assert values["other_cpu_percent"] == pytest.approx(30.0 * cores, abs=1.0)
    del stolen.steal  # as psutil has it on macOS
    assert "stolen_cpu_percent" not in HostSource(child(IDLE).pid, clock).read().known


def test_frequency_and_temperature_are_the_systems_or_have_a_reason(child, clock, monkeypatch):
    cores = [psutil._ntp.shwtemp("Core", heat_c, None, None) for heat_c in (55.0, 61.0)]
    sensors = {"nvme": [psutil._ntp.shwtemp("Composite", 80.0, None, None)], "coretemp": cores}
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: sensors, raising=False)
    monkeypatch.setattr(psutil, "cpu_freq", lambda: psutil._ntp.scpufreq(3100.0, 0.0, 0.0))
    worker = child(IDLE)

    def read():
        values = HostSource(worker.pid, clock).read().values
        return values["cpu_temperature_c"], values["cpu_frequency_mhz"]

    assert read() == (61.0, 3100.0)
    sensors.clear()
    monkeypatch.setattr(psutil, "cpu_freq", lambda: None)
    unknown = Unknown("the system shows no processor sensor")
    assert read() == (unknown, Unknown("the system shows no frequency"))
    monkeypatch.setattr(psutil, "cpu_freq", lambda: clock.pass_s(0.05))
    dear = Unknown("one reading takes 50 ms: it would disturb the run")
    assert read() == (unknown, dear)
