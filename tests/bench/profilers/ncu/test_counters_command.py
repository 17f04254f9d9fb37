"""`mlproject counters` as a user runs it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import samples
from ncu_files import DRAM, DURATION, SASS, Launch, Style, launches, truth, written

from bench.records.folders import RecordFolder
from mlproject import main

TABLE = launches(6)
FIELDS = [
    *("file", "source", "chip", "kernels", "duration_s", "flops", "tensor_flops", "dram_bytes"),
    *("l2_bytes", "l1_bytes", "pcie_bytes", "flops_at_least", "intensity_dram", "missing", "notes"),
]


@pytest.fixture
def file(tmp_path):
    def write(text, name="ncu.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def rows_of(capsys):
    """The command's rows for these files and options."""

    def rows(*arguments):
        assert main(["counters", "--format", "json", *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    return rows


COUNT = """
import sys
from mlproject import main
ours = {"analysis", "bench", "campaigns", "commands", "contrib", "mlproject", "tracking"}
code = main(["counters", sys.argv[1]])
print(code, sum(name.partition(".")[0] in ours for name in sys.modules), file=sys.stderr)
"""


def test_a_file_of_counters_is_read_with_few_modules(file):
    command = [sys.executable, "-c", COUNT, file(written(TABLE))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, modules = map(int, done.stderr.split())
    assert code == 0
    assert modules <= 25


def test_json_has_a_row_per_file_or_one_for_passes_over_the_same_launches(file, rows_of):
    one, two = file(written(TABLE)), file(written(TABLE[:2], "raw"), "two.csv")
    first, second = rows_of(one, two)
    assert list(first) == FIELDS
    expected = truth(TABLE)
    assert {name: first[name] for name in expected} == expected
    assert first["intensity_dram"] == expected["flops"] / expected["dram_bytes"]
    assert first["missing"] == {}
    assert (second["kernels"], second["file"]) == (2, two)
    parts = (
        written([Launch(one.id, one.kernel, {name: one.values[name]}) for one in TABLE])
        for name in (DURATION, DRAM)
    )
    [row] = rows_of("--merge", *(file(part, f"{n}.csv") for n, part in enumerate(parts)))
    assert row["dram_bytes"] == expected["dram_bytes"]
    assert row["duration_s"] == expected["duration_s"]


def test_what_a_file_cannot_tell_is_null_with_the_metric(file, rows_of, capsys):
    path = file(written([Launch(0, "k[1]", {DURATION: 31000})]))
    [row] = rows_of(path)
    assert row["duration_s"] == 31e-6
    nulls = {name for name, value in row.items() if value is None}
    assert nulls == row["missing"].keys()
    assert DRAM in row["missing"]["dram_bytes"]
    assert DRAM in row["missing"]["intensity_dram"]
    assert "op_ffma_pred_on.sum" in row["missing"]["flops"]
    assert main(["counters", path, "--per-kernel"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "k[1]" in printed
    assert re.search(r"flops: \S*op_fadd_pred_on.sum, .*dfma_pred_on.sum: not in the file", printed)


FP32 = {
    f"sm__sass_thread_inst_executed_op_f{op}_pred_on.sum": 5 + n
    for n, op in enumerate(("add", "mul", "fma"))
}
BLACKWELL = [
    f"smsp__sass_thread_inst_executed_op_{op}2_pred_on.sum" for op in ("fadd", "fmul", "ffma")
]
PIPE = "sm__inst_executed_pipe_tensor.sum"


def test_flop_of_which_some_were_not_counted_are_a_lower_bound(file, rows_of, capsys):
    path = file(written([Launch(n, "k", {DURATION: 31000, **FP32}) for n in range(2)], "raw"))
    [row] = rows_of("--per-kernel", path)
    for figures in (row, row["per_kernel"][0]):
        assert (figures["flops"], figures["flops_at_least"]) == (None, 2 * (5 + 6 + 2 * 7))
    assert "op_hadd_pred_on.sum" in row["missing"]["flops"]
    assert "sm__ops_path_tensor" in row["missing"]["flops"]
    assert "op_fadd" not in row["missing"]["flops"]
    assert main(["counters", path]) == 0
    assert "\u2265 50" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("capability", "instructions", "whole", "of_relu"),
    [
        ("8.0", {"gemm": 0, "relu": 0}, True, True),
        ("7.0", {"gemm": 3, "relu": 0}, False, True),
        ("8.0", {"gemm": 3, "relu": None}, False, False),
        ("10.0", {"gemm": 0, "relu": 0}, False, False),  # tcgen05 has a pipe of its own
    ],
)
def test_no_instruction_of_the_tensor_pipe_is_no_tensor_flop(
    file, rows_of, capability, instructions, whole, of_relu
):
    def counted(number, kernel):
        values = dict.fromkeys([*SASS, *BLACKWELL], 4)
        values |= {DURATION: 31000, PIPE: instructions[kernel]}
        return Launch(number, kernel, values, capability=capability)

    [row] = rows_of("--per-kernel", file(written([counted(0, "gemm"), counted(1, "relu")])))
    relu = next(kernel for kernel in row["per_kernel"] if kernel["name"] == "relu")
    assert (row["tensor_flops"] == 0, relu["tensor_flops"] == 0) == (whole, of_relu)
    assert (row["flops"] is not None, relu["flops"] is not None) == (whole, of_relu)


def test_a_file_that_cannot_be_read_does_not_hide_the_others(file, capsys):
    german = Style("de_DE", percent=None)
    bad = file(written([Launch(0, "k", {DURATION: 31872})], style=german), "b")
    good, worse = file(written(TABLE)), file("==ERROR== No kernels were profiled\n", "c")
    assert main(["counters", "--format", "json", bad, good, worse]) == 2
    shown = capsys.readouterr()
    assert [row["file"] for row in json.loads(shown.out)] == [good]
    first, second = shown.err.splitlines()
    assert f"{bad}:2: gpu__time_duration.sum: '31.872' ns may mean 31872" in first
    assert f"{worse}: ncu failed: ==ERROR== No kernels were profiled" in second


def test_the_metrics_of_a_chip_are_printed_with_ncus_command(capsys):
    assert main(["counters", "--print-metrics", "gh100"]) == 0
    first, *_, last = (lines := capsys.readouterr().out.splitlines())
    assert first.startswith("# Metrics of Nsight Compute for gh100")
    [command] = [line for line in lines if line.startswith("# LC_ALL=C ncu ")]
    assert "--profile-from-start off" in command
    assert f",{last} python" in command


def timed_run(records, work, backend="cuda"):
    """A record of a measurement whose step launched `work`."""
    bytes_of = {"eager_bytes": 10**7, "fused_bytes": 5 * 10**6, "compulsory_bytes": 10**6}
    timed = samples.run_record(
        resolved=samples.resolved(backend=backend),
        measurement=samples.measurement(work=samples.work_set(**work)),
        complexity=samples.complexity(**bytes_of),
    )
    folder = RecordFolder.create(records, timed.record_id)
    folder.close(timed)
    return timed


@pytest.mark.parametrize(
    ("work", "level"), [({"relu": 3, "gemm": 3}, "clean"), ({"relu": 2, "gemm": 3}, "invalid")]
)
def test_counters_by_hand_become_a_profile_with_its_checks(file, tmp_path, capsys, work, level):
    records = tmp_path / "records"
    timed = timed_run(records, work)
    path = file(written(TABLE))
    attach = ["--attach", timed.record_id, "--records", str(records), "--no-track"]
    assert main(["counters", path, *attach, "--format", "json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    record = RecordFolder(Path(facts["record"])).read_record()
    assert record.timed_record_id == timed.record_id == facts["explains"]
    assert record.counters.flops == truth(TABLE)["flops"]
    assert record.verdict.level == level, record.verdict
    assert ("relu" in str(record.verdict)) == (level == "invalid")
    [kept] = record.counters.files
    assert Path(facts["record"], kept).read_text() == written(TABLE)
    assert "by hand" in record.missing["ops"]


def test_counters_are_attached_to_runs_of_nvidia_gpus_alone(file, tmp_path, capsys):
    timed = timed_run(tmp_path / "records", {"relu": 3}, backend="cpu")
    arguments = ["--attach", timed.record_id, "--records", str(tmp_path / "records")]
    assert main(["counters", file(written(TABLE)), *arguments]) == 2
    assert "this step ran on cpu" in capsys.readouterr().err
    assert [folder.name for folder in (tmp_path / "records").iterdir()] == [timed.record_id]
