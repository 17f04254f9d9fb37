"""The bound of a trace and its advice: of real traces, and of each cause of lost time."""

from pathlib import Path

import pytest
import samples

from analysis.traces.explain import device_times_s, explain
from bench.profilers.traces import HostSpan, ProfilerTrace, read_trace
from bench.profilers.traces.steps import cut_steps, loader_share, timeline
from bench.records import IdleTime

TRACES = Path(__file__).parents[2] / "data" / "traces"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter"


def explained(trace, computation=None):
    steps = cut_steps(trace)
    return explain(timeline(trace, steps), computation, in_loader=loader_share(steps))


@pytest.mark.parametrize(
    ("name", "bound", "findings", "advice"),
    [
        ("v100_resnet50_b32_workers0.pt.trace.json.gz", "input",
         ["56 % computation, 33 % waiting for the data loader", f"a step: 58.7 ms in {LOADER}"],
         ["more loader processes", "CUDA graphs"]),
        # with loader processes
        ("v100_resnet50_b32_workers4.pt.trace.json.gz", "computation",
         ["% computation"], ["CUDA graphs"]),
        ("mi300x_resnet18_b10_8ranks_checkpointing.json.gz", "communication",
         ["62 % communication", "26 % of it beside computation"],
         ["bucket_cap_mb"]),
        ("a100_alexnet_cupti_counters.json.gz", "not known", ["fill the trace lacks: 103"], []),
    ],
)  # fmt: skip
def test_what_bounds_published_traces(name, bound, findings, advice):
    found = explained(read_trace(TRACES / name))
    assert found.bound == bound
    for told, texts in ((found.findings, findings), (found.advice, advice)):
        assert len(told) >= len(texts)
        assert all(any(text in one for one in told) for text in texts)
    assert len(found.advice) == len(advice)


@pytest.mark.parametrize(
    ("loader_us", "bound", "advised"),
    [(60, "input", True), (40, "compute", True), (4, "compute", False)],
)
def test_a_processors_loader(loader_us, bound, advised):
    host = [
        HostSpan("ProfilerStep#1", "mark", 0, 100, (1, 1)),
        HostSpan(f"{WORKERS}.__next__", "mark", 10, 10 + loader_us, (1, 1)),
    ]
    found = explained(ProfilerTrace("cpu", host, []), "compute")
    assert found.bound == bound
    assert any("more loader processes" in advice for advice in found.advice) == advised


def step(computation_s, *idle, copies_s=0.0):
    """A step with these idle times: cause, seconds, call and op."""
    names = ("cause", "time_s", "call", "op")
    times = tuple(IdleTime(**dict(zip(names, one, strict=False))) for one in idle)
    return samples.traced_step(
        wall_s=1.0,
        device_busy_s=computation_s + copies_s,
        computation_s=computation_s,
        exposed_communication_s=0.0,
        exposed_copies_s=copies_s,
        idle_s=sum(one.time_s for one in times),
        communication_s=0.0,
        idle=times,
    )


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        ("launches", "CUDA graphs, torch.compile"),
        ("allocator", "expandable_segments"),
        ("synchronisation", "(aten::op): .item()"),
        ("copies", "pinned memory"),
        ("host", "(aten::op)"),
        ("queued", "larger batch, torch.compile"),
        ("graph", "CUDA graph"),
        ("unexplained", "another process"),
        ("not seen", "ProfilerActivity.CUDA"),
        ("input", "num_workers"),
    ],
)
def test_advice_follows_the_cause(cause, remedy):
    found = explain([step(0.4, (cause, 0.6, None, "aten::op"))])
    assert found.bound == ("not known" if cause == "unexplained" else cause)
    [advice] = found.advice
    assert remedy in advice
    of_compiled = explain([step(0.4, (cause, 0.6))], compiled=True, tool="nsys").advice
    assert not any(word in of_compiled[0] for word in ("torch.compile", "with_stack", "Profiler"))


@pytest.mark.parametrize(
    ("computation_s", "idle", "bound"),
    [
        (0.8, [("input", 0.2)], "input"),
        (0.7, [("input", 0.14), ("launches", 0.16)], "slow kernels"),
        (0.96, [("input", 0.04)], "slow kernels"),
        (0.9, [], "slow kernels"),
        (0.1, [("launches", 0.9)], "launches"),
        (0.4, [("launches", 0.05), ("copies", 0.55)], "copies"),
    ],
)
def test_input_counts_as_in_a_runs_bound_and_a_roof_says_what_bounds_computation(
    computation_s, idle, bound
):
    assert explain([step(computation_s, *idle)], "slow kernels").bound == bound


def test_one_slow_step_is_not_the_trace():
    slow = step(0.9, ("input", 3.0, "loader"))
    found = explain([slow, *[step(0.9, ("launches", 0.05))] * 4])
    assert found.bound == "computation"


def test_times_by_cause_are_the_devices_time():
    time = step(0.5, ("copies", 0.2, "a"), ("host", 0.1), ("copies", 0.1, "b"), copies_s=0.05)
    assert list(time.idle_s_by_cause.items()) == [("copies", pytest.approx(0.3)), ("host", 0.1)]
    lost_s = device_times_s(time)
    assert lost_s["copies"] == pytest.approx(0.35)
    assert sum(lost_s.values()) == pytest.approx(time.device_time_s)
