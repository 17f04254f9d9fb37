"""Every statement about timing, on a device whose time is scripted."""

import gc
from itertools import repeat
from random import Random

import pytest
import torch
from fakes import QueueingDevice, ScriptedClock
from torch._dynamo.utils import counters

from bench.config import MIN_ITERATIONS, RunConfig, TimeLimits
from bench.records.journal import ignore
from bench.statistics.steady_state import iterations_needed
from bench.training.devices import CudaDevice, MpsDevice
from bench.training.step import TimedPhases
from bench.training.window import Window, WindowPlan

LOSS = torch.tensor(1.5)
pytestmark = pytest.mark.usefixtures("frozen_heap")


@pytest.fixture
def clock():
    return ScriptedClock()


@pytest.fixture
def device(clock):
    return QueueingDevice(clock)


@pytest.fixture
def window(clock, device):
    return Window(clock, device)


@pytest.fixture
def step(clock, device):
    """Makes a step of the host's seconds, for all iterations or for each, and queued work."""

    def taking(*host_s, queued_s=0.0, loss=LOSS):
        times_s = iter(host_s) if len(host_s) > 1 else repeat(*host_s)

        def step():
            device.queue(queued_s)
            clock.pass_s(next(times_s))
            return loss

        return step

    return taking


def measured(window, **known):
    return window.measurement(samples_per_iteration=8, startup_s={}, **known)


def test_a_gpus_times_are_its_own(clock, monkeypatch):
    stamps_ms = iter([0.0, 1500.0, 2000.0, *range(3000, 10000, 1000)])
    waited_for = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.stamp_ms = next(stamps_ms)

        def elapsed_time(self, end):
            return end.stamp_ms - self.stamp_ms

        def synchronize(self):
            waited_for.append(self.stamp_ms)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: clock.pass_s(1.0))
    found = []
    for device in (CudaDevice, MpsDevice):
        timer = device.timer(clock)
        for _ in range(3):
            timer.mark()
        found.append((timer.kind, timer.times_s()))
    assert found == [("cuda_events", [1.5, 0.5]), ("wall", [1.0, 1.0])]
    assert waited_for == []
    timer = CudaDevice.timer(clock)
    for _ in range(7):
        timer.mark()
    assert waited_for == [3000, 4000, 5000]  # the host is four iterations ahead, and no more
    assert timer.ended_times_s() == [1.0, 1.0]  # between the events that it has waited for
    assert timer.times_s() == [1.0] * 6


@pytest.mark.slow
def test_throughput_is_images_over_the_wall_time_of_a_window_without_warm_up(step, window):
    window.warm_up(step(9.0), TimeLimits(2, 10), ignore)
    window.measure(step(0.5), WindowPlan(10))
    found = measured(window)
    assert found.warmup_times_s == pytest.approx([9.0] * 2)
    assert found.window_s == pytest.approx(5.0)
    assert found.samples == 80
    assert found.throughput_samples_per_s == pytest.approx(16.0)
    assert found.iteration_times_s == pytest.approx([0.5] * 10)


def test_queued_work_is_waited_for_at_both_ends_and_never_between(step, device, window):
    device.queue(50.0)  # left over from before: must end before the window starts
    window.measure(step(0.001, queued_s=2.0), WindowPlan(5))
    assert len(device.synchronized_at_s) == 2
    assert measured(window).window_s == pytest.approx(5 * 2.0 + 5 * 0.001)


@pytest.mark.slow
def test_ranks_come_together_at_both_ends_and_never_between(step, clock, device):
    met_at_s = []

    def barrier():
        assert device.queued_s == 0  # whoever comes has nothing left to do
        clock.pass_s(0.5)  # until the slowest comes
        met_at_s.append(clock())

    window = Window(clock, device, barrier)
    window.warm_up(step(0.0, queued_s=1.0), TimeLimits(2, 4), ignore)
    assert window.warmup_times_s == pytest.approx([1.0, 1.0])  # with the queued work
    assert met_at_s == []
    device.queue(3.0)
    window.measure(step(1e-9, queued_s=1.0), WindowPlan(4))
    found = measured(window)
    assert met_at_s == [found.window_start_clock_s, found.window_end_clock_s]
    assert found.window_s == pytest.approx(4 * 1.0 + 0.5)


