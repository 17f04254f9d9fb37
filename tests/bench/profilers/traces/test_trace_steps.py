"""Seconds of a step: against published readings of real traces, and for any spans."""

import csv
import gzip
import json
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.traces.record import left_out
from bench.errors import UserError
from bench.profilers.traces import DeviceSpan, HostSpan, ProfilerTrace, read_trace
from bench.profilers.traces.steps import (
    WHOLE,
    StepSpans,
    cut_steps,
    device_windows,
    loader_share,
    timeline,
)

TRACES = Path(__file__).parents[3] / "data" / "traces"
WORKERS0, WORKERS4 = (f"v100_resnet50_b32_workers{count}.pt.trace.json.gz" for count in (0, 4))
MI300X = "mi300x_resnet18_b10_8ranks_checkpointing.json.gz"
THREAD = (1, 1)


@cache
def read(name):
    """A trace, its steps and their times."""
    trace = read_trace(TRACES / name)
    steps = cut_steps(trace)
    return trace, steps, timeline(trace, steps)


#: Microseconds that TensorBoard says the device was busy, and that the step took.
BUSY = {
    WORKERS0: [(100629, 176078), (100606, 173992), (100618, 176918), (100650, 181259),
               (100528, 176468), (100527, 164261)],
    WORKERS4: [(103482, 181565), (102254, 123884), (102161, 126824), (102093, 126272),
               (102484, 163461), (101939, 116146)],
}  # fmt: skip


@pytest.mark.parametrize("name", BUSY)
def test_the_device_is_as_busy_as_tensorboard_says(name):
    *_, times = read(name)
    assert [time.name for time in times] == [f"ProfilerStep#{number}" for number in range(5, 11)]
    found = [(round(1e6 * time.device_busy_s), round(1e6 * time.wall_s)) for time in times]
    assert found == BUSY[name]


def test_the_loader_takes_the_share_that_tensorboard_gives_it():
    _, steps, times = read(WORKERS0)
    waited_s = sum(time.idle_s_by_cause["input"] for time in times)
    assert waited_s / sum(time.wall_s for time in times) == pytest.approx(0.334, abs=0.003)
    assert loader_share(steps) == pytest.approx(0.3947, abs=1e-4)
    loader = times[1].idle[0]
    assert (loader.cause, loader.op) == ("input", None)
    assert loader.call == "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def test_slow_steps_with_loader_processes_did_not_wait_for_the_loader():
    *_, times = read(WORKERS4)
    assert all(time.idle_s_by_cause.get("input", 0) < 0.03 * time.wall_s for time in times)
    # The fifth step's 40 ms in aten::to: the call that copies pageable memory held the device up.
    longest = times[0].idle[0]
    assert (longest.cause, longest.call, longest.op) == ("copies", "cudaMemcpyAsync", "aten::to")
    assert 1e3 * longest.time_s == pytest.approx(36.4, abs=0.1)
    assert [time.idle[0].cause for time in times[1:]] == ["launches"] * 5


