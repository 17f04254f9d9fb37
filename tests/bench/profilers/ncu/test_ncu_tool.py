import os
import subprocess
import sys
from pathlib import Path

import pytest
import samples
from scripted_ncu import CHIPS, PERMISSION, ScriptedNcu

from bench.errors import UserError
from bench.machine import UnknownFactError
from bench.profilers.ncu.metrics import CHIPS as KNOWN_CHIPS
from bench.profilers.ncu.metrics import metrics_for_chip
from bench.profilers.ncu.tool import (
    NcuTool,
    RefusalError,
    choose_metrics,
    counter_permission,
    explain,
    find_ncu,
)
from bench.records import Account
from bench.records.verdict import kernel_set

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
DONE = samples.facts(Account, outcome="ok")
STEP = (sys.executable, "-c", "print('a step')")


@pytest.fixture
def tool(ncu, tree):
    """Return a tool on a machine with an H100 whose driver forbids nothing."""
    ncu.script(kernels=KERNELS)
    tree({"proc/driver/nvidia/params": "RmProfilingAdminOnly: 0\n"})
    return NcuTool(capability=lambda: (9, 0))


def run(tool, folder):
    """Run the worker as the launcher does; return its console."""
    worker = tool.worker(folder)
    log = folder / worker.name / "console.log"
    log.parent.mkdir()
    with log.open("wb") as console:
        subprocess.run([*worker.prefix, *STEP], stdout=console, stderr=console, check=False)
    return log.read_text()


def test_what_is_in_the_way_here(tool, ncu, monkeypatch):
    """The driver's permission and an absent ncu are among the checks of doctor."""

    def no_device():
        raise UnknownFactError("no CUDA driver here")

    assert "runs on cpu" in tool.obstacle("cpu")
    assert ncu.asked == []
    assert tool.obstacle("cuda") is None
    without_device = NcuTool(no_device)
    assert "no CUDA driver here; see that nvidia-smi" in without_device.obstacle("cuda")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.15.0+rocm7")
    assert "this torch is for AMD's (ROCm)" in tool.obstacle("cuda")


def test_the_report_becomes_a_record(tool, tmp_path):
    folder = tmp_path / "100%peak %p"  # which ncu would expand
    folder.mkdir()
    console = run(tool, folder)
    assert tool.worker(folder).environment == {"LC_ALL": "C"}
    assert "a step" in console
    counters = tool.read(folder, DONE)
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


@pytest.mark.parametrize("ends_step", [False, True])
def test_a_refusal_is_an_error_though_the_step_may_go_on(tool, ncu, tmp_path, ends_step):
    ncu.script(error=PERMISSION, error_ends_step=ends_step)
    console = run(tool, tmp_path)
    assert ("a step" in console) is not ends_step
    assert "NVreg_RestrictProfilingToAdminUsers=0" in tool.explain(console)


def test_without_a_readable_report_there_is_no_record(tool, tmp_path):
    run(tool, tmp_path)
    report = tmp_path / "ncu" / "step.ncu-rep"
    report.write_text("junk")
    with pytest.raises(RefusalError, match="Failed to load report file"):
        tool.read(tmp_path, DONE)
    assert not report.with_suffix(".csv").exists()
    report.unlink()
    with pytest.raises(UserError, match=r"ncu left no .*step.ncu-rep"):
        tool.read(tmp_path, DONE)


# The program


def test_no_ncu_anywhere(folder_of_ncu, tree):
    with pytest.raises(RefusalError, match=r"ncu is not found: .*; install Nsight Compute"):
        find_ncu()


def test_of_several_off_path_the_newest_is_taken(ncu, tree, monkeypatch):
    root = tree({})
    for toolkit in ("cuda-9.2", "cuda-13.0", "cuda"):
        folder = root / "usr/local" / toolkit / "bin"
        folder.mkdir(parents=True)
        ScriptedNcu(folder)
    monkeypatch.setenv("PATH", str(root))
    assert find_ncu().path == str(root / "usr/local/cuda-13.0/bin/ncu")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "echo 'error while loading it' >&2; exit 127",
            r"error while loading it\); reinstall Nsight",
        ),
        ("echo hello", r"tells no version \(hello\); reinstall Nsight"),
        ("echo Version 2023.1.1.0", r"ncu 2023.1.1 at .*; install Nsight Compute 2023.2"),
    ],
)
def test_a_broken_or_old_ncu(ncu, tree, script, words):
    ncu.program.write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(RefusalError, match=words):
        find_ncu()
    ncu.program.write_text("#!/bin/sh\necho Version 2023.2.0.0\n")
    assert find_ncu().version == (2023, 2, 0)


