"""Seconds of a step: against published readings of real traces, and for any spans."""

from __future__ import annotations

import csv
import gzip
import json
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.traces.idle import IdleCause
from analysis.traces.steps import StepSpans, cut_steps
from analysis.traces.timeline import StepTime, device_windows, timeline
from bench.profilers.traces import DeviceSpan, HostSpan, Trace, read_trace

TRACES = Path(__file__).parents[1] / "data" / "traces"
MI300X = TRACES / "mi300x_resnet18_b10_8ranks_checkpointing.json.gz"
THREAD = (1, 1)


@cache
def trace_of(name: str) -> Trace:
    return read_trace(TRACES / name)


@cache
def times_of(name: str) -> list[StepTime]:
    trace = trace_of(name)
    return timeline(trace, cut_steps(trace))


def share(time: StepTime, cause: str) -> float:
    return sum(one.time_s for one in time.idle if one.cause == cause) / time.wall_s


@pytest.mark.parametrize(
    ("name", "busy_us", "wall_us"),
    [
        (
            "v100_resnet50_b32_workers0.pt.trace.json.gz",
            [100629, 100606, 100618, 100650, 100528, 100527],
            [176078, 173992, 176918, 181259, 176468, 164261],
        ),
        (
            "v100_resnet50_b32_workers4.pt.trace.json.gz",
            [103482, 102254, 102161, 102093, 102484, 101939],
            [181565, 123884, 126824, 126272, 163461, 116146],
        ),
    ],
)
def test_the_device_is_as_busy_as_tensorboard_says(
    name: str, busy_us: list[int], wall_us: list[int]
) -> None:
    times = times_of(name)
    assert [time.name for time in times] == [f"ProfilerStep#{number}" for number in range(5, 11)]
    assert [round(1e6 * (time.device_busy_s or 0)) for time in times] == busy_us
    assert [round(1e6 * time.wall_s) for time in times] == wall_us


def test_the_loader_takes_the_share_that_tensorboard_gives_it() -> None:
    times = times_of("v100_resnet50_b32_workers0.pt.trace.json.gz")
    waited_s = sum(one.time_s for time in times for one in time.idle if one.cause == "input")
    assert waited_s / sum(time.wall_s for time in times) == pytest.approx(0.334, abs=0.003)
    assert [round(1e3 * (time.loader_s or 0)) for time in times] == [69, 69, 73, 71, 71, 63]
    loader = times[1].idle[0]
    assert (loader.cause, loader.op) == ("input", None)
    assert loader.call == "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def test_slow_steps_with_loader_processes_did_not_wait_for_the_loader() -> None:
    times = times_of("v100_resnet50_b32_workers4.pt.trace.json.gz")
    assert all(share(time, "input") < 0.03 for time in times)
    # The fifth step's 40 ms in aten::to: the call that copies pageable memory held the device up.
    assert times[0].idle[0].cause == "copies"
    assert (times[0].idle[0].call, times[0].idle[0].op) == ("cudaMemcpyAsync", "aten::to")
    assert 1e3 * times[0].idle[0].time_s == pytest.approx(36.4, abs=0.1)
    assert [time.idle[0].cause for time in times[1:]] == ["launches"] * 5


def test_communication_copies_and_idle_time_are_tracelenss() -> None:
    """It leaves out fills, what was launched before the trace, and here what was recomputed."""
    trace = trace_of(MI300X.name)
    runs = [run for run in trace.device if run.kind != "fill" and _counts(trace, run)]
    begin_us = min(run.begin_us for run in runs)
    end_us = max(run.end_us for run in runs)
    step = StepSpans("counted", begin_us, end_us, list(trace.host), runs)
    found = timeline(Trace(trace.path, trace.host, runs), [step])[0]

    with (TRACES / "mi300x_resnet18_expected" / "gpu_timeline.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["is_recompute"] == "False"]
    theirs = {row["type"]: float(row["time ms"]) for row in rows}
    assert {
        "computation_time": found.computation_s,
        "exposed_comm_time": found.exposed_communication_s,
        "exposed_memcpy_time": found.exposed_copies_s,
        "busy_time": found.device_busy_s,
        "idle_time": found.idle_s,
        "total_comm_time": found.communication_s,
    } == {
        name: pytest.approx(theirs[name] / 1e3, abs=1e-7)
        for name in theirs
        if name not in ("total_time", "total_memcpy_time")
    }


@cache
def _recomputation() -> list[tuple[float, float]]:
    """TraceLens reads Python's frames, which this project's reader leaves out."""
    with gzip.open(MI300X) as file:
        events = json.load(file)["traceEvents"]
    return [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "python_function"
        and "torch/utils/checkpoint.py" in event["name"]
        and "recompute_fn" in event["name"]
    ]


def _counts(trace: Trace, run: DeviceSpan) -> bool:
    launch = trace.launch_of(run)
    return launch is not None and not any(
        begin <= launch.begin_us <= end for begin, end in _recomputation()
    )


def test_steps_share_the_device_where_the_host_runs_ahead() -> None:
    trace = trace_of(MI300X.name)
    steps = cut_steps(trace)
    times = timeline(trace, steps)
    windows = device_windows(trace, steps)
    assert all(one[1] <= two[0] for one, two in pairwise(windows))
    assert [time.wall_s < (time.device_busy_s or 0) for time in times] == [True] * 3
    for time, (begin_us, end_us) in zip(times, windows, strict=True):
        assert time.device_busy_s is not None
        assert time.idle_s is not None
        assert time.device_busy_s + time.idle_s == pytest.approx((end_us - begin_us) / 1e6)
        # What ran of earlier steps, 30 ms, is not the first one's.
        assert 0.018 < time.device_busy_s < 0.019
        assert time.communication_s == pytest.approx(0.0157, abs=0.0003)
        assert {cause.cause for cause in time.idle} == {"queued"}


def test_a_trace_without_a_device_says_so() -> None:
    trace = Trace("cpu", [HostSpan("ProfilerStep#1", "mark", 0, 5e6, THREAD)], [])
    time = timeline(trace, cut_steps(trace))[0]
    assert (time.wall_s, time.device_busy_s, time.idle_s) == (5.0, None, None)
    assert time.missing["idle_s"] == "the trace holds no kernel, copy or fill of a device"
    assert time.missing["loader_s"] == "the step has no mark of a data loader"
    assert set(time.missing) == {name for name, value in vars(time).items() if value is None}


def test_several_devices_are_averaged() -> None:
    runs = [DeviceSpan("k", "kernel", 0, 4e6, 0, 7), DeviceSpan("k", "kernel", 0, 8e6, 1, 7)]
    time = timeline(Trace("two", [], runs), [StepSpans("whole", 0, 8e6, [], runs)])[0]
    assert (time.device_busy_s, time.computation_s, time.idle_s) == (6.0, 6.0, 2.0)
    assert time.idle == (IdleCause("not seen", 2.0),)


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
        "mscclKernel_Sum_half_LL_false(ncclDevComm*, mscclAlgo*)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(void*)",
        "void c10d::symmetric_memory::barrier_kernel(unsigned int**)",
        "void deep_ep::intranode::dispatch<8, 768>(int4*)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "nvshmemi_transfer_rma_nbi",
    ],
)
def test_kernels_that_wait_for_other_ranks(name: str) -> None:
    assert DeviceSpan(name, "kernel", 0, 1, 0, 0).communicates


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
        "void at::native::vectorized_elementwise_kernel<4, FillFunctor<float>>(int)",
        "triton_red_fused_native_layer_norm_0",
        "void cub::DeviceScanKernel<cub::BlockAllReduce>(int)",
    ],
)
def test_kernels_that_compute(name: str) -> None:
    assert not DeviceSpan(name, "kernel", 0, 1, 0, 0).communicates


