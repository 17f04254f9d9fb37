import pytest

from bench.launcher.telemetry import Reading, Sampler, Source


class ScriptedSource(Source):
    """Counts its readings; fails while told to."""

    name = "scripted"

    def __init__(self, series="load_percent"):
        super().__init__()
        self.series = series
        self.reads = 0
        self.fails = False

    def read(self):
        if self.fails:
            raise OSError("the driver went away")
        self.reads += 1
        return Reading({self.series: float(self.reads)})


class ScriptedDevice(ScriptedSource):
    """A device at 50 W that throttles while told to."""

    name = "device"
    measures_device = True

    def __init__(self, clock):
        super().__init__("power_w")
        self.clock = clock
        self.throttles = False

    def read(self):
        reasons = frozenset({"SwPowerCap"}) if self.throttles else frozenset()
        return Reading(super().read().values, 50.0 * self.clock.now_s, reasons)

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
    sampler.sample_now()  # starts the interval anew
    clock.now_s += 0.4
    sampler.sample()
    assert source.reads == 6
    assert sampler.telemetry(100.0, 110.0).interval_s == 0.5


def test_a_device_joins_when_the_worker_has_named_it(clock, source):
    sampler = Sampler(0.5, [source], clock)
    run(sampler, clock, seconds=1.0, step_s=0.5)
    device = ScriptedDevice(clock)
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
    device = ScriptedDevice(clock)
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
