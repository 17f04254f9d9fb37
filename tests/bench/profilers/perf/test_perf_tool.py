"""perf as a profile's tool: what it asks for, what the worker runs under, what it reads."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import samples
from scripted_perf import CORES

from bench.errors import UserError
from bench.profilers.perf import PerfTool
from bench.profilers.perf.tool import choose_events, vector_bits
from bench.records import Account

PROJECT = Path(__file__).resolve().parents[4]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no FIFOs on Windows")

WORKER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from bench.profilers.perf.tool import counting
with counting(json.loads(sys.argv[2])):
    sum(range(10**6))
"""
INTEL = {
    f"fp_arith_inst_retired.{width}_{element}": ("10", "")
    for width in ("scalar", "128b_packed", "256b_packed")
    for element in ("single", "double")
}


@pytest.fixture(autouse=True)
def _on_linux(monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


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
    known = {"outcome": "ok", "resolved": samples.resolved()}
    return samples.facts(Account, **{**known, "iterations": 20, "window_s": 1.5, **changes})


@pytest.mark.slow
def test_the_whole_way_with_floating_point_events(tmp_path, perf_here):
    perf_here(counts={**CORES, **INTEL})
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
    assert counters.missing == {}
    # Of 16-bit products FLOP are given only where they are counted: not by Intel's events.
    for mode, native, given in [("bf16", True, 0), ("fp16", True, 0), ("bf16", False, 1)]:
        resolved = samples.resolved(math_mode=mode, native_math=native)
        counters = tool.read(tmp_path, [step(resolved=resolved)])
        assert (counters.flops is not None) == given
        why = "Intel's floating-point events do not count products"
        assert given or why in counters.missing["flops"]
    with pytest.raises(UserError, match="did not end"):
        tool.read(tmp_path, [samples.facts(Account, outcome="ok")])


@pytest.mark.slow
def test_events_that_the_machine_lacks_do_not_cost_the_others(tmp_path, perf_here):
    perf_here(
        counts=CORES
        | {"cache-misses": None, "branch-misses": ("0", ""), "fp_ret_sse_avx_ops.all": ("7", "")}
    )
    tool = PerfTool()
    assert run(tool, tmp_path).returncode == 0
    counters = tool.read(tmp_path, [step(resolved=samples.resolved(math_mode="bf16"))])
    assert (counters.branches, counters.flops) == (400, 7)
    assert counters.missing == {
        "cache_misses": "not supported",
        "branch_misses": "counted 0 while a step was trained: the machine does not count it",
    }


@pytest.mark.parametrize(
    ("processor", "known", "flops"),
    [
        ("x86_64", {"fp_ret_sse_avx_ops.all"}, {"fp_ret_sse_avx_ops.all"}),
        ("x86_64", {"something.else"}, ()),
        ("x86_64", INTEL, INTEL),
        ("aarch64", {*INTEL, "fp_fixed_ops_spec"}, {"fp_fixed_ops_spec"}),
    ],
)
@pytest.mark.slow
def test_the_events_that_this_perf_and_this_machine_have(
    perf_here, monkeypatch, processor, known, flops
):
    """A machine's lack of an event that its perf knows is for perf to report, not to pass over."""
    perf_here(counts={**CORES, **dict.fromkeys(known)})
    monkeypatch.setattr("platform.machine", lambda: processor)
    assert set(choose_events()) == {*CORES, *flops} - {"task-clock"}


def test_what_perf_cannot_tell_is_an_error_and_its_fifos_end_with_the_tool(
    tmp_path, perf_here, tree
):
    perf_here()
    tool = PerfTool()
    (attempt,) = tool.attempts(tmp_path)
    (tmp_path / attempt.name).mkdir()
    subprocess.run([*attempt.prefix, "true"], check=True, timeout=300)  # opens no window
    no_flops = "not counted; perf knows no floating-point events of this processor"
    with pytest.raises(UserError, match=rf"perf_stat\.csv: perf counted nothing.*{no_flops}"):
        tool.read(tmp_path, [step()])
    assert "the step runs on mps" in tool.obstacle("mps")
    with pytest.raises(UserError, match="runs on cuda; profile with backend=cpu"):
        tool.read(tmp_path, [step(resolved=samples.resolved(backend="cuda"))])
    words = "Traceback (most recent call last)\nError:\nNo permission to enable cycles:u event.\n"
    assert "perf_event_open" in tool.explain(words)
    assert tool.explain("PermissionError: [Errno 13] Permission denied: 'x'\n") is None
    assert vector_bits(tree({})) is None
    assert vector_bits(tree({"proc/sys/abi/sve_default_vector_length": "32\n"})) == 256
    folder = Path(attempt.task["control"]).parent
    assert len(list(folder.iterdir())) == 2
    del tool
    assert not folder.exists()


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
