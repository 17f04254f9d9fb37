"""Traces in a report, and two of them side by side."""

from pathlib import Path

import pytest
import samples

from analysis.report.write import write_report
from analysis.traces.explain import device_times_s, explain
from analysis.traces.placed import TraceComparison, compare_two, place_traces, rank_waits
from bench.errors import Unknown
from bench.profilers.traces import HostSpan, ProfilerTrace, read_trace
from bench.profilers.traces.steps import cut_steps, loader_share, timeline
from bench.records import IdleTime


@pytest.fixture
def roofs():
    device = samples.device_info(backend="cuda", name="NVIDIA sample GPU", cores=80)
    return samples.ceilings_record(environment=samples.environment(device=device))


def test_a_traces_roof_is_that_of_a_device_of_its_name(roofs):
    trace = samples.trace_record()
    [placed] = place_traces([trace], [roofs])
    assert placed.used.record_id == roofs.record_id
    assert placed.ops.placed[0].flops_per_s == pytest.approx(1e11)
    assert "names its device alone" in placed.used.instead_of_measured
    [other] = place_traces([samples.trace_record(math_mode="bf16")], [roofs])
    assert "the datasheet table does not hold 'Sample GPU'" in other.ceiling.reason
    [v100] = place_traces([samples.trace_record(device="Tesla V100-SXM2-16GB")])
    assert v100.used.roof.peak_flops_per_s == 15.7e12


@pytest.mark.parametrize(
    ("measured", "traced"), [({}, {"device_cores": 14}), ({"backend": "cpu"}, {})]
)
def test_a_part_of_a_device_or_a_processor_of_its_name_is_no_roof(roofs, measured, traced):
    device = roofs.environment.device.replaced(**measured)
    other = roofs.model_copy(update={"environment": samples.environment(device=device)})
    assert place_traces([samples.trace_record(device_cores=80)], [roofs])[0].used is not None
    assert place_traces([samples.trace_record(**traced)], [other])[0].used is None


def test_ops_of_one_kind_are_one_mark_whatever_their_shapes():
    unknown = dict.fromkeys(("flops", "elementwise_flops", "eager_bytes", "fused_bytes"))
    alike = [samples.traced_op(), samples.traced_op(shapes="8x3x9x9", time_s=0.03)]
    unmatched = samples.traced_op(time_s=0.06, **unknown)
    [trace] = place_traces([samples.trace_record(ops=(*alike, unmatched))])
    assert [op.name for op in trace.ops.placed] == [
        "convolution 1x1 8x3x9x9 forward",
        "convolution 1x1 8x64x56x56, 64x64x1x1 forward",
    ]
    [kind] = trace.kinds.placed
    assert (kind.name, kind.time.calls) == ("convolution 1x1 forward", 8)
    assert kind.share == pytest.approx(0.4)
    assert kind.flops_per_s == pytest.approx(2e9 / 0.04)
    assert kind.intensity_min == pytest.approx(10)


@pytest.mark.usefixtures("unpainted")
def test_a_report_of_traces_alone_says_nothing_of_runs(tmp_path):
    page = write_report([], tmp_path, traces=place_traces([samples.trace_record()]))
    text = page.with_suffix(".md").read_text("utf-8")
    assert "is bound by launches." in text
    assert "Capture the step as a CUDA graph." in text
    assert "## Measurements" not in text
    rows = (tmp_path / "tables" / "trace-steps.csv").read_text("utf-8").splitlines()
    assert rows[1].startswith("1,worker0.pt.trace.json.gz,ProfilerStep#1,100.0,70.0,60.0,10.0")


def traced(*ops, idle_s=0.0, **changes):
    """A trace of one step of these ops: name, calls, exclusive seconds of each call."""
    step = samples.traced_step(
        wall_s=0.001,  # the host is ahead
        computation_s=sum(calls * each_s for _, calls, each_s in ops),
        exposed_communication_s=0.0,
        exposed_copies_s=0.0,
        idle_s=idle_s,
        idle=(),
    )
    times = [(name, n, n * each_s) for name, n, each_s in ops]
    rows = tuple(
        samples.traced_op(name, op=name, calls=n, time_s=2 * time_s, exclusive_s=time_s)
        for name, n, time_s in times
    )
    return samples.trace_record(step, **{"ops": rows, **changes})


