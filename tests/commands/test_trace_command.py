"""`mlproject trace` on traces that others published."""

import csv
import gzip
import io
import json
import random
from pathlib import Path

import pytest
import samples
from worker_processes import output_of

from bench.records.folders import RecordFolder
from tracking import schema

TRACES = Path(__file__).parent.parent / "data" / "traces"
WORKERS = [TRACES / f"v100_resnet50_b32_workers{count}.pt.trace.json.gz" for count in (0, 4)]
MI300X = TRACES / "mi300x_resnet18_b10_8ranks_checkpointing.json.gz"
PEAKS = (
    "devices,power_limit_w,multiprocessors,fp32_tflop_per_s,tf32_tflop_per_s,bf16_tflop_per_s,"
    "fp16_tflop_per_s,memory_gb_per_s,source\n"
    "Tesla V100-DGXS-32GB,,,15.7,,,125,900,an SXM2 part's figures\n"
)


@pytest.fixture
def traced(mlproject_command):
    """What the command says of traces as JSON."""

    def traced(*arguments):
        code, printed, _ = mlproject_command("trace", *arguments, "--format", "json")
        assert code == 0
        return json.loads(printed)

    return traced


@pytest.mark.slow
def test_a_loader_in_the_steps_own_process_is_what_bounds_them(traced, tmp_path):
    (tmp_path / "peaks.csv").write_text(PEAKS)
    model = ["--arch", "resnet50", "--batch-size", "32", "--out", tmp_path / "page"]
    found = traced(WORKERS[0], *model, "--peaks", tmp_path / "peaks.csv")
    busy_us = [round(1e6 * step["device_busy_s"]) for step in found["steps"]]
    assert busy_us == [100629, 100606, 100618, 100650, 100528, 100527]
    assert [step["name"] for step in found["steps"]] == [f"ProfilerStep#{n}" for n in range(5, 11)]
    for step in found["steps"]:
        parts = ("computation_s", "exposed_communication_s", "exposed_copies_s")
        assert sum(step[part] for part in parts) == pytest.approx(step["device_busy_s"])
        assert sum(idle["time_s"] for idle in step["idle"]) == pytest.approx(step["idle_s"])
        assert step["idle"][0]["cause"] == "input"
    assert found["bound"] == "input"
    assert found["roof"]["source"] == "an SXM2 part's figures (peaks.csv)"
    assert found["step_flops"] / 1e9 == pytest.approx(777.6, rel=1e-3)
    assert found["throughput_images_per_s"] == pytest.approx(182, abs=1)
    matched_s = sum(op["time_s"] for op in found["ops"] if op["flops"] is not None)
    assert matched_s > 0.999 * sum(op["time_s"] for op in found["ops"])
    assert all(
        op["attained_flops_per_s"] < found["roof"]["peak_flops_per_s"]
        for op in found["ops"]
        if op["flops"] and "3x3" not in op["label"]  # Winograd's needs fewer FLOP
    )
    page = (tmp_path / "page" / "report.html").read_text("utf-8")
    assert "Have batches ready earlier" in page
    assert "No run was profiled" not in page


@pytest.mark.slow
def test_two_traces_are_compared_and_their_ops_and_idle_time_explain_the_difference(
    traced, tmp_path
):
    found = traced(*WORKERS, "--out", tmp_path / "page")
    summary = "B takes -50.8 ms, of which ops and idle time explain -50.5 ms, -52.4 ms of it idle"
    assert summary in (tmp_path / "page" / "report.html").read_text("utf-8")
    first, second = (trace["bound"] for trace in found["traces"])
    assert (first, second in ("computation", "launches")) == ("input", True)
    assert [trace["source_file"] for trace in found["traces"]] == [file.name for file in WORKERS]
    changes = found["comparison"]["ops"]
    explained_s = sum(op["difference_s"] for op in changes)
    explained_s += found["comparison"]["idle_difference_s"]
    assert explained_s == pytest.approx(found["comparison"]["explained_s"])
    assert explained_s == pytest.approx(-0.0505, abs=1e-4)
    with (tmp_path / "page" / "tables" / "trace-comparison.csv").open() as table:
        added_ms = sum(float(row["difference_ms"]) for row in csv.DictReader(table))
    assert added_ms == pytest.approx(sum(1e3 * op["difference_s"] for op in changes))


