import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.launcher.telemetry import Reading, Sampler, Source
from bench.launcher.telemetry.sampler import Span, energy_j, series_of, throttle_share
from bench.machine.probes import UnknownFactError


def energies(*points):
    return [(clock_s, Reading({}, joules)) for clock_s, joules in points]


def test_a_series_holds_the_window_alone_and_counts_from_its_start():
    seen = [(10.0 + i, Reading({"power_w": float(i)})) for i in range(6)]
    (series,) = series_of(seen, Span(11.0, 13.5), "nvml")
    assert series.name == "power_w"
    assert series.source == "nvml"
    assert series.times_s == (0.0, 1.0, 2.0)
    assert series.values == (1.0, 2.0, 3.0)


def test_a_gauge_that_failed_now_and_then_keeps_its_own_times():
    seen = [
        (1.0, Reading({"a": 1.0, "b": 10.0})),
        (2.0, Reading({"a": 2.0})),
        (3.0, Reading({"a": 3.0, "b": 30.0})),
    ]
    first, second = series_of(seen, Span(0.0, 4.0), "psutil")
    assert (first.name, first.times_s) == ("a", (1.0, 2.0, 3.0))
    assert (second.name, second.times_s, second.values) == ("b", (1.0, 3.0), (10.0, 30.0))


def test_energy_is_interpolated_at_both_ends():
    # 100 W before 2 s, 300 W after: the window from 1.5 s to 4.5 s holds 50 + 2 x 300 + 150 J.
    seen = energies((1.0, 0.0), (2.0, 100.0), (3.0, 400.0), (4.0, 700.0), (5.0, 1000.0))
    assert energy_j(seen, Span(1.5, 4.5)) == pytest.approx(50 + 600 + 150)
    assert energy_j(seen, Span(2.0, 4.0)) == 600  # samples on the ends are taken as they are


@pytest.mark.parametrize(
    ("span", "reason"),
    [
        (Span(0.5, 3.5), "before the window's start"),
        (Span(1.5, 4.5), "after the window's end"),
        (Span(1.9, 2.9), "fewer than two samples"),
        (Span(10.0, 20.0), "fewer than two samples"),
    ],
)
def test_energy_without_samples_around_the_window_is_unknown(span, reason):
    seen = energies((1.0, 0.0), (2.0, 10.0), (3.0, 20.0), (4.0, 30.0))
    with pytest.raises(UnknownFactError, match=reason):
        energy_j(seen, span)


@given(
    power_w=st.floats(1, 1000),
    gaps_s=st.lists(st.floats(0.01, 2), min_size=6, max_size=40),
    cut=st.floats(0.0, 0.99),
)
def test_steady_power_gives_power_times_time(power_w, gaps_s, cut):
    clocks = [sum(gaps_s[:i]) for i in range(len(gaps_s) + 1)]
    seen = energies(*((clock_s, 1000 + power_w * clock_s) for clock_s in clocks))
    span = Span(clocks[0] + cut * gaps_s[0], clocks[-1] - cut * gaps_s[-1])
    expected = power_w * (span.end_s - span.start_s)
    assert energy_j(seen, span) == pytest.approx(expected, rel=1e-6)


def test_throttling_is_a_share_of_the_samples_that_could_tell():
    seen = [
        (0.0, Reading({}, None, frozenset({"HwSlowdown"}))),  # before the window
        (1.0, Reading({}, None, frozenset({"SwPowerCap"}))),
        (2.0, Reading({}, None, frozenset({"SwPowerCap", "SwThermal"}))),
        (3.0, Reading({}, None, None)),
        (4.0, Reading({}, None, frozenset())),
        (5.0, Reading({}, None, frozenset())),
    ]
    assert throttle_share(seen, Span(1.0, 5.0)) == {"SwPowerCap": 0.5, "SwThermal": 0.25}


def test_never_throttled_is_empty_and_never_asked_is_unknown():
    never = [(1.0, Reading({}, None, frozenset()))]
    assert throttle_share(never, Span(0.0, 2.0)) == {}
    with pytest.raises(UnknownFactError):
        throttle_share([(1.0, Reading())], Span(0.0, 2.0))


