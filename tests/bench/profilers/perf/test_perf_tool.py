"""perf as a profile's tool: what it asks for, under whom the worker runs, what it reads."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import samples
from scripted_perf import CORES

from bench.errors import UserError
from bench.profilers.perf import PerfTool
from bench.profilers.perf.perf_choice import choose_events, vector_bits
from bench.records import ProfiledStep

PROJECT = Path(__file__).resolve().parents[4]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no FIFOs on Windows")

WORKER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from bench.profilers.perf.perf_control import counting
with counting(json.loads(sys.argv[2])):
    sum(range(10**6))
"""
INTEL = {
    f"fp_arith_inst_retired.{width}_{element}": ("10", "")
    for width in ("scalar", "128b_packed", "256b_packed")
    for element in ("single", "double")
}
IMC = "sys/bus/event_source/devices/uncore_imc_{}/events/{}"


@pytest.fixture(autouse=True)
def _on_linux(monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function that makes the files below a root those of a machine."""

    def make(*files):
        root = tmp_path / "root"
        for file in files:
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text("")
        choose = partial(choose_events, root)
        monkeypatch.setattr("bench.profilers.perf.perf_tool.choose_events", choose)

    return make


def run(tool, folder):
    """Do what the launcher does with the one attempt."""
    (attempt,) = tool.attempts(folder)
    (folder / attempt.name).mkdir()
    worker = [sys.executable, "-c", WORKER, str(PROJECT), json.dumps(attempt.task)]
    environment = {**os.environ, **attempt.environment}
    return subprocess.run(
        [*attempt.prefix, *worker], capture_output=True, text=True, timeout=300, env=environment
    )


def step(**changes):
    known = {"tool": "perf", "outcome": "ok", "resolved": samples.resolved()}
    return samples.facts(ProfiledStep, **{**known, "iterations": 20, "window_s": 1.5, **changes})


def test_the_whole_way_with_floating_point_and_memory_events(tmp_path, perf_here, machine):
    imc = {
        f"uncore_imc_{n}/cas_count_{way}/": ("1.50", "MiB")
        for n in (0, 1)
        for way in ("read", "write")
    }
    perf_here(counts={**CORES, **INTEL, **imc})
    machine(*(IMC.format(n, f"cas_count_{way}") for n in (0, 1) for way in ("read", "write")))
    tool = PerfTool()
    assert tool.obstacle("cpu") is None
    done = run(tool, tmp_path)
    assert done.returncode == 0, done.stderr
    counters = tool.read(tmp_path, [step()])
    assert counters.source == "perf 6.1.192"
    assert counters.scope == "user and kernel"
    assert (counters.iterations, counters.window_s) == (20, 1.5)
    assert (counters.cycles, counters.instructions, counters.ipc) == (1000, 2500, 2.5)
    assert counters.flops == 10 * (1 + 1 + 4 + 2 + 8 + 4)
    assert counters.dram_bytes == 6 * 2**20
    assert counters.missing == {}


def test_events_that_the_machine_lacks_do_not_cost_the_others(tmp_path, perf_here, machine):
    machine()
    perf_here(counts={**CORES, "cache-misses": None})
    tool = PerfTool()
    assert run(tool, tmp_path).returncode == 0
    counters = tool.read(tmp_path, [step()])
    assert counters.branches == 400
    assert counters.missing == {
        "cache_misses": "not supported",
        "flops": "perf knows no floating-point events of this processor",
        "dram_bytes": "no memory controller here shows its counters",
    }


def test_a_width_that_perf_knows_and_the_machine_lacks_leaves_no_flop(tmp_path, perf_here, machine):
    machine()
    perf_here(counts={**CORES, **INTEL, "fp_arith_inst_retired.256b_packed_single": None})
    tool = PerfTool()
    assert run(tool, tmp_path).returncode == 0
    counters = tool.read(tmp_path, [step()])
    assert counters.missing["flops"] == "fp_arith_inst_retired.256b_packed_single: not supported"


def test_an_event_of_which_there_were_none_was_not_counted(tmp_path, perf_here, machine):
    machine()
    perf_here(counts={**CORES, "cache-misses": ("0", "")})
    tool = PerfTool()
    assert run(tool, tmp_path).returncode == 0
    assert "counted 0" in tool.read(tmp_path, [step()]).missing["cache_misses"]


def test_memory_controllers_that_may_not_be_counted(tmp_path, perf_here, machine):
    names = ("data_reads", "data_writes")
    perf_here(counts={**CORES, **{f"uncore_imc_0/{name}/": ("1.00", "MiB") for name in names}},
              everywhere=False)  # fmt: skip
    machine(*(IMC.format(0, name) for name in names))
    tool = PerfTool()
    (attempt,) = tool.attempts(tmp_path)
    assert "-a" not in attempt.prefix
    assert "takes root or perf_event_paranoid 0" in tool._choice.withheld["dram_bytes"]


def test_amds_events_are_found_by_asking_perf(perf_here, machine, tmp_path):
    perf_here(counts={**CORES, "fp_ret_sse_avx_ops.all": ("7", ""),
                      "umc_cas_cmd.rd": ("1", ""), "umc_cas_cmd.wr": ("1", "")})  # fmt: skip
    (tmp_path / "sys/bus/event_source/devices/amd_umc_0").mkdir(parents=True)
    choice = choose_events(tmp_path)
    assert choice.core[-1] == "fp_ret_sse_avx_ops.all"
    assert choice.memory == ("umc_cas_cmd.rd", "umc_cas_cmd.wr")
    assert choice.withheld == {}


def test_arms_events_are_asked_for_on_arm_alone(perf_here, monkeypatch, tmp_path):
    perf_here(counts={**CORES, **INTEL, "fp_fixed_ops_spec": ("7", "")})
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert choose_events(tmp_path).core[6:] == ("fp_fixed_ops_spec",)


def test_the_length_of_arms_vectors(tmp_path):
    file = tmp_path / "proc/sys/abi/sve_default_vector_length"
    assert vector_bits(tmp_path) is None
    file.parent.mkdir(parents=True)
    file.write_text("32\n")
    assert vector_bits(tmp_path) == 256


@pytest.mark.parametrize(
    ("counts", "resolved", "told"),
    [
        (INTEL, {"math_mode": "bf16"}, False),
        (INTEL, {"math_mode": "fp16"}, False),
        (INTEL, {"math_mode": "bf16", "native_math": False}, True),
        (INTEL, {"math_mode": "fp32"}, True),
        ({"fp_ret_sse_avx_ops.all": ("7", "")}, {"math_mode": "bf16"}, True),
    ],
)
def test_flop_of_16_bit_products_are_told_only_where_they_are_counted(
    tmp_path, perf_here, machine, counts, resolved, told
):
    machine()
    perf_here(counts={**CORES, **counts})
    tool = PerfTool()
    assert run(tool, tmp_path).returncode == 0
    counters = tool.read(tmp_path, [step(resolved=samples.resolved(**resolved))])
    assert (counters.flops is not None) is told
    if not told:
        assert "Intel's floating-point events do not count products" in counters.missing["flops"]


def test_a_window_that_did_not_end_is_not_read(tmp_path, perf_here, machine):
    machine()
    perf_here()
    tool = PerfTool()
    assert run(tool, tmp_path).returncode == 0
    with pytest.raises(UserError, match="did not end"):
        tool.read(tmp_path, [samples.facts(ProfiledStep, tool="perf", outcome="ok")])


def test_a_worker_that_never_opens_the_window_gives_an_error(tmp_path, perf_here, machine):
    machine()
    perf_here()
    tool = PerfTool()
    (attempt,) = tool.attempts(tmp_path)
    (tmp_path / attempt.name).mkdir()
    subprocess.run([*attempt.prefix, "true"], check=True, timeout=300)
    with pytest.raises(UserError, match=r"perf_stat\.csv: perf counted nothing.*not counted"):
        tool.read(tmp_path, [step()])


def test_the_events_of_a_gpus_host_are_not_the_steps(tmp_path, perf_here):
    perf_here()
    assert "the step runs on mps" in PerfTool().obstacle("mps")
    with pytest.raises(UserError, match="runs on cuda; profile with backend=cpu"):
        PerfTool().read(tmp_path, [step(resolved=samples.resolved(backend="cuda"))])


def test_the_fifos_are_removed_with_the_tool(tmp_path, perf_here, machine):
    machine()
    perf_here()
    tool = PerfTool()
    (attempt,) = tool.attempts(tmp_path / "records, with a comma")
    folder = Path(attempt.task["control"]).parent
    assert len(list(folder.iterdir())) == 2
    assert tmp_path not in folder.parents
    del tool
    assert not folder.exists()


def test_a_permission_that_is_refused_after_all_is_explained():
    words = "Traceback (most recent call last)\nError:\nNo permission to enable cycles:u event.\n"
    assert "perf_event_open" in PerfTool().explain(words)
    assert PerfTool().explain("PermissionError: [Errno 13] Permission denied: 'x'\n") is None


@pytest.mark.skipif(shutil.which("perf") is None, reason="perf not installed")
def test_the_real_perf_counts_here_or_says_why_not(tmp_path):
    tool = PerfTool()
    obstacle = tool.obstacle("cpu")
    done = run(tool, tmp_path)
    if obstacle is None:
        assert done.returncode == 0, done.stderr
        assert tool.read(tmp_path, [step()]).instructions > 10**6
    else:
        assert len(obstacle) > 60
        with pytest.raises(UserError):
            tool.read(tmp_path, [step()])
