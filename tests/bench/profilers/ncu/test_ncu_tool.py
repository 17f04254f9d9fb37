import subprocess
import sys

import pytest
from scripted_ncu import PERMISSION

from bench.errors import UserError
from bench.machine.probes import UnknownFactError
from bench.profilers.ncu import NcuTool
from bench.profilers.ncu.metrics import metrics_for_chip
from bench.records.profile_verdict import kernel_set

#: Two launches of a product and one of an addition, with round counts.
GEMM = "_Z4gemmIfLi2EEvPT_"
KERNELS = [
    (name, {
        "gpu__time_duration.sum": time_ns,
        "dram__bytes.sum": dram,
        "lts__t_bytes.sum": 2 * dram,
        "l1tex__t_bytes.sum": 4 * dram,
        "sm__ops_path_tensor_src_tf32_dst_fp32.sum": tensor,
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": ffma,
        "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": fadd,
    })
    for name, time_ns, dram, tensor, ffma, fadd in [
        (GEMM, 1000, 3000, 10**6, 10, 1),
        ("_Z3addPf", 500, 1000, 0, 0, 7),
        (GEMM, 3000, 5000, 10**6, 20, 2),
    ]
]  # fmt: skip
STEP = (sys.executable, "-c", "print('a step')")


@pytest.fixture
def tool(ncu, tree):
    """Return a tool on a machine with an H100 whose driver forbids nothing."""
    ncu.script(kernels=KERNELS)
    root = tree({"proc/driver/nvidia/params": "RmProfilingAdminOnly: 0\n"})
    return NcuTool(root, capability=lambda: (9, 0))


def run(tool, folder):
    """Run every attempt as the launcher does; return their consoles."""
    consoles = []
    for attempt in tool.attempts(folder):
        log = folder / attempt.name / "console.log"
        log.parent.mkdir()
        with log.open("wb") as console:
            subprocess.run([*attempt.prefix, *STEP], stdout=console, stderr=console, check=False)
        consoles.append(log.read_text())
    return consoles


def test_what_is_in_the_way_here(tool, ncu):
    """The driver's permission and an absent ncu are among the checks of doctor."""

    def no_device():
        raise UnknownFactError("no CUDA driver here")

    assert "runs on cpu" in tool.obstacle("cpu")
    assert ncu.asked == []
    assert tool.obstacle("cuda") is None
    without_device = NcuTool(tool._root, no_device)
    assert "no CUDA driver here: see that nvidia-smi" in without_device.obstacle("cuda")


def test_on_a_torch_for_amds_gpus_ncu_is_not_looked_for(tool, ncu, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.15.0+rocm7")
    assert "this torch is for AMD's (ROCm)" in tool.obstacle("cuda")
    assert ncu.asked == []


def test_one_run_with_all_of_the_chips_metrics(tool, ncu, tmp_path):
    (attempt,) = tool.attempts(tmp_path)
    assert attempt.prefix[0] == str(ncu.program)
    assert ",".join(metrics_for_chip("gh100")) in attempt.prefix
    assert attempt.environment == {"LC_ALL": "C"}
    assert attempt.prefix[-1] == str(tmp_path / "ncu" / "step")
    assert (tmp_path / "ncu").is_dir()


def test_the_report_becomes_a_record(tool, tmp_path):
    folder = tmp_path / "100%peak %p"  # which ncu would expand
    folder.mkdir()
    consoles = run(tool, folder)
    assert all("a step" in console for console in consoles)
    counters = tool.read(folder, ())
    assert counters.source == "ncu 2024.1.1"
    assert counters.chip == "gh100"
    assert counters.files == ("ncu/step.csv",)
    assert counters.kernels == 3
    assert counters.duration_s == pytest.approx(4.5e-6)
    assert (counters.dram_bytes, counters.l2_bytes, counters.l1_bytes) == (9000, 18000, 36000)
    assert counters.tensor_flops == 2 * 10**6
    assert counters.flops == 2 * 10**6 + 2 * 30 + 10
    names = [kernel.name for kernel in counters.per_kernel]
    assert names == ["gemm<float,2>", "add"]
    assert kernel_set(counters).counts == {"gemm<float,2>": 2, "add": 1}
    assert kernel_set(counters).unit == "kernels"
    kept = {path.name for path in (folder / "ncu").iterdir()}
    assert kept == {"step.ncu-rep", "step.csv"}


def test_metrics_that_the_device_lacks_are_named(tool, ncu, tmp_path):
    ncu.script(kernels=KERNELS, device="tu116")
    turing = NcuTool(tool._root, capability=lambda: (7, 5))
    run(turing, tmp_path)
    missing = turing.read(tmp_path, ()).missing
    assert missing["sm__ops_path_tensor_src_fp16_dst_fp16.sum"] == "ncu 2024.1.1 has none here"


@pytest.mark.parametrize("ends_step", [False, True])
def test_a_refusal_is_an_error_though_the_step_may_go_on(tool, ncu, tmp_path, ends_step):
    ncu.script(error=PERMISSION, error_ends_step=ends_step)
    consoles = run(tool, tmp_path)
    assert ("a step" in consoles[0]) is not ends_step
    assert "NVreg_RestrictProfilingToAdminUsers=0" in tool.explain(consoles[0])
    with pytest.raises(UserError, match="NVreg_RestrictProfilingToAdminUsers=0"):
        tool.read(tmp_path, ())


def test_without_a_report_there_is_no_record(tool, tmp_path):
    run(tool, tmp_path)
    (tmp_path / "ncu" / "step.ncu-rep").unlink()
    with pytest.raises(UserError, match=r"ncu left no .*step.ncu-rep"):
        tool.read(tmp_path, ())
