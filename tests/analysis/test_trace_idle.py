"""Each cause of idle time, on a step of 1 ms whose device works from 0 to 100 us at least."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.traces.idle import IdleCause
from analysis.traces.steps import cut_steps
from analysis.traces.timeline import timeline
from bench.profilers.traces import DeviceSpan, HostSpan, Trace
from bench.profilers.traces.trace import DeviceKind, HostKind

MAIN, BACKWARD, WATCHDOG = (1, 1), (1, 2), (1, 3)


def host(
    name: str,
    begin_us: float,
    end_us: float,
    thread: tuple[int, int] = MAIN,
    launched: int | None = None,
) -> HostSpan:
    kind: HostKind = "call" if name.startswith(("cuda", "hip")) else "op"
    if "#" in name:
        kind = "mark"
    return HostSpan(name, kind, begin_us, end_us, thread, correlation=launched)


def work(
    number: int | None,
    begin_us: float,
    end_us: float,
    name: str = "gemm",
    kind: DeviceKind = "kernel",
) -> DeviceSpan:
    return DeviceSpan(name, kind, begin_us, end_us, 0, 7, number)


def idle_us(
    spans: Sequence[HostSpan],
    device: Sequence[DeviceSpan],
    end_us: float = 1000,
) -> dict[tuple[str, str | None, str | None], float]:
    """Microseconds by cause, call and op; the first kernel is launched before the step."""
    everything = [
        host("ProfilerStep#1", 0, end_us),
        host("cudaLaunchKernel", 0, 5, launched=1),
        *spans,
    ]
    everything.sort(key=lambda span: (span.begin_us, -span.end_us))
    trace = Trace("step", everything, [work(1, 0, 100), *device])
    time = timeline(trace, cut_steps(trace))[0]
    return {(one.cause, one.call, one.op): round(1e6 * one.time_s, 3) for one in time.idle}


def test_the_host_launches_one_by_one() -> None:
    spans = [host("aten::add", 150, 180), host("cudaLaunchKernel", 160, 170, launched=2)]
    assert idle_us(spans, [work(2, 180, 1000)]) == {("launches", None, None): 80}


def test_work_that_was_queued_waits_on_the_device() -> None:
    spans = [host("cudaGraphLaunch", 10, 40, launched=2)]
    assert idle_us(spans, [work(2, 150, 1000)]) == {("queued", None, None): 50}


def test_launched_work_that_begins_late_waits_for_what_the_trace_lacks() -> None:
    spans = [host("cudaLaunchKernel", 10, 15, launched=2)]
    assert idle_us(spans, [work(2, 350, 1000)]) == {("unexplained", None, None): 250}


def test_gaps_inside_a_graph_are_its_own() -> None:
    spans = [
        host("cudaGraphLaunch", 10, 40, launched=2),
        host("cudaGraphLaunch", 50, 60, launched=3),
    ]
    runs = [(2, 110, 200), (2, 220, 300), (2, 700, 800), (3, 850, 1000)]
    found = idle_us(spans, [work(*run) for run in runs])
    assert found == {
        ("queued", None, None): 10 + 50,  # a graph's first kernel waits as any other does
        ("graph", None, None): 20,
        ("unexplained", "a CUDA graph", None): 400,
    }


def test_a_launch_takes_time_to_arrive() -> None:
    spans = [host("cudaLaunchKernel", 95, 98, launched=2)]
    found = idle_us(spans, [work(2, 130, 1000)])
    assert found == {("launches", None, None): 15, ("queued", None, None): 15}


def test_the_loader_is_the_input() -> None:
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    spans = [
        host(loader, 50, 700),
        host("aten::stack", 300, 600),
        host("cudaHostAlloc", 400, 500),
        host("cudaLaunchKernel", 750, 760, launched=2),
    ]
    found = idle_us(spans, [work(2, 770, 1000)])
    assert found == {("input", loader, None): 600, ("launches", None, None): 70}


def test_the_allocator_frees_in_an_op() -> None:
    spans = [
        host("aten::empty", 90, 490),
        host("hipFree", 100, 480),
        host("hipLaunchKernel", 490, 495, launched=2),
    ]
    found = idle_us(spans, [work(2, 500, 1000)])
    assert found == {("allocator", "hipFree", "aten::empty"): 380, ("launches", None, None): 20}


def item(begin_us: float, end_us: float) -> list[HostSpan]:
    return [
        host("aten::item", begin_us - 2, end_us + 2),
        host("aten::_local_scalar_dense", begin_us - 1, end_us + 1),
        host("cudaStreamSynchronize", begin_us, end_us),
    ]


SYNCHRONISED = ("synchronisation", "cudaStreamSynchronize", "aten::item")


def test_a_call_that_waits_accounts_for_as_much_idle_time_as_it_took() -> None:
    # The host waits for 90 us, and the device, which runs dry then, for 150 us.
    spans = [*item(20, 110), host("cudaLaunchKernel", 240, 250, launched=2)]
    found = idle_us(spans, [work(2, 250, 1000)])
    assert found == {SYNCHRONISED: 90, ("launches", None, None): 60}


def test_what_a_call_that_waits_lost_shows_in_later_gaps_too() -> None:
    spans = [
        *item(20, 102),
        host("cudaLaunchKernel", 120, 125, launched=2),
        host("cudaLaunchKernel", 160, 165, launched=3),
        host("cudaLaunchKernel", 260, 265, launched=4),
    ]
    device = [work(2, 130, 140), work(3, 170, 180), work(4, 270, 1000)]
    assert idle_us(spans, device) == {SYNCHRONISED: 82, ("launches", None, None): 68}


def simulated(pauses_us: Sequence[int], runs_us: Sequence[int], waits_after: int | None) -> Trace:
    """A loop that launches a kernel after each pause, and waits once for all of them."""
    spans: list[HostSpan] = []
    device: list[DeviceSpan] = []
    at_us = done_us = 0
    for number, (pause_us, run_us) in enumerate(zip(pauses_us, runs_us, strict=True)):
        launch_us = at_us + pause_us
        spans.append(host("cudaLaunchKernel", launch_us, launch_us + 4, launched=number))
        at_us = launch_us + 4
        begin_us = max(done_us, launch_us + 10)
        done_us = begin_us + run_us
        device.append(work(number, begin_us, done_us))
        if number == waits_after:
            begin_us, at_us = at_us, max(at_us, done_us) + 3
            spans.append(host("cudaStreamSynchronize", begin_us, at_us))
    return Trace("simulated", spans, device)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), min_size=2, max_size=12),
    st.integers(0, 10),
)
def test_a_wait_costs_what_the_step_gains_without_it(
    work_us: list[tuple[int, int]], waits_after: int
) -> None:
    pauses_us, runs_us = zip(*work_us, strict=True)
    waiting = simulated(pauses_us, runs_us, waits_after)
    without = simulated(pauses_us, runs_us, None)
    lost = timeline(waiting, cut_steps(waiting))[0]
    gained_us = waiting.device[-1].end_us - without.device[-1].end_us
    named_s = sum(one.time_s for one in lost.idle if one.cause == "synchronisation")
    assert 1e6 * named_s == pytest.approx(gained_us)


def test_a_call_that_waits_while_more_is_queued_costs_nothing() -> None:
    spans = [
        host("cudaLaunchKernel", 10, 15, launched=2),
        host("cudaEventSynchronize", 20, 102),
        host("cudaLaunchKernel", 560, 565, launched=3),
    ]
    found = idle_us(spans, [work(2, 100, 500), work(3, 570, 1000)])
    assert found == {("launches", None, None): 70}


@pytest.mark.parametrize(
    ("copy", "cause"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "copies"),
        ("CopyHostToDevice", "copies"),
        ("Memcpy DtoH (Device -> Pageable)", "synchronisation"),
    ],
)
def test_a_copy_holds_the_host(copy: str, cause: str) -> None:
    spans = [
        host("aten::to", 190, 460),
        host("cudaMemcpyAsync", 200, 420, launched=2),
        host("cudaStreamSynchronize", 420, 450),
        host("cudaLaunchKernel", 500, 505, launched=3),
    ]
    found = idle_us(spans, [work(2, 400, 430, copy, "copy"), work(3, 510, 1000)])
    # The device had run dry before the first call, and did so again within the second.
    assert found == {
        (cause, "cudaMemcpyAsync", "aten::to"): 200,
        (cause, "cudaStreamSynchronize", "aten::to"): 30,
        ("launches", None, None): 150,
    }


def test_an_asynchronous_copy_is_a_launch() -> None:
    spans = [host("aten::to", 190, 230), host("cudaMemcpyAsync", 200, 205, launched=2)]
    copy = work(2, 220, 1000, "Memcpy HtoD (Pinned -> Device)", "copy")
    assert idle_us(spans, [copy]) == {("launches", None, None): 120}


def test_a_host_that_launches_nothing_for_long() -> None:
    spans = [
        host("aten::randperm", 1000, 4000),
        host("cudaLaunchKernel", 5000, 5010, launched=2),
    ]
    found = idle_us(spans, [work(2, 5020, 6000)], 6000)
    assert found == {
        ("host", None, "aten::randperm"): 3000,
        ("host", None, None): 1900,
        ("launches", None, None): 20,
    }


def test_calls_of_threads_that_launch_nothing_do_not_count() -> None:
    spans = [
        host("cudaEventSynchronize", 20, 500, WATCHDOG),
        host("cudaLaunchKernel", 160, 170, BACKWARD, launched=2),
    ]
    assert idle_us(spans, [work(2, 180, 1000)]) == {("launches", None, None): 80}


def test_a_launch_that_the_trace_lacks_is_not_seen() -> None:
    assert idle_us([], [work(None, 180, 1000)]) == {("not seen", None, None): 80}


def test_what_follows_the_last_work() -> None:
    found = idle_us([host("cudaDeviceSynchronize", 5, 300)], [])
    mark = ("synchronisation", "cudaDeviceSynchronize", None)
    assert found == {mark: 295, ("host", None, None): 605}


def test_no_idle_second_is_of_two_steps() -> None:
    marks = [host("ProfilerStep#1", 0, 50), host("ProfilerStep#2", 50, 100)]
    launches = [
        host("cudaLaunchKernel", 10, 15, launched=1),
        host("cudaLaunchKernel", 60, 65, launched=2),
    ]
    trace = Trace("two", [marks[0], launches[0], marks[1], launches[1]], [])
    trace.device = [work(1, 20, 200), work(2, 230, 300)]
    first, second = timeline(trace, cut_steps(trace))
    assert (first.idle_s, second.idle_s) == (pytest.approx(20e-6), pytest.approx(30e-6))
    assert second.idle == (IdleCause("queued", pytest.approx(30e-6)),)