@pytest.mark.slow
def test_a_rank_that_waits_for_others_is_bound_by_communication_and_tracked(
    mlproject_command, embedded
):
    code, printed, _ = mlproject_command("trace", MI300X, "--track", "--top", "2")
    assert code == 0
    assert "Bound: communication." in printed
    assert "Roof in bf16: 1310 TFLOP/s" in printed
    [run] = embedded.search_runs(["0"], f"tags.`{schema.KIND}` = 'trace'")
    names = {artifact.path for artifact in embedded.list_artifacts(run.info.run_id)}
    assert {"record.json", "trace.json.gz"} <= names
    [kept] = Path("records").glob("trace-*/record.json")
    written = kept.read_bytes()
    # Read alike, the record that is tracked stays; cut otherwise, it is a record and a run more.
    for cut, number in ([], 1), (["--whole"], 2):
        code, printed, _ = mlproject_command("trace", MI300X, "--track", *cut, "--format", "csv")
        assert code == 0
        assert kept.read_bytes() == written
        assert len(list(Path("records").glob("trace-*"))) == number
        assert len(embedded.search_runs(["0"], f"tags.`{schema.KIND}` = 'trace'")) == number
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert rows[0]["label"] == "communication"
    assert rows[0]["gflop"] == ""
    assert None not in rows[-1].values()  # what is uploaded is said elsewhere
    code, printed, _ = mlproject_command("pull")
    assert code == 0
    assert next(csv.DictReader(io.StringIO(printed)))["kind"] == "trace"


@pytest.mark.slow
@pytest.mark.parametrize("told", [["--batch-size", "64"], ["--batch-size", "32", "--whole"]])
def test_a_step_that_is_not_one_batch_of_the_model_has_no_rate_of_images(traced, told):
    found = traced(WORKERS[0], "--arch", "resnet50", *told)
    assert found["throughput_images_per_s"] is None
    assert found["step_flops"] is None
    assert "GFLOP, and one of resnet50" in found["missing"]["throughput_images_per_s"]
    assert any(sentence.startswith("no images/s: a traced") for sentence in found["findings"])


def trace_of(folder, *spans):
    """A file of these spans: category, name, begin and duration in microseconds."""
    events = [
        {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1}
        for category, name, ts, dur in spans
    ]
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))
    return folder / "trace.json"


def test_one_device_of_several_is_asked_for_by_its_number(traced, tmp_path):
    kernels = [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 0, "dur": dur, "pid": device, "tid": 7}
        for device, dur in enumerate((100, 300))
    ]
    path = tmp_path / "two.json"
    path.write_text(json.dumps({"traceEvents": kernels}))
    both, last = traced(path)["steps"], traced(path, "--device", "1")["steps"]
    assert [step["device_busy_s"] for step in (*both, *last)] == pytest.approx([2e-4, 3e-4])


@pytest.mark.slow
def test_the_profile_beside_a_trace_knows_its_device_and_its_roof(traced, tmp_path):
    roofs = samples.ceilings_record()
    records = tmp_path / "records"
    for number, record in enumerate([samples.profile_record(), samples.profile_record(), roofs]):
        folder = RecordFolder.create(records, f"20261120T100000Z-0000000{number}")
        folder.close(record)
        trace_of(folder.path, ("cpu_op", "aten::add", 0, 5))
    files = [records / f"20261120T100000Z-0000000{number}" / "trace.json" for number in (0, 1)]
    found = traced(*files, "--records", records)
    device = samples.environment().device.name
    for trace, file in zip(found["traces"], files, strict=True):
        assert trace["device"] == device
        assert trace["math_mode"] == samples.resolved().math_mode
        assert trace["roof"]["kind"] == "measured"
        assert trace["source_file"] == f"{file.parent.name}/{file.name}"
    assert found["comparison"]["names"] == [trace["source_file"] for trace in found["traces"]]


@pytest.mark.slow
def test_steps_without_time_have_no_rate_of_images(traced, tmp_path):
    path = trace_of(tmp_path, ("user_annotation", "ProfilerStep#1", 0, 0))
    missing = traced(path, "--arch", "squeezenet1_1", "--batch-size", "2")["missing"]
    assert missing["throughput_images_per_s"] == "the steps take no time"


def test_what_is_kept_to_be_uploaded_names_no_host_and_is_one_line_where_it_cannot_be(
    mlproject_command, tmp_path, monkeypatch
):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    path = trace_of(tmp_path, ("cpu_op", "aten::add", 0, 5))
    named = {"host_name": "anna's laptop", "traceName": "/a.json", **json.loads(path.read_text())}
    path.write_text(json.dumps(named))
    with monkeypatch.context() as disk:
        disk.setattr("bench.profilers.traces.gzip.compress", full)
        code, _, complaint = mlproject_command("trace", path, "--track")
    assert code == 2
    assert "cannot be kept in" in complaint
    assert complaint.count("\n") == 1
    assert not [*Path("records").glob("trace-*/trace.json.gz")]
    assert mlproject_command("trace", path, "--track")[0] == 0
    [kept] = Path("records").glob("trace-*/trace.json.gz")
    found = json.loads(gzip.decompress(kept.read_bytes()))
    assert found == {**named, "host_name": "", "traceName": ""}
    assert json.loads(path.read_text()) == named  # the user's own file stays as it is


