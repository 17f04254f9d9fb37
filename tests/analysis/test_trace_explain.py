"""The bound of a trace and its advice: of real traces, and of each cause of lost time."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from analysis.traces.explain import Explanation, explain, time_by_cause
from analysis.traces.idle import IdleCause
from analysis.traces.steps import cut_steps
from analysis.traces.timeline import StepTime, timeline
from bench.profilers.traces import HostSpan, Trace, read_trace

TRACES = Path(__file__).parents[1] / "data" / "traces"


def explained(name: str) -> Explanation:
    trace = read_trace(TRACES / name)
    return explain(timeline(trace, cut_steps(trace)))


def test_the_loader_in_the_steps_own_process_is_the_bound() -> None:
    found = explained("v100_resnet50_b32_workers0.pt.trace.json.gz")
    assert found.bound == "input"
    assert found.shares["input"] == pytest.approx(0.33, abs=0.01)
    assert "56 % computation, 33 % waiting for the data loader" in found.sentences[0]
    assert found.sentences[1].startswith("Input, mean of a step: 58.7 ms in enumerate(DataLoader)#")
    assert "num_workers above 0" in found.advice[0]
    assert "CUDA graphs" in found.advice[1]


def test_with_loader_processes_it_is_computation_and_slow_steps_are_told() -> None:
    found = explained("v100_resnet50_b32_workers4.pt.trace.json.gz")
    assert found.bound == "computation"
    assert found.shares["input"] < 0.02
    assert found.sentences[1:] == (
        "ProfilerStep#5 takes 182 ms: 36.5 ms more of copies, and waiting for them and 13.1 ms "
        "more of launching one by one",
        "ProfilerStep#9 takes 163 ms: 32.6 ms more of launching one by one",
    )


def test_eight_ranks_wait_for_each_other() -> None:
    found = explained("mi300x_resnet18_b10_8ranks_checkpointing.json.gz")
    assert found.bound == "communication"
    assert found.shares["communication"] == pytest.approx(0.62, abs=0.01)
    assert any("26 % of it beside computation" in sentence for sentence in found.sentences)
    assert any(sentence.startswith("The host runs ahead") for sentence in found.sentences)
    assert len(found.advice) == 1
    assert "bucket_cap_mb" in found.advice[0]


def test_a_trace_without_a_device_has_no_bound() -> None:
    found = explained("a100_alexnet_cupti_counters.json.gz")
    assert (found.bound, found.advice) == ("not known", ())
    assert "no kernel, copy or fill" in found.sentences[0]


@pytest.mark.parametrize(
    ("loader_us", "bound", "advised"),
    [(60, "input", True), (40, "compute", True), (4, "compute", False)],
)
def test_a_processors_loader(loader_us: float, bound: str, advised: bool) -> None:
    host = [
        HostSpan("ProfilerStep#1", "mark", 0, 100, (1, 1)),
        HostSpan(
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
            "mark",
            10,
            10 + loader_us,
            (1, 1),
        ),
    ]
    trace = Trace("cpu", host, [])
    found = explain(timeline(trace, cut_steps(trace)), "compute")
    assert found.bound == bound
    assert any("more loader processes" in advice for advice in found.advice) == advised


def step(computation_s: float, *idle: IdleCause, copies_s: float = 0.0) -> StepTime:
    return StepTime(
        name="step",
        wall_s=1.0,
        device_busy_s=computation_s + copies_s,
        computation_s=computation_s,
        exposed_communication_s=0.0,
        exposed_copies_s=copies_s,
        idle_s=sum(cause.time_s for cause in idle),
        communication_s=0.0,
        loader_s=None,
        idle=idle,
    )


@pytest.mark.parametrize(
    ("cause", "named", "others"),
    [
        (IdleCause("launches", 0.6), "CUDA graphs", "pinned"),
        (IdleCause("allocator", 0.6, "cudaFree", "aten::empty"), "expandable_segments", "batch, "),
        (
            IdleCause("synchronisation", 0.6, "cudaStreamSynchronize", "aten::item"),
            "(aten::item): .item()",
            "CUDA graphs",
        ),
        (IdleCause("copies", 0.6, "cudaMemcpyAsync", "aten::to"), "non_blocking", "CUDA graphs"),
        (IdleCause("host", 0.6, None, "aten::randperm"), "(aten::randperm)", "CUDA graphs"),
        (IdleCause("queued", 0.6), "launched in time", "CUDA graphs"),
        (IdleCause("graph", 0.6), "CUDA graph", "torch.compile"),
        (IdleCause("unexplained", 0.6), "another process", "torch.compile"),
        (IdleCause("not seen", 0.6), "activities=[CPU, CUDA]", "CUDA graphs"),
        (
            IdleCause("input", 0.6, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter"),
            "prefetch_factor",
            "CUDA graphs",
        ),
    ],
)
def test_advice_follows_the_cause(cause: IdleCause, named: str, others: str) -> None:
    found = explain([step(0.4, cause)])
    assert found.bound == ("not known" if cause.cause == "unexplained" else cause.cause)
    assert len(found.advice) == 1
    assert named in found.advice[0]
    assert others not in found.advice[0]


@pytest.mark.parametrize("cause", ["launches", "queued"])
def test_what_is_compiled_already_is_not_told_to_be(cause: Literal["launches", "queued"]) -> None:
    steps = [step(0.4, IdleCause(cause, 0.6))]
    assert "torch.compile" in explain(steps).advice[0]
    assert "torch.compile" not in explain(steps, compiled=True).advice[0]


def test_copies_on_the_device_are_not_the_hosts() -> None:
    found = explain([step(0.4, IdleCause("copies", 0.01, "cudaMemcpyAsync"), copies_s=0.6)])
    assert found.bound == "copies"
    assert "conversions of layout" in found.advice[0]


def test_input_counts_as_in_a_runs_bound() -> None:
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert explain([step(0.8, IdleCause("input", 0.2, loader))]).bound == "input"
    less = step(0.7, IdleCause("input", 0.14, loader), IdleCause("launches", 0.16))
    assert explain([less]).bound == "computation"
    assert explain([step(0.96, IdleCause("input", 0.04, loader))]).bound == "computation"


def test_a_roof_says_what_the_computation_is_bound_by() -> None:
    busy, idle = step(0.9), step(0.1, IdleCause("launches", 0.9))
    assert explain([busy], "slow kernels").bound == "slow kernels"
    assert explain([idle], "slow kernels").bound == "launches"


def test_one_slow_step_is_not_the_trace() -> None:
    slow = step(0.9, IdleCause("input", 3.0, "loader"))
    found = explain([slow, *[step(0.9, IdleCause("launches", 0.05))] * 4])
    assert found.bound == "computation"
    assert found.sentences[-1].endswith(
        "takes 3900 ms: 3000 ms more of waiting for the data loader"
    )


def test_time_by_cause_is_the_devices_time() -> None:
    time = step(0.5, IdleCause("copies", 0.2, "a"), IdleCause("copies", 0.1, "b"), copies_s=0.05)
    lost = time_by_cause(time)
    assert lost["copies"] == pytest.approx(0.35)
    assert sum(lost.values()) == pytest.approx(time.device_time_s)