def test_waiting_for_data_is_filed_under_its_iteration(clock, window):
    waits = iter([0.0, 0.0, 0.2, 0.1, 0.1, 0.0, 0.05, 0.15])
    timed = window.waiting(lambda: clock.pass_s(next(waits)))

    def step():
        timed()
        timed()  # a step of two batches waits twice
        clock.pass_s(1.0)
        return LOSS

    step()  # a warm-up's wait must not count
    window.measure(step, WindowPlan(3))
    found = measured(window)
    assert found.data_wait_s == pytest.approx([0.3, 0.1, 0.2])
    assert found.iteration_times_s == pytest.approx([1.3, 1.1, 1.2])


@pytest.mark.parametrize(
    ("seconds", "limit", "iterations"),
    [
        (1.0, 7.0, 7),
        (1.0, 6.5, 7),
        (10.0, 1.0, MIN_ITERATIONS),
        (1.0, None, 20),
        (1.0, 99.0, 20),
        (1.0, 20.0, 20),  # reached with the last iteration
    ],
)
def test_max_seconds_ends_the_window_after_an_iteration(step, window, seconds, limit, iterations):
    window.measure(step(seconds), WindowPlan(20, limit))
    found = measured(window)
    assert len(found.iteration_times_s) == iterations
    assert (found.ended_early is not None) == (iterations < 20)


@pytest.mark.slow  # a collection of garbage each
@pytest.mark.parametrize(
    ("seconds", "asked", "least", "ran"),
    [
        ((1.0,), 10, 2, 10),  # 10 s of 15
        ((2.0,), 10, 2, 8),  # a ninth would end 16 s after the first
        ((9.0,), 10, 2, 2),
        ((400.0,), 10, 2, 2),  # one alone is not warm
        ((400.0, *[1.0] * 12), 10, 3, 10),  # a compilation is not the limit's
        ((400.0, *[8.0] * 12), 10, 3, 3),
        ((400.0,), 1, 2, 1),
    ],
)
def test_a_third_of_max_seconds_ends_the_warm_up(clock, step, window, seconds, asked, least, ran):
    limits = TimeLimits(asked, 100, max_seconds=45.0, min_warmup=least)
    laps = []
    window.warm_up(step(*seconds), limits, laps.append)
    window.measure(step(1.0), WindowPlan(5))
    found = measured(window)
    assert found.warmup_times_s == pytest.approx(laps)
    assert len(laps) == ran
    assert max(laps) == max(seconds)
    if ran < asked:
        assert found.warmup_ended_early == (
            f"{ran} of {asked} iterations (max_seconds=45 gives it 15 s)"
        )
    else:
        assert found.warmup_ended_early is None


@pytest.mark.slow  # a collection of garbage each
@pytest.mark.parametrize(
    ("seconds", "limits", "ran"),
    [
        ((400.0,), TimeLimits(10, 100), 10),  # without a time limit
        ((0.5,), TimeLimits(3, 10, 45.0, settle_s=2.0), 5),  # the first shows no pace
        ((30.0, *[0.5] * 9), TimeLimits(2, 10, settle_s=2.0), 5),  # the first compiles
        ((0.5,), TimeLimits(1, 10, 3.0, settle_s=2.0), 3),  # its time limit comes first
        # cuDNN's search, then what was given back is reserved again, then the pace that lasts
        (
            (1.0, 0.17, *[0.05] * 20),
            TimeLimits.of(RunConfig(warmup_iters=10, max_seconds=2.0), "cuda"),
            11,
        ),
    ],
)
def test_a_warm_up_has_its_iterations_and_goes_on_until_the_device_has_settled(
    step, window, seconds, limits, ran
):
    window.warm_up(step(*seconds), limits, ignore)
    expected = (seconds * ran)[:ran]
    assert window.warmup_times_s == pytest.approx(expected)
    assert window.warmup_ended_early is None


