"""What is kept of the samples of a window, of one device and of several."""

import time
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
from fakes import ScriptedClock
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import Unknown
from bench.launcher.telemetry import Devices, Reading, Sampler, Source
from bench.launcher.telemetry.devices import HostSource, ProcessTree
from bench.machine import UnknownFactError
from bench.records.metrics import MEAN_SERIES


class Scripted(Source):
    """A device whose next reading is set."""

    name = "scripted"
    measures_device = True

    def __init__(self, reading=None, *processes):
        self.reading = reading or Reading({"load_percent": 1.0}, 5.0, frozenset(), {"power": 0.0})
        self.processes = processes
        self.reads = 0

    def read(self):
        self.reads += 1
        if isinstance(self.reading, Exception):
            raise self.reading
        return self.reading

    def foreign_processes(self):
        return Unknown("not told") if self.processes == (None,) else self.processes


@pytest.fixture
def source():
    return Scripted()


def sampled(clock, source, readings):
    """A sampler that has taken `readings`, by their instants."""
    sampler = Sampler(0.5, [source], clock)
    for clock.now_s, source.reading in readings:
        sampler.sample_now()
    return sampler


def test_a_series_holds_the_window_alone_and_counts_from_its_start(clock, source):
    readings = [(float(n), Reading({"a": float(n), "b": 10.0 * n})) for n in range(1, 7)]
    failed = Unknown("failed once")
    readings[2] = (3.0, Reading({"a": 3.0, "b": failed}))
    telemetry = sampled(clock, source, readings).telemetry(2.0, 4.5)
    first, second = telemetry.series
    assert (first.name, first.source, telemetry.interval_s) == ("a", "scripted", 0.5)
    assert (first.times_s, first.values) == ((0.0, 1.0, 2.0), (2.0, 3.0, 4.0))
    assert (second.times_s, second.values) == ((0.0, 2.0), (20.0, 40.0))
    assert not {"a", "b"} & telemetry.missing.keys()


def test_energy_is_interpolated_at_both_ends(clock, source):
    # 100 W before 2 s, 300 W after: the window from 1.5 s to 4.5 s holds 50 + 2 x 300 + 150 J.
    joules = ((1.0, 0.0), (2.0, 100.0), (3.0, 400.0), (4.0, 700.0), (5.0, 1000.0))
    sampler = sampled(clock, source, [(at, Reading({}, energy_j)) for at, energy_j in joules])
    assert sampler.telemetry(1.5, 4.5).energy_j == pytest.approx(50 + 600 + 150)
    assert sampler.telemetry(2.0, 4.0).energy_j == 600  # samples on the ends are as they are


@pytest.mark.parametrize(
    ("window", "reason"),
    [
        ((0.5, 3.5), "before the window's start"),
        ((1.5, 4.5), "after the window's end"),
        ((1.9, 2.9), "fewer than two samples"),
        ((10.0, 20.0), "fewer than two samples"),
    ],
)
def test_what_has_too_few_samples_in_the_window_is_unknown(clock, source, window, reason):
    readings = [(float(n), Reading({"a": 1.0}, 10.0 * n)) for n in (1, 2, 3, 4)]
    sampler = sampled(clock, source, readings)
    assert reason in sampler.telemetry(*window).missing["energy_j"]
    none = sampler.telemetry(10.0, 20.0)
    assert (none.series, none.missing["a"]) == ((), "no sample fell in the window")
    sampler = sampled(clock, source, [*readings, (5.0, Reading({}, Unknown("Not Supported")))])
    assert sampler.telemetry(10.0, 20.0).missing["energy_j"] == "Not Supported"  # its own reason
    assert sampler.telemetry(1.5, 3.5).energy_j == pytest.approx(20.0)


@given(
    power_w=st.floats(1, 1000),
    gaps_s=st.lists(st.floats(0.01, 2), min_size=6, max_size=40),
    cut=st.floats(0.0, 0.99),
)
def test_steady_power_gives_power_times_time(power_w, gaps_s, cut):
    clocks = [sum(gaps_s[:i]) for i in range(len(gaps_s) + 1)]
    readings = [(at, Reading({}, 1000 + power_w * at)) for at in clocks]
    start_s, end_s = clocks[0] + cut * gaps_s[0], clocks[-1] - cut * gaps_s[-1]
    found = sampled(ScriptedClock(), Scripted(), readings).telemetry(start_s, end_s)
    assert found.energy_j == pytest.approx(power_w * (end_s - start_s), rel=1e-6)