#: Times of made-up traces are whole multiples of it.
TICK_US = 50


def ticks(least: int, most: int) -> st.SearchStrategy[int]:
    return st.integers(least, most).map(lambda number: TICK_US * number)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Steps of any length, launches in them, work on two streams that may be late or unlaunched."""
    host = []
    at_us = 0
    for number in range(draw(st.integers(1, 4))):
        end_us = at_us + draw(ticks(1, 60))
        host.append(HostSpan(f"ProfilerStep#{number}", "mark", at_us, end_us, THREAD))
        at_us = end_us + draw(ticks(0, 3))
    names = ("enumerate(DataLoader)#x.__next__", "cudaFree", "cudaStreamSynchronize", "aten::to")
    for name in draw(st.lists(st.sampled_from(names), max_size=6)):
        kind = "call" if name.startswith("cuda") else "op" if "::" in name else "mark"
        begin_us = draw(ticks(0, 80))
        host.append(HostSpan(name, kind, begin_us, begin_us + draw(ticks(0, 40)), THREAD))
    device = []
    for number in range(draw(st.integers(1, 12))):
        launch_us = draw(ticks(-2, 100))
        if draw(st.booleans()):
            launch = HostSpan("cudaLaunchKernel", "call", launch_us, launch_us + 5, THREAD)
            launch.correlation = number
            host.append(launch)
        begin_us = launch_us + draw(ticks(-1, 60))
        kind = draw(st.sampled_from(("kernel", "kernel", "copy", "fill")))
        name = draw(st.sampled_from(("gemm", "ncclKernel", "Memcpy HtoD (Pageable -> Device)")))
        end_us = begin_us + draw(ticks(0, 16))
        device.append(DeviceSpan(name, kind, begin_us, end_us, 0, number % 2, number))
    host.sort(key=lambda span: (span.begin_us, -span.end_us))
    return Trace("any", host, sorted(device, key=lambda span: span.begin_us))


@settings(max_examples=40)
@given(traces())
def test_times_of_any_trace_add_up(trace: Trace) -> None:
    steps = cut_steps(trace)
    windows = device_windows(trace, steps)
    times = timeline(trace, steps)
    for time, (begin_us, end_us) in zip(times, windows, strict=True):
        ran = [(r.begin_us, r.end_us) for r in trace.device]
        covered_us = _covered(ran, begin_us, end_us)
        assert time.idle_s == pytest.approx((end_us - begin_us - covered_us) / 1e6, abs=1e-12)
        assert sum(cause.time_s for cause in time.idle) == time.idle_s
        assert all(cause.time_s > 0 for cause in time.idle)
        assert sorted(time.idle, key=lambda cause: -cause.time_s) == list(time.idle)
        parts_s = time.computation_s + time.exposed_communication_s + time.exposed_copies_s
        assert 0 <= parts_s <= time.device_busy_s + 1e-12
        assert 0 <= time.exposed_communication_s <= time.communication_s + 1e-12
    if len(steps) == 1 and len(steps[0].device) == len(trace.device):
        assert parts_s == pytest.approx(time.device_busy_s)
    for one, two in pairwise(windows):
        assert one[0] <= one[1] <= two[0]


def _covered(ran: list[tuple[float, float]], begin_us: float, end_us: float) -> float:
    """Tick by tick."""

    def ticks_of(begin_us: float, end_us: float) -> range:
        return range(int(begin_us) // TICK_US, int(end_us) // TICK_US)

    busy = {tick for begin, end in ran for tick in ticks_of(begin, end)}
    return TICK_US * len(busy & set(ticks_of(begin_us, end_us)))