def repeated(times, time_s, *others, **changes):
    """A trace whose step does the same work `times` times."""
    return traced(("mm", times, time_s), ("relu", 2 * times, time_s / 10), *others, **changes)


def test_two_traces_differ_by_their_ops_and_their_idle_time():
    found = compare_two(
        [
            traced(("conv", 1, 0.05), ("relu", 1, 0.010), ("gone", 1, 0.002), idle_s=0.03),
            traced(("conv", 1, 0.08), ("relu", 1, 0.0101), ("new", 1, 0.004), idle_s=0.01),
        ]
    )
    assert [(op.op, op.change) for op in found.ops] == [
        ("conv", "slower"),
        ("new", "appeared"),
        ("gone", "vanished"),
        ("relu", "as before"),
    ]
    assert found.idle_difference_s == pytest.approx(-0.02)
    assert found.difference_s == pytest.approx(found.explained_s) == pytest.approx(0.0121)
    assert (found.ops[1].calls, found.ops[1].exclusive_s) == ((None, 1.0), (0.0, 0.004))


@pytest.mark.parametrize(
    ("a", "b", "repetitions", "changes"),
    [
        # one that is launched in several ways is one
        (traced(("mm", 2, 0.01)), traced(("mm", 1, 0.01), ("mm", 1, 0.01)), (1, 1), ["as before"]),
        (repeated(34, 0.010), repeated(30, 0.011), (34, 30), ["slower", "slower"]),
        # no whole numbers tell these
        (repeated(1.5, 0.01), repeated(3, 0.01), (1, 2), ["as before", "as before"]),
        # fewer calls that each take longer
        (repeated(30, 0.01, ("add", 9, 1e-3)), repeated(30, 0.01, ("add", 3, 2e-3)), (1, 1),
         ["fewer calls", "as before", "as before"]),
    ],
)  # fmt: skip
def test_ops_are_compared_by_name_and_repetition(a, b, repetitions, changes):
    found = compare_two([a, b])
    assert found.repetitions == repetitions
    assert [op.change for op in found.ops] == changes
    assert found.difference_s == pytest.approx(found.explained_s)
    if repetitions == (34, 30):
        assert found.step_s == (pytest.approx(0.012), pytest.approx(0.0132))


def test_steps_of_other_work_are_not_compared():
    more = ("conv", 7, 0.02)
    found = compare_two([repeated(34, 0.01, more), repeated(30, 0.01, more)])
    assert "mm is called 34 times a step in A and 30 times in B" in found.reason


@pytest.mark.parametrize(
    ("other", "compared"),
    [
        ({"rank": 1}, False),
        ({"rank": 1, "world_size": 4}, True),
        ({"rank": 1, "device": "NVIDIA A100-SXM4-40GB"}, True),
        ({}, True),
    ],
)
def test_ranks_of_one_job_have_one_world_size_and_one_kind_of_device(other, compared):
    ours = {"rank": 0, "world_size": 2, "device": "Tesla V100-SXM2-16GB"}
    found = compare_two([repeated(3, 0.01, **ours), repeated(3, 0.02, **{**ours, **other})])
    assert isinstance(found, TraceComparison if compared else Unknown)
    if "device" in other:
        assert all(device in found.summary for device in (ours["device"], other["device"]))
    assert compared or "ranks 0 and 1 of one job" in found.reason


def test_records_of_ranks_hold_no_collectives():
    ranks = [samples.trace_record(rank=rank, world_size=2) for rank in (0, 1)]
    assert rank_waits(place_traces(ranks)) is None


def test_a_summary_says_what_it_cannot_know():
    a, b = repeated(3, 0.01), repeated(3, 0.02)
    several = [each.replaced(steps=each.steps * 2) for each in (a, b)]
    assert "how much is noise" in compare_two([a, several[1]]).summary
    assert "noise" not in compare_two(several).summary
    # a difference of the other sign is not explained
    b = b.replaced(steps=[step.replaced(computation_s=0.01) for step in b.steps])
    assert "beside which ops and idle time add up to" in compare_two([a, b]).summary


# The bound and its advice: of real traces, and of each cause of lost time


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