def warmed(window, *seconds, obtains=(), compiles=(), **changes):
    """Return how many iterations a warm-up took; some obtain memory, or compile, by number."""
    limits = TimeLimits(
        **{"warmup_iters": 3, "iters": 5, "max_seconds": 45.0, "until_steady": True, **changes}
    )
    times_s, number = iter(seconds), iter(range(1, 1000))

    def step():
        now = next(number)
        window.device.obtained += now in obtains
        counters["stats"]["unique_graphs"] += now in compiles
        window.clock.pass_s(next(times_s))
        return LOSS

    window.warm_up(step, limits, ignore)
    return len(window.warmup_times_s)


@pytest.mark.parametrize(
    ("seconds", "made", "ran"),
    [
        ((9.0, *[1.0] * 9), {}, 4),  # the first shows no pace
        ((9.0, 1.5, 1.2, *[1.0] * 9), {}, 6),  # until the fastest falls no more
        ((9.0, 1.0, 1.0, 3.0, 1.0), {}, 4),
        ((9.0, *[1.0] * 9), {"obtains": (3,)}, 6),  # three after the one that obtained memory
        ((9.0, 1.0, 5.0, *[1.0] * 9), {"compiles": (3,)}, 6),
        ((9.0, *[1.0] * 20), {"warmup_iters": 10}, 10),
        ((9.0, 1.0, 2.0, *[1.0] * 9), {"until_steady": False}, 3),  # a number that was given
    ],
)
def test_a_warm_up_ends_when_its_iterations_are_of_one_pace(window, seconds, made, ran):
    assert warmed(window, *seconds, **made) == ran
    assert window.warmup_ended_early is None


def test_a_warm_up_that_finds_no_pace_ends_by_its_time_and_says_so(window):
    assert warmed(window, 9.0, *[1.0, 2.0, 4.0] * 9) == 7  # after 14 s of 15
    assert window.warmup_ended_early == "7 of 3 or more iterations (max_seconds=45 gives it 15 s)"


def test_a_window_goes_on_until_its_pace_is_known(step, window):
    rng = Random(1)
    noisy = [rng.gauss(1, 0.05) for _ in range(400)]
    window.measure(step(*noisy), WindowPlan(20, 300.0, most=10**6))
    times_s = measured(window).iteration_times_s
    assert 20 < len(times_s) < 400
    assert iterations_needed(times_s) == len(times_s)
    assert measured(window).ended_early is None


@pytest.mark.parametrize(
    ("seconds", "plan", "ran", "why"),
    [
        ([1.0] * 30, WindowPlan(20, 300.0, most=10**6), 20, None),  # known
        ([1.0, 2.0] * 40, WindowPlan(20), 20, None),  # a number that was given
        ([1.0, 2.0] * 40, WindowPlan(20, most=30), 30, None),
        ([1.0, 2.0] * 40, WindowPlan(20, 45.0, most=10**6), 30, "max_seconds=45 after 30 of 40"),
    ],
)
def test_a_window_goes_on_no_further_than_it_may(step, window, seconds, plan, ran, why):
    window.measure(step(*seconds), plan)
    found = measured(window)
    assert (len(found.iteration_times_s), found.ended_early) == (ran, why)


def test_ranks_go_on_to_the_largest_number_that_one_of_them_needs(step, clock, device):
    window = Window(clock, device, most=lambda value: max(value, 25))
    window.measure(step(1.0), WindowPlan(20, most=1000))
    assert len(window.data_wait_s) == 25


def test_a_collection_of_garbage_in_the_window_is_timed(clock, window):
    def step():
        gc.callbacks.insert(-1, lambda phase, _: phase == "stop" and clock.pass_s(0.25))
        gc.collect()
        del gc.callbacks[-2]
        clock.pass_s(1.0)
        return LOSS

    before = list(gc.callbacks)
    window.measure(step, WindowPlan(4))
    assert measured(window).garbage_collections_s == pytest.approx(1.0)
    assert gc.callbacks == before


class CountedMemory(QueueingDevice):
    """Counts peaks: 90 bytes in a search for algorithms, 20 in any step."""

    now = peak = 20

    def reset_peak_memory(self):
        self.peak = self.now

    def release_cached_memory(self):
        self.released_after = len(self.synchronized_at_s)

    def peak_memory_bytes(self):
        return self.peak, 2 * self.peak