def rank_file(folder, rank, ranks=3, *, late_us=5_000, name="gloo:all_reduce", says=True, **file):
    """30 steps of 100 ms; the last rank loads `late_us` longer, beside 0.1 to 0.2 ms of each.

    Who has computed 60 ms waits in a collective until all leave it, and computes 1 ms beside it.
    """
    events, scatter, late_us = [], random.Random(rank), late_us * (rank == ranks - 1)
    for number in range(30):
        load = late_us + scatter.randint(100, 200)
        spans = [
            ("user_annotation", f"ProfilerStep#{number + 2}", 0, 100_000),
            ("user_annotation", "enumerate(DataLoader)#It.__next__", 0, load),
            ("cpu_op", "aten::mm", load, 60_000),
            ("cpu_op", "aten::add", load + 60_000, 1_000),
            ("user_annotation", name, load + 60_000, 30_000 - load),
        ]
        begin = 100_000 * number + 7_000 * rank  # clocks of machines differ
        on_card = name.startswith("nccl")
        events += [
            {"ph": "X", "cat": "kernel" if on_card and at >= load else category, "name": span,
             "ts": begin + at, "dur": dur, "pid": 0 if on_card else rank,
             "tid": 2 if span == name else 1}
            for category, span, at, dur in spans
        ]  # fmt: skip
    trace = {"traceEvents": events}
    if says:
        trace["distributedInfo"] = {"rank": rank, "world_size": ranks}
    path = folder / file.get("file", f"of_rank{rank}.json")
    path.write_text(json.dumps(trace))
    return path


@pytest.mark.parametrize("says", [True, False])
def test_traces_of_ranks_say_who_makes_the_others_wait(mlproject_command, traced, tmp_path, says):
    files = [rank_file(tmp_path, rank, says=says) for rank in (2, 0, 1)]
    rows = [trace["of_ranks"] for trace in traced(*files)]
    assert [row["rank"] for row in rows] == [2, 0, 1]  # as the files are given
    late, *others = rows
    assert late["arrives_last_share"] == 1
    assert late["exchange_wait_ms"] == 0
    assert late["loader_ms"] == pytest.approx(5.15, abs=0.05)
    for row in others:  # 5 ms longer in the collective, of which 1 ms passes beside computing
        assert row["exchange_wait_ms"] == pytest.approx(4, abs=0.05)
        assert row["compute_ms"] == pytest.approx(61)
    assert "rank 2 makes the others wait 5 ms" in mlproject_command("trace", *files)[1]


def test_on_a_card_the_wait_is_in_kernels_that_communicate(traced, tmp_path):
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    rows = [
        trace["of_ranks"]
        for trace in traced(*(rank_file(tmp_path, rank, name=name) for rank in range(3)))
    ]
    assert [row["arrives_last_share"] for row in rows] == [0, 0, 1]
    assert [row["exchange_wait_ms"] for row in rows] == pytest.approx([4, 4, 0], abs=0.05)
    assert [row["step_ms"] for row in rows] == pytest.approx([100] * 3, rel=0.01)


def test_of_an_even_job_and_of_other_jobs_no_rank_is_named(mlproject_command, traced, tmp_path):
    even = [rank_file(tmp_path, rank, late_us=0) for rank in range(3)]
    assert "no rank surely" in mlproject_command("trace", *even)[1]
    stage = rank_file(tmp_path, 2, name="gloo:send")
    assert [trace["of_ranks"] for trace in traced(*even[:2], stage)] == [None] * 3
    # a name may say something else: without collectives these are two files to compare
    loras = [
        rank_file(tmp_path, rank, says=False, name="aten::mul", file=f"lora_rank{rank}.json")
        for rank in (0, 1)
    ]
    assert traced(*loras)["comparison"] is not None


def test_the_command_imports_few_modules():
    counted = """
import sys, commands.trace
ours = {"analysis", "bench", "campaigns", "commands", "tracking"}
print(sum(name.partition(".")[0] in ours for name in sys.modules))
"""
    assert int(output_of(counted)) <= 60
