"""Traces in a report, and two of them side by side."""

import pytest
import samples

from analysis.traces.compare import TraceComparison, compare_traces, compare_two
from analysis.traces.placed import place_traces
from bench.records.folders import RecordFolder
from bench.records.trace import IdleTime


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


@pytest.mark.slow
def test_a_report_reads_records_of_traces_alone(tmp_path, mlproject_command):
    trace = samples.trace_record()
    folder = RecordFolder(tmp_path / "records" / trace.record_id)
    folder.path.mkdir(parents=True)
    folder.close(trace)
    code, _, _ = mlproject_command("report", "--records", tmp_path / "records", "--out", "out")
    assert code == 0
    text = (tmp_path / "out" / "report.md").read_text("utf-8")
    assert "is bound by launches." in text
    assert "Capture the step as a CUDA graph." in text
    assert "## Measurements" not in text
    rows = (tmp_path / "out" / "tables" / "trace-steps.csv").read_text("utf-8").splitlines()
    assert rows[1].startswith("1,worker0.pt.trace.json.gz,ProfilerStep#1,100.0,70.0,60.0,10.0")
    [ops] = (tmp_path / "out" / "tables").glob("ops-trace-*.csv")
    assert '"8x64x56x56, 64x64x1x1"' in ops.read_text("utf-8")


def test_two_traces_differ_by_their_ops_and_their_idle_time():
    def trace(idle_s, **times_s):
        ops = [
            samples.traced_op(label, op=label, time_s=2 * time_s, exclusive_s=time_s)
            for label, time_s in times_s.items()
        ]
        step = samples.traced_step(
            wall_s=0.001,  # the host is ahead
            computation_s=sum(times_s.values()),
            exposed_communication_s=0.0,
            exposed_copies_s=0.0,
            idle_s=idle_s,
            idle=(),
        )
        return samples.trace_record(step, ops=tuple(ops))

    found = compare_traces(
        trace(0.03, conv=0.05, relu=0.010, gone=0.002),
        trace(0.01, conv=0.08, relu=0.0101, new=0.004),
    )
    assert [(op.op, op.change) for op in found.ops] == [
        ("conv", "slower"),
        ("new", "appeared"),
        ("gone", "vanished"),
        ("relu", "as before"),
    ]
    assert found.idle_difference_s == pytest.approx(-0.02)
    assert found.difference_s == pytest.approx(found.explained_s)


def whole_trace(times, time_s, others=(), **changes):
    """A trace of one step with `times` calls of each op, of `time_s` each, and no idle time."""
    ops = [("mm", times, time_s), ("relu", 2 * times, time_s / 10), *others]
    traced = [
        samples.traced_op(name, op=name, calls=n, time_s=n * each_s, exclusive_s=n * each_s)
        for name, n, each_s in ops
    ]
    step = samples.traced_step(
        computation_s=sum(n * each_s for _, n, each_s in ops),
        exposed_communication_s=0.0,
        exposed_copies_s=0.0,
        idle_s=0.0,
        idle=(),
    )
    return samples.trace_record(step, **{"ops": tuple(traced), **changes})


def test_unequal_repetitions_are_compared_one_by_one():
    found = compare_two([whole_trace(34, 0.010), whole_trace(30, 0.011)])
    assert found.repetitions == (34, 30)
    assert [(op.op, op.change) for op in found.ops] == [("mm", "slower"), ("relu", "slower")]
    assert found.step_s == (pytest.approx(0.012), pytest.approx(0.0132))
    assert found.difference_s == pytest.approx(found.explained_s)


def test_steps_of_other_work_are_not_compared():
    more = [("conv", 7, 0.02)]
    found = compare_two([whole_trace(34, 0.01, more), whole_trace(30, 0.01, more)])
    assert "mm is called 34 times a step in A and 30 times in B" in found


def test_an_op_with_fewer_calls_that_each_take_longer_is_not_faster():
    a, b = (
        whole_trace(30, 0.01, [("add", calls, each_s)]) for calls, each_s in ((9, 1e-3), (3, 2e-3))
    )
    changes = {op.op: op.change for op in compare_two([a, b]).ops}
    assert changes == {"add": "fewer calls", "mm": "as before", "relu": "as before"}


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
    found = compare_two([whole_trace(3, 0.01, **ours), whole_trace(3, 0.02, **{**ours, **other})])
    assert isinstance(found, TraceComparison) == compared
    if "device" in other:
        assert all(device in found.summary for device in (ours["device"], other["device"]))
    assert compared or "ranks 0 and 1 of one job" in found


def test_one_step_alone_says_nothing_of_noise():
    one, two = whole_trace(3, 0.01), whole_trace(3, 0.02)
    assert "noise is not known" in compare_traces(one, two).summary
    several = [each.replaced(steps=each.steps * 2) for each in (one, two)]
    assert "noise" not in compare_traces(*several).summary


def test_a_difference_of_the_other_sign_is_not_explained():
    a, b = whole_trace(3, 0.01), whole_trace(3, 0.011)
    b = b.replaced(steps=[step.replaced(computation_s=0.01) for step in b.steps])
    assert "beside which ops and idle time add up to" in compare_traces(a, b).summary


def test_idle_time_is_told_once_for_each_cause():
    idle = [("host", 0.02, "a"), ("launches", 0.03, None), ("host", 0.015, "b")]
    spent = tuple(IdleTime(cause=cause, time_s=s, op=op) for cause, s, op in idle)
    step = samples.traced_step(idle_s=0.065, idle=spent)
    assert list(step.idle_s_by_cause.items()) == [("host", 0.035), ("launches", 0.03)]