@pytest.mark.parametrize(("replays_graphs", "allocated"), [(False, 20), (True, 90)])
def test_the_peak_is_the_windows_and_a_graphs_that_of_the_warm_up_which_captured_it(
    clock, replays_graphs, allocated
):
    device = CountedMemory(clock)
    window = Window(clock, device, replays_graphs=replays_graphs)

    def searching():
        device.peak = 90
        clock.pass_s(1.0)
        return LOSS

    window.warm_up(searching, TimeLimits(3, 4), ignore)
    assert device.released_after == 1  # before the iterations that take what they need
    window.measure(lambda: clock.pass_s(1.0) or LOSS, WindowPlan(4))
    device.peak = 500  # a probe after the window
    found = measured(window)
    assert found.peak_memory_allocated_bytes == allocated
    assert found.peak_memory_reserved_bytes == 40
    assert found.warmup_peak_memory_bytes == 90


@pytest.mark.slow
def test_ranks_end_the_warm_up_together_when_one_of_them_says_so(step, clock, device):
    asked = []

    def most(passed):
        asked.append(passed)
        return len(asked) == 4  # another rank is past its time

    window = Window(clock, device, most=most)
    window.warm_up(step(0.1), TimeLimits(10, 100, max_seconds=45.0), ignore)
    assert asked == [False] * 4  # from the second iteration on
    assert len(window.warmup_times_s) == 5


def test_an_interrupt_keeps_what_was_measured(step, clock, window):
    whole = step(1.0, 1.0, 0.25)

    def interrupted():
        loss = whole()
        if clock() == 102.25:  # it began at 100
            raise KeyboardInterrupt
        return loss

    with pytest.raises(KeyboardInterrupt):
        window.measure(interrupted, WindowPlan(10))
    found = measured(window)
    assert found.iteration_times_s == pytest.approx([1.0, 1.0])
    assert found.last_loss is None
    assert "cut" in found.missing["last_loss"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("warmup_s", "step_s", "compile_s"),
    [((30.0, 2.0, 1.0, 1.0, 3.0), 1.0, 30.0), ((30.0,), 2.0, 28.0)],  # or beyond the window's
)
def test_compile_time_is_warm_up_beyond_the_fastest(step, window, warmup_s, step_s, compile_s):
    window.warm_up(step(*warmup_s), TimeLimits(len(warmup_s), 5), ignore)
    assert measured(window) is None  # nothing is yet
    window.measure(step(step_s), WindowPlan(5))
    assert measured(window, compiled=True).compile_time_s == pytest.approx(compile_s)
    assert measured(window).compile_time_s is None


def test_phases_hold_the_queued_work_of_their_part(clock, device):
    phases = TimedPhases(device, clock)
    window = Window(clock, device, phases=phases)

    def step():
        for name, seconds in (("forward", 0.2), ("backward", 0.4)):
            with phases.phase(name):
                device.queue(seconds)
        return LOSS

    step()
    phases.lap()  # warm-up: forgotten when the window starts
    window.measure(step, WindowPlan(3))
    assert measured(window).phase_times_s == {
        "forward": pytest.approx([0.2] * 3),
        "backward": pytest.approx([0.4] * 3),
    }


def test_what_was_seen_of_a_window_is_in_its_measurement(step, device, window, monkeypatch):
    monkeypatch.setattr(device, "peak_memory_bytes", lambda: (3000, 4000))
    losses = map(torch.tensor, (2.5, 2.0))
    window.warm_up(step(1.0, loss=next(losses)), TimeLimits(1, 3), ignore)
    window.other_cpu_cores = 0.25
    window.measure(step(1.0, loss=next(losses)), WindowPlan(3))
    seen = measured(window)
    assert (seen.first_loss, seen.last_loss, seen.other_cpu_cores) == (2.5, 2.0, 0.25)
    assert (seen.peak_memory_allocated_bytes, seen.peak_memory_reserved_bytes) == (3000, 4000)
    script = measured(window, no_model="a script's loss is its own")
    assert script.missing["work"] == "a script's loss is its own"


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_missing_and_said(step, window):
    window.warm_up(step(1.0, loss=torch.tensor(float("nan"))), TimeLimits(1, 5), ignore)
    window.measure(step(1.0), WindowPlan(5))
    found = measured(window)
    assert found.first_loss is None
    assert "not finite" in found.missing["first_loss"]
    assert found.last_loss == 1.5