def test_communication_copies_and_idle_time_are_tracelenss():
    """It leaves out fills, what was launched before the trace, and here what was recomputed."""
    trace, *_ = read(MI300X)
    # TraceLens reads Python's frames, which this project's reader leaves out.
    with gzip.open(TRACES / MI300X) as file:
        recomputed = [
            (event["ts"], event["ts"] + event["dur"])
            for event in json.load(file)["traceEvents"]
            if event.get("cat") == "python_function"
            and "torch/utils/checkpoint.py" in event["name"]
            and "recompute_fn" in event["name"]
        ]
    runs = [
        run
        for run in trace.device
        if run.kind != "fill" and (launch := trace.launch_of(run)) is not None
        if not any(begin <= launch.begin_us <= end for begin, end in recomputed)
    ]
    limits_us = min(run.begin_us for run in runs), max(run.end_us for run in runs)
    step = StepSpans("counted", *limits_us, list(trace.host), runs)
    [found] = timeline(ProfilerTrace(trace.path, trace.host, runs), [step])

    with (TRACES / "mi300x_resnet18_expected" / "gpu_timeline.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["is_recompute"] == "False"]
    theirs_s = {row["type"]: float(row["time ms"]) / 1e3 for row in rows}
    names = {"computation_s": "computation_time", "exposed_communication_s": "exposed_comm_time"}
    names |= {"exposed_copies_s": "exposed_memcpy_time", "device_busy_s": "busy_time"}
    names |= {"idle_s": "idle_time", "communication_s": "total_comm_time"}
    for ours, theirs in names.items():
        assert getattr(found, ours) == pytest.approx(theirs_s[theirs], abs=1e-7)


def test_steps_share_the_device_where_the_host_runs_ahead():
    trace, steps, times = read(MI300X)
    windows = device_windows(trace, steps)
    assert all(one[1] <= two[0] for one, two in pairwise(windows))
    assert [time.wall_s < time.device_busy_s for time in times] == [True] * 3
    for time, (begin_us, end_us) in zip(times, windows, strict=True):
        assert time.device_busy_s + time.idle_s == pytest.approx((end_us - begin_us) / 1e6)
        # What ran of earlier steps, 30 ms, is not the first one's.
        assert 0.018 < time.device_busy_s < 0.019
        assert time.communication_s == pytest.approx(0.0157, abs=0.0003)
        assert {cause.cause for cause in time.idle} == {"queued"}


@pytest.mark.parametrize(
    ("mark", "steps"),
    [
        (None, [("ProfilerStep#1", 10, 50, "ab"), ("ProfilerStep#2", 50, 90, "d")]),
        ("outer", [("outer#1", 5, 95, "abd")]),  # another of that name is inside
        (WHOLE, [(WHOLE, 60, 99, "abde")]),
    ],
)
def test_what_belongs_to_a_step(mark, steps):
    marks = [("outer#1", 5, 95), ("outer#2", 6, 7), ("ProfilerStep#1", 10, 50)]
    marks += [("ProfilerStep#2", 50, 90)]
    host = [HostSpan(name, "mark", begin, end, THREAD) for name, begin, end in marks]
    host.append(HostSpan("cudaLaunchKernel", "call", 20, 21, THREAD, correlation=1))
    device = [
        DeviceSpan("c", "kernel", 15, 16, 0, 7),  # before its stream's first known launch
        DeviceSpan("a", "kernel", 60, 61, 0, 7, 1),
        DeviceSpan("d", "kernel", 65, 66, 0, 8),  # a stream without launches
        DeviceSpan("b", "kernel", 70, 71, 0, 7),  # after a, on its stream
        DeviceSpan("e", "kernel", 98, 99, 0, 8),
    ]
    found = cut_steps(ProfilerTrace("t", host, device), mark)
    ran = ["".join(sorted(run.name for run in step.device)) for step in found]
    assert [(s.name, s.begin_us, s.end_us) for s in found] == [step[:3] for step in steps]
    assert ran == [step[3] for step in steps]


COMMUNICATE = [
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
    "mscclKernel_Sum_half_LL_false(ncclDevComm*, mscclAlgo*)",
    "void ccl::v1::allreduce_kernel<float>(float*)",
    "hcom_allReduce__001",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(void*)",
    "void c10d::symmetric_memory::barrier_kernel(unsigned int**)",
    "void deep_ep::intranode::dispatch<8, 768>(int4*)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
    "nvshmemi_transfer_rma_nbi",
]
COMPUTE = [
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
    "void at::native::vectorized_elementwise_kernel<4, FillFunctor<float>>(int)",
    "triton_red_fused_native_layer_norm_0",
    "void cub::DeviceScanKernel<cub::BlockAllReduce>(int)",
]


def test_kernels_that_wait_for_other_ranks():
    spans = [DeviceSpan(name, "kernel", 0, 1, 0, 0) for name in (*COMMUNICATE, *COMPUTE)]
    assert [span.name for span in spans if span.communicates] == COMMUNICATE


#: Times of made-up traces are whole multiples of it.
TICK_US = 50


def ticks(least, most):
    return st.integers(least, most).map(lambda number: TICK_US * number)


@st.composite
def traces(draw):
    """Steps of any length, launches in them, work on two streams that may be late or unlaunched."""
    host, at_us = [], 0
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
    return ProfilerTrace("any", host, sorted(device, key=lambda span: span.begin_us))


@settings(max_examples=40)
@given(traces())
def test_times_of_any_trace_add_up(trace):
    steps = cut_steps(trace)
    windows = device_windows(trace, steps)
    times = timeline(trace, steps)
    busy = {tick for run in trace.device for tick in in_ticks(run.begin_us, run.end_us)}
    for time, (begin_us, end_us) in zip(times, windows, strict=True):
        covered_us = TICK_US * len(busy & set(in_ticks(begin_us, end_us)))
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


def in_ticks(begin_us, end_us):
    return range(int(begin_us) // TICK_US, int(end_us) // TICK_US)


def _span(name, begin_us, end_us, thread=THREAD, kind="op"):
    return HostSpan(name, kind, begin_us, end_us, thread)


def _step(number, begin_us, *spans):
    return [_span(f"ProfilerStep#{number}", begin_us, begin_us + 100, kind="mark"), *spans]


def _held(what, begin_us):
    """What a mark holds: T trains, o is an op, s waits for the device, a dot nothing."""
    if what == "s":
        return [_span("cudaDeviceSynchronize", begin_us + 10, begin_us + 40, kind="call")]
    ops = [_span("aten::addmm", begin_us, begin_us + 40)] * (what != ".")
    return ops + [_span("AddmmBackward0", begin_us + 45, begin_us + 95)] * (what == "T")


@pytest.mark.parametrize(
    ("marks", "kept"),
    [
        *((marks, [0, 1]) for marks in ("TT.", "TTo", "TTs")),
        ("T.T", [0, 1, 2]),
        *((marks, [1, 2]) for marks in (".TT", "oTT")),
        # where none has a backward pass, few without work
        (".ooo", [1, 2, 3]), ("ooo..", [0, 1, 2]), ("o...", [0, 1, 2, 3]),
    ],
)  # fmt: skip
def test_first_and_last_marks_without_the_work_of_the_others_are_no_steps(marks, kept):
    host = [
        span
        for number, what in enumerate(marks)
        for span in _step(number, 100 * number, *_held(what, 100 * number))
    ]
    trace = ProfilerTrace("t", host, [])
    steps = cut_steps(trace)
    assert [step.name for step in steps] == [f"ProfilerStep#{number}" for number in kept]
    early = kept[0] * ["Left out, as the training began later: ProfilerStep#0"]
    late = [f"ProfilerStep#{number}" for number in range(kept[-1] + 1, len(marks))]
    late = [f"Left out, as the training had ended before: {', '.join(late)}"] if late else []
    assert [*left_out(trace, steps)] == early + late


def test_a_last_mark_in_which_the_host_alone_works_is_no_step_of_a_device():
    host = [span for number in (1, 2, 3) for span in _step(number, 100 * number)]
    host.append(_span("aten::item", 310, 340))
    runs = [DeviceSpan("gemm", "kernel", begin_us, begin_us + 80, 0, 7) for begin_us in (110, 210)]
    steps = cut_steps(ProfilerTrace("t", host, runs))
    assert [step.name for step in steps] == ["ProfilerStep#1", "ProfilerStep#2"]


def test_ops_of_other_threads_are_beside_the_step():
    other, engine = (1, 2), (1, 3)
    host = [
        *_step(1, 0, _span("aten::addmm", 0, 40)),
        _span("aten::mm", 0, 90, other),
        _span("AddmmBackward0", 45, 95, engine),
    ]
    [step] = cut_steps(ProfilerTrace("t", host, []))
    assert [span.name for span in step.host] == ["ProfilerStep#1", "aten::addmm", "AddmmBackward0"]


def test_steps_of_several_processes_in_one_file_are_refused():
    host = [*_step(1, 0, *_held("T", 0)), _span("ProfilerStep#1", 10, 90, (2, 2), "mark")]
    with pytest.raises(UserError, match="2 processes"):
        cut_steps(ProfilerTrace("t", host, []))
    runs = [DeviceSpan("gemm", "kernel", 10, 90, device, 7) for device in (0, 1)]
    with pytest.raises(UserError, match="2 processes"):
        cut_steps(ProfilerTrace("t", host, runs[:1]))
    assert len(cut_steps(ProfilerTrace("t", host, runs))) == 1