def test_metrics_as_ncu_lists_them(ncu, tree):
    program = find_ncu()
    of_hopper = program.metrics("--chips", "gh100")
    assert {"dram__bytes", "sm__ops_path_tensor_src_fp16"} < of_hopper
    assert not any(" " in name or name == "Metric" for name in of_hopper)
    with pytest.raises(UnknownFactError, match="Invalid chip zz9"):
        program.metrics("--chips", "zz9")
    command = program.command(Path("/records/a%p/ncu/hardware"), ["dram__bytes.sum", "b.sum"])
    assert " ".join(command) == (
        f"{ncu.program} --config-file off --profile-from-start off --replay-mode kernel "
        "--clock-control none --metrics dram__bytes.sum,b.sum --force-overwrite "
        "--export /records/a%%p/ncu/hardware"
    )


@pytest.mark.cuda
def test_the_real_ncu_has_every_metric_of_the_table():
    ncu, lacking, newer = find_ncu(), {}, []
    for chip in KNOWN_CHIPS:
        try:
            has = ncu.metrics("--chips", chip.replace("10x", "102").replace("20x", "202"))
        except UnknownFactError:
            newer.append(chip)
            continue
        wanted = {name.rpartition(".")[0] for name in metrics_for_chip(chip)}
        lacking |= {chip: wanted - has} if wanted - has else {}
    assert lacking == {}
    assert len(newer) < len(KNOWN_CHIPS)


# What it has for a device


GH100, TU102 = metrics_for_chip("gh100"), metrics_for_chip("tu10x")
TENSORS = [name for name in TU102 if "tensor" in name]
PARTS = (
    "sm__ops_path_tensor_src_fp16_dst_fp32",
    "smsp__sass_thread_inst_executed_op_ffma2_pred_on",
)
HALVES = ("dram__bytes_op_read", "dram__bytes_op_write")
REST = [name for name in CHIPS["gh100"] if name != "dram__bytes"]


@pytest.mark.parametrize(
    ("capability", "script", "metrics"),
    [
        ((9, 0), {}, GH100),
        # 7.5 as TU102, without tensor cores
        ((7, 5), {"device": "tu116"}, [name for name in TU102 if name not in TENSORS]),
        # an unknown chip gets whatever exists and nothing twice
        ((13, 0), {"chips": {"gr100": [*CHIPS["gh100"], *PARTS]}, "device": "gr100"},
         [*GH100, f"{PARTS[1]}.sum"]),
        # without a total of the traffic its halves are counted
        ((12, 1), {"chips": {"gb10b": [*REST, *HALVES]}, "device": "gb10b"},
         [*(f"{name}.sum" for name in HALVES), *(n for n in GH100 if n != "dram__bytes.sum")]),
    ],
)  # fmt: skip
def test_a_device_gets_the_metrics_that_ncu_has_for_it(ncu, tree, capability, script, metrics):
    ncu.script(**script)
    chosen, left_out = choose_metrics(find_ncu(), capability)
    assert sorted(chosen) == sorted(metrics)
    lacking = TENSORS if capability == (7, 5) else ()
    assert left_out == dict.fromkeys(lacking, "ncu 2024.1.1 has none here")


def test_a_chip_that_ncu_does_not_know_is_refused(ncu, tree):
    ncu.script(device=None)
    for capability in ((12, 0), (13, 0)):
        words = r"ncu 2024.1.1 tells no metrics of compute capability {}.{}; .*CUDA 12.8"
        with pytest.raises(RefusalError, match=words.format(*capability)):
            choose_metrics(find_ncu(), capability)
    program = find_ncu()
    ncu.program.write_text("#!/bin/sh\necho a__b Counter\n")  # no list of metrics
    with pytest.raises(RefusalError, match="tells no metrics"):
        choose_metrics(program, (9, 0))


# What it complains of


pytestmark = pytest.mark.skipif(os.name == "nt", reason="Linux's files hold the permission")

