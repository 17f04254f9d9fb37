"""What is kept of the samples of a window, of one device and of several."""

from dataclasses import replace

import pytest
from fakes import ScriptedClock
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import Unknown
from bench.launcher.telemetry import Devices, Reading, Sampler, Source


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