def test_throttling_is_a_share_of_the_samples_that_could_tell(clock, source):
    seen = [{"HwSlowdown"}, {"SwPowerCap"}, {"SwPowerCap", "SwThermal"}, None, set(), set()]
    readings = [
        (float(n), Reading({}, 0.0, Unknown("not now") if one is None else frozenset(one)))
        for n, one in enumerate(seen)
    ]
    sampler = sampled(clock, source, readings)
    found = sampler.telemetry(1.0, 5.0)
    assert found.throttle_share == {"SwPowerCap": 0.5, "SwThermal": 0.25}
    assert sampler.telemetry(4.0, 5.0).throttle_share == {}  # never throttled
    assert sampler.telemetry(3.0, 3.5).missing["throttle_share"] == "not now"


def test_samples_come_once_an_interval_however_often_the_loop_asks(clock, source):
    sampler = Sampler(0.5, [source], clock)
    for _ in range(32):
        sampler.sample()
        clock.now_s += 0.0625
    assert source.reads == 4
    clock.now_s += 10  # a loop that comes late gets one sample and not all that it missed
    sampler.sample()
    sampler.sample()
    assert source.reads == 5
    clock.now_s += 0.4
    sampler.sample_now()  # starts a new interval
    clock.now_s += 0.4
    sampler.sample()
    assert source.reads == 6


def test_a_device_is_read_when_it_joins_and_without_one_its_facts_have_a_reason(clock, source):
    source.measures_device = False
    sampler = Sampler(0.5, [source], clock)
    sampler.sample()
    none = sampler.telemetry(100.0, 101.0)
    facts = ("energy_j", "throttle_share", "slowed_share", "foreign_processes", "dram_bytes")
    assert none.missing == dict.fromkeys(facts, "the worker never reported its device")
    device = Scripted(None, "7 neighbour")
    sampler.add(device)
    assert device.reads == 1
    assert sampler.telemetry(99.0, 101.0).foreign_processes == ("7 neighbour",)


def test_a_source_that_breaks_ends_nothing(clock, source):
    other = Scripted(Reading({"memory_mb": 1.0}))
    sampler = Sampler(0.5, [source, other], clock)
    sampler.sample_now()
    source.reading = OSError("the driver went away")
    sampler.sample_now()
    telemetry = sampler.telemetry(99.0, 102.0)
    lengths = {one.name: len(one.values) for one in telemetry.series}
    assert lengths == {"load_percent": 1, "memory_mb": 2}
    assert telemetry.missing["scripted"] == "OSError: the driver went away"


def together(*cards):
    source = Devices()
    for rank, card in reversed(list(enumerate(cards))):  # whichever rank comes first
        source.join(rank, card)
    return source


def test_of_several_devices_energy_adds_up_and_quantities_keep_apart():
    hot = Reading({"gpu_power_w": 200.0}, 7.0, frozenset({"SwThermal"}), {"heat": 2.0})
    cool = Reading({"gpu_power_w": 100.0}, 5.0, frozenset(), {"power": 1.0, "heat": 0.0})
    source = together(Scripted(cool, "5 x", "7 y"), Scripted(hot, "5 x"))
    values = {"gpu_power_w": 100.0, "rank1_gpu_power_w": 200.0}
    slowed_s = {"heat": 1.0, "power": 0.5}
    assert source.read() == Reading(values, 12.0, frozenset({"SwThermal"}), slowed_s)
    assert source.foreign_processes() == ("5 x", "7 y")
    assert (source.name, source.measures_device) == ("scripted", True)
    why = Unknown("no counter")  # what one cannot tell all together cannot
    blind = Scripted(replace(cool, energy_j=why, throttle_reasons=why), None)
    reading = together(Scripted(cool), blind).read()
    assert (reading.energy_j, reading.throttle_reasons) == (why, why)
    assert reading.slowed_s == cool.slowed_s
    assert together(Scripted(cool), blind).foreign_processes() == Unknown("not told")


# Real processes under real psutil; only the time between two readings is given


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