class ScriptedSource(Source):
    """Counts its readings; with a clock it is a device at 50 W. Fails or throttles on request."""

    def __init__(self, series="load_percent", clock=None):
        super().__init__()
        self.name = "scripted"
        self.measures_device = clock is not None
        self.series, self.clock = series, clock
        self.reads = 0
        self.fails = self.throttles = False

    def read(self):
        if self.fails:
            raise OSError("the driver went away")
        self.reads += 1
        values = {self.series: float(self.reads)}
        reasons = frozenset({"SwPowerCap"} if self.throttles else ())
        return Reading(values, 50.0 * self.clock.now_s, reasons) if self.clock else Reading(values)

    def foreign_processes(self):
        return ("7 neighbour",)


@pytest.fixture
def source():
    return ScriptedSource()


def run(sampler, clock, seconds, step_s=0.1):
    for _ in range(round(seconds / step_s)):
        sampler.sample()
        clock.now_s += step_s


def test_samples_come_once_an_interval_however_often_the_loop_asks(clock, source):
    sampler = Sampler(0.5, [source], clock)
    run(sampler, clock, seconds=2.0, step_s=0.0625)
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
    assert sampler.telemetry(100.0, 110.0).interval_s == 0.5


def test_a_device_joins_when_the_worker_has_named_it(clock, source):
    sampler = Sampler(0.5, [source], clock)
    run(sampler, clock, seconds=1.0, step_s=0.5)
    device = ScriptedSource("power_w", clock)
    sampler.add(device)
    assert device.reads == 1
    run(sampler, clock, seconds=1.0, step_s=0.5)
    device.throttles = True
    run(sampler, clock, seconds=1.0, step_s=0.5)
    telemetry = sampler.telemetry(101.25, 102.25)
    assert telemetry.energy_j == pytest.approx(50.0)
    assert telemetry.throttle_share == {"SwPowerCap": 0.5}
    assert telemetry.foreign_processes == ("7 neighbour",)
    assert {one.name for one in telemetry.series} == {"load_percent", "power_w"}


def test_without_a_device_every_fact_has_a_reason(clock, source):
    sampler = Sampler(0.5, [source], clock)
    run(sampler, clock, seconds=1.0)
    telemetry = sampler.telemetry(100.0, 101.0)
    assert telemetry.energy_j is None
    assert telemetry.throttle_share is None
    assert telemetry.foreign_processes is None
    assert set(telemetry.missing.values()) == {"the worker never reported its device"}


def test_a_window_between_two_samples_is_said(clock):
    device = ScriptedSource("power_w", clock)
    sampler = Sampler(0.5, [device], clock)
    run(sampler, clock, seconds=2.0, step_s=0.5)
    telemetry = sampler.telemetry(100.6, 100.7)
    assert telemetry.series == ()
    assert telemetry.missing["power_w"] == "no sample fell in the window"
    assert "fewer than two samples" in telemetry.missing["energy_j"]
    assert telemetry.throttle_share is None
    device.missing["energy_j"] = "Not Supported"  # the device's own reason comes first
    assert sampler.telemetry(100.6, 100.7).missing["energy_j"] == "Not Supported"


def test_a_source_that_breaks_ends_nothing(clock, source):
    other = ScriptedSource("memory_mb")
    sampler = Sampler(0.5, [source, other], clock)
    run(sampler, clock, seconds=1.0, step_s=0.5)
    source.fails = True
    run(sampler, clock, seconds=1.0, step_s=0.5)
    telemetry = sampler.telemetry(100.0, 102.0)
    lengths = {one.name: len(one.values) for one in telemetry.series}
    assert lengths == {"load_percent": 2, "memory_mb": 4}
    assert telemetry.missing["scripted"] == "OSError: the driver went away"


def test_a_reason_is_dropped_once_the_series_has_values(clock, source):
    source.missing["load_percent"] = "CPU time needs two readings"
    sampler = Sampler(0.5, [source], clock)
    run(sampler, clock, seconds=1.0)
    assert "load_percent" not in sampler.telemetry(100.0, 101.0).missing
