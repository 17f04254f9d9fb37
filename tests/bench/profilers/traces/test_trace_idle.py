"""Each cause of idle time, on a step of 1 ms whose device works from 0 to 100 us at least."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.profilers.traces import DeviceSpan, HostSpan, ProfilerTrace
from bench.profilers.traces.steps import cut_steps, timeline

MAIN, BACKWARD, WATCHDOG = (1, 1), (1, 2), (1, 3)
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
TO_DEVICE = "Memcpy HtoD (Pageable -> Device)"
SYNCHRONISED = ("synchronisation", "cudaStreamSynchronize", "aten::item")


def host(name, begin_us, end_us, launched=None, thread=MAIN):
    kind = "call" if name.startswith(("cuda", "hip")) else "mark" if "#" in name else "op"
    return HostSpan(name, kind, begin_us, end_us, thread, correlation=launched)


def launch(begin_us, number, name="cudaLaunchKernel", **facts):
    return host(name, begin_us, begin_us + 5, number, **facts)


def work(number, begin_us, end_us, name="gemm", kind="kernel"):
    return DeviceSpan(name, kind, begin_us, end_us, 0, 7, number)


def item(begin_us, end_us):
    return [
        host("aten::item", begin_us - 2, end_us + 2),
        host("aten::_local_scalar_dense", begin_us - 1, end_us + 1),
        host("cudaStreamSynchronize", begin_us, end_us),
    ]


def copied(name, cause):
    """The device had run dry before the first call, and did so again within the second."""
    spans = [
        host("aten::to", 190, 460),
        host("cudaMemcpyAsync", 200, 420, 2),
        host("cudaStreamSynchronize", 420, 450),
        launch(500, 3),
    ]
    lost = {
        (cause, "cudaMemcpyAsync", "aten::to"): 200,
        (cause, "cudaStreamSynchronize", "aten::to"): 30,
        "launches": 150,
    }
    return spans, [work(2, 400, 430, name, "copy"), work(3, 510, 1000)], lost


CASES = {
    "the host launches one by one": (
        [host("aten::add", 150, 180), launch(160, 2)],
        [work(2, 180, 1000)],
        {"launches": 80},
    ),
    "work that was queued waits on the device": (
        [host("cudaGraphLaunch", 10, 40, 2)],
        [work(2, 150, 1000)],
        {"queued": 50},
    ),
    "launched work that begins late waits for what the trace lacks": (
        [launch(10, 2)],
        [work(2, 350, 1000)],
        {"unexplained": 250},
    ),
    "gaps inside a graph are its own; its first kernel waits as any other does": (
        [host("cudaGraphLaunch", 10, 40, 2), host("cudaGraphLaunch", 50, 60, 3)],
        [work(2, 110, 200), work(2, 220, 300), work(2, 700, 800), work(3, 850, 1000)],
        {"queued": 10 + 50, "graph": 20, ("unexplained", "a CUDA graph", None): 400},
    ),
    "a launch takes time to arrive": (
        [launch(95, 2)],
        [work(2, 130, 1000)],
        {"launches": 15, "queued": 15},
    ),
    "the loader is the input": (
        [
            host(LOADER, 50, 700),
            host("aten::stack", 300, 600),
            host("cudaHostAlloc", 400, 500),
            launch(750, 2),
        ],
        [work(2, 770, 1000)],
        {("input", LOADER, None): 600, "launches": 70},
    ),
    "the allocator frees in an op": (
        [host("aten::empty", 90, 490), host("hipFree", 100, 480), launch(490, 2, "hipLaunch")],
        [work(2, 500, 1000)],
        {("allocator", "hipFree", "aten::empty"): 380, "launches": 20},
    ),
    "a call outside of ops is in the innermost mark that is not the step's": (
        [
            host("outer#", 80, 400),
            host("mine#", 90, 390),
            host("cudaFree", 100, 380),
            launch(380, 2),
        ],
        [work(2, 400, 1000)],
        {("allocator", "cudaFree", "mine#"): 280, "launches": 20},
    ),
    "a call that waits accounts for as much idle time as it took": (
        # The host waits for 90 us, and the device, which runs dry then, for 150 us.
        [*item(20, 110), launch(240, 2)],
        [work(2, 250, 1000)],
        {SYNCHRONISED: 90, "launches": 60},
    ),
    "what a call that waits lost shows in later gaps too": (
        [*item(20, 102), launch(120, 2), launch(160, 3), launch(260, 4)],
        [work(2, 130, 140), work(3, 170, 180), work(4, 270, 1000)],
        {SYNCHRONISED: 82, "launches": 68},
    ),
    "a call that waits while more is queued costs nothing": (
        [launch(10, 2), host("cudaEventSynchronize", 20, 102), launch(560, 3)],
        [work(2, 100, 500), work(3, 570, 1000)],
        {"launches": 70},
    ),
    "a copy of pageable memory holds the host": copied(TO_DEVICE, "copies"),
    "so does a copy under another name": copied("CopyHostToDevice", "copies"),
    "a copy from the device is a synchronisation": copied(
        "Memcpy DtoH (Device -> Pageable)", "synchronisation"
    ),
    "an asynchronous copy is a launch": (
        [host("aten::to", 190, 230), launch(200, 2, "cudaMemcpyAsync")],
        [work(2, 220, 1000, "Memcpy HtoD (Pinned -> Device)", "copy")],
        {"launches": 120},
    ),
    "a host that launches nothing for long": (
        [host("aten::randperm", 1000, 4000), host("cudaLaunchKernel", 5000, 5010, 2)],
        [work(2, 5020, 6000)],
        {("host", None, "aten::randperm"): 3000, "host": 1900, "launches": 20},
    ),
    "calls of threads that launch nothing do not count": (
        [host("cudaEventSynchronize", 20, 500, thread=WATCHDOG), launch(160, 2, thread=BACKWARD)],
        [work(2, 180, 1000)],
        {"launches": 80},
    ),
    "a launch that the trace lacks is not seen": ([], [work(None, 180, 1000)], {"not seen": 80}),
    "what follows the last work": (
        [host("cudaDeviceSynchronize", 5, 300)],
        [],
        {("synchronisation", "cudaDeviceSynchronize", None): 295, "host": 605},
    ),
}


@pytest.mark.parametrize(("spans", "device", "lost_us"), CASES.values(), ids=CASES.keys())
def test_idle_time_by_cause_call_and_op(spans, device, lost_us):
    end_us = max([1000, *(run.end_us for run in device)])
    everything = [host("ProfilerStep#1", 0, end_us), launch(0, 1), *spans]
    everything.sort(key=lambda span: (span.begin_us, -span.end_us))
    trace = ProfilerTrace("step", everything, [work(1, 0, 100), *device])
    [step] = timeline(trace, cut_steps(trace))
    found_us = {(one.cause, one.call, one.op): round(1e6 * one.time_s, 3) for one in step.idle}
    whole = {
        key if isinstance(key, tuple) else (key, None, None): us for key, us in lost_us.items()
    }
    assert found_us == whole


def simulated(steps_us, waits_after):
    """A loop that launches a kernel after each pause, and waits once for all of them."""
    spans, device = [], []
    at_us = done_us = 0
    for number, (pause_us, run_us) in enumerate(steps_us):
        launch_us = at_us + pause_us
        spans.append(host("cudaLaunchKernel", launch_us, launch_us + 4, number))
        at_us = launch_us + 4
        begin_us = max(done_us, launch_us + 10)
        done_us = begin_us + run_us
        device.append(work(number, begin_us, done_us))
        if number == waits_after:
            begin_us, at_us = at_us, max(at_us, done_us) + 3
            spans.append(host("cudaStreamSynchronize", begin_us, at_us))
    return ProfilerTrace("simulated", spans, device)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), min_size=2, max_size=12),
    st.integers(0, 10),
)
def test_a_wait_costs_what_the_step_gains_without_it(steps_us, waits_after):
    waiting, without = simulated(steps_us, waits_after), simulated(steps_us, None)
    lost = timeline(waiting, cut_steps(waiting))[0]
    gained_us = waiting.device[-1].end_us - without.device[-1].end_us
    named_s = sum(one.time_s for one in lost.idle if one.cause == "synchronisation")
    assert 1e6 * named_s == pytest.approx(gained_us)


def test_no_idle_second_is_of_two_steps():
    first, second = host("ProfilerStep#1", 0, 50), host("ProfilerStep#2", 50, 100)
    spans = [first, launch(10, 1), second, launch(60, 2)]
    trace = ProfilerTrace("two", spans, [work(1, 20, 200), work(2, 230, 300)])
    one, two = timeline(trace, cut_steps(trace))
    assert (one.idle_s, two.idle_s) == (pytest.approx(20e-6), pytest.approx(30e-6))
    assert [idle.cause for idle in two.idle] == ["queued"]