STEP_FAILED = "==ERROR== The application returned an error code (1)."
NOTHING_COUNTED = "==WARNING== No kernels were profiled."
NO_KERNEL = "ncu saw no kernel in the profiled step: see that the step runs on the GPU"
IN_A_KERNEL = '==ERROR== Failed to profile "k" in process 1'
AS_ROOT = 'sudo -E env "PATH=$PATH" mlproject profile'


@pytest.mark.parametrize(
    ("complaint", "words"),
    [
        (PERMISSION, ["from this user", "NVreg_RestrictProfilingToAdminUsers=0", AS_ROOT,
                      "--cap-add=SYS_ADMIN", "driver 525"]),
        ("The user does not have permission to access NVIDIA GPU Performance Counters on the "
         "target vGPU device 0.", ["part of a GPU", "enable_profiling=1"]),
        ("Failed to access the following 4 metrics: dram__bytes.sum\n==ERROR== If profiling on a "
         "MIG instance, it is not possible to collect metrics from GPU units that are shared with "
         "other MIG instances.", ["MIG", "take a whole GPU"]),
        ("Profiling failed because a driver resource was unavailable or the user does not have "
         "permission to access NVIDIA GPU Performance Counters.",
         ["dcgmi profile --pause", AS_ROOT]),
        ("Failed to find metric regex:^flop_count_sp", ["metric regex:^flop_count_sp", "by hand"]),
        ("Insufficient driver version to profile on device 0.",
         ["Insufficient driver version", "Nsight Compute of the driver's CUDA version"]),
        ("Profiling is not supported on device 0. To find out supported GPUs refer --list-chips.",
         ["(Profiling is not supported on device 0)", "--list-chips"]),
        ("unrecognised option '--config-file'. Use --help.", ["'--config-file'", "newer driver"]),
        ("ERR_NVCMPGPU - Profiling is not supported on the NVIDIA Crypto Mining Processors",
         ["ncu: ERR_NVCMPGPU - Profiling is not supported on the NVIDIA Crypto"]),
        ("Something new", ["ncu: Something new"]),
    ],
)  # fmt: skip
def test_each_complaint_has_its_cause_and_remedy(complaint, words):
    console = f"warm-up\n==ERROR== {complaint}\n{STEP_FAILED}\n{NOTHING_COUNTED}\n"
    explained = explain(console)
    assert [word for word in words if word not in explained] == []
    assert "\n" not in explained
    assert "{" not in explained


@pytest.mark.parametrize(
    ("console", "explained"),
    [
        ("", None),
        (NOTHING_COUNTED, NO_KERNEL),
        ("==PROF== Connected to process 1\n==WARNING== Some kernel took long\n", None),
        (f"Traceback\nRuntimeError: no\n{STEP_FAILED}\n{NOTHING_COUNTED}\n", None),
        (f"{IN_A_KERNEL}\n{STEP_FAILED}\n", None),
        ('==PROF== Profiling "ERR_NVGPUCTRPERM_kernel" - 0: 0%....100% - 1 pass\n', None),
        (f"{IN_A_KERNEL}\n==PROF== Disconnected\n", 'ncu: Failed to profile "k" in process 1'),
    ],
)
def test_a_step_that_fails_by_itself_is_not_ncus_affair(console, explained):
    assert explain(console) == explained


PARAMS, STATUS = "proc/driver/nvidia/params", "proc/self/status"
FORBIDDEN = {
    PARAMS: "EnableMSI: 1\nRmProfilingAdminOnly: 1\n",
    STATUS: "CapEff:\t00000000a80425fb\n",
}


@pytest.mark.parametrize(
    ("files", "is_allowed"),
    [
        ({}, None),  # only trying decides
        ({PARAMS: "RmProfilingAdminOnly: 0\n"}, True),
        ({PARAMS: "EnableMSI: 1\n"}, True),
        (FORBIDDEN, False),
        ({**FORBIDDEN, STATUS: "CapEff:\t0000000000200000\n"}, True),  # CAP_SYS_ADMIN
        ({**FORBIDDEN, STATUS: "CapEff:\t0000004000000000\n"}, None),  # CAP_PERFMON
    ],
)
def test_the_drivers_files_show_the_permission(tree, files, is_allowed):
    tree(files)
    assert counter_permission()[0] is is_allowed
