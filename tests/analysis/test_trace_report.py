"""Traces in a report, and two of them side by side."""

import pytest
import samples

from analysis.traces.compare import compare_traces
from analysis.traces.placed import place_traces
from bench.records.folders import RecordFolder


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
