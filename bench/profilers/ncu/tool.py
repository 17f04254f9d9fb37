"""Nsight Compute as a profile's tool: one training step, each kernel replayed.

The program `ncu` says itself where it can count: its version, its chips, their metrics. Its words
when it fails are those of ncu 2024.1 and of the FAQ in NVIDIA's Kernel Profiling Guide.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from bench.errors import Problem, UserError, one_line
from bench.machine import UnknownFactError, output_of, system_path, text_of, value_or_none
from bench.machine.gpu_drivers import compute_capability
from bench.machine.limits import profiling_capabilities
from bench.profilers.base import Tool, ToolWorker
from bench.profilers.ncu.metrics import (
    CHIPS,
    DRAM,
    DURATION,
    WAYS,
    chip_of_capability,
    metrics_for_chip,
)
from bench.records import Account, Backend, GpuCounters, ToolName
from bench.records.folders import write_atomically
from bench.records.kernel_names import kernel_name

#: `sudo` alone drops the PATH.
_AS_ROOT = 'sudo -E env "PATH=$PATH" mlproject profile ...'
#: So that the counters may be read.
PERMIT = (
    f"run it as `{_AS_ROOT}`, a container with --cap-add=SYS_ADMIN (a pod with "
    "securityContext.capabilities.add); or let every user count: as root, `options nvidia "
    "NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d on the host, rebuild the initramfs, "
    "reboot; in Windows (for WSL2 with driver 525 or newer) as administrator NVIDIA Control Panel "
    "> Developer > Manage GPU Performance Counters > allow access to all users"
)


def counter_permission() -> tuple[bool | None, str]:
    """Return whether the counters may be read, by the driver's files, and what these say.

    None where only trying decides.
    """
    try:
        parameters = text_of("proc/driver/nvidia/params")
    except UnknownFactError:
        return None, "the driver, outside of what is seen here, tells only when ncu runs"
    restricted = re.search(r"RmProfilingAdminOnly: *(\d)", parameters)
    if restricted is None or restricted[1] == "0":
        return True, "every user may read them"
    held = profiling_capabilities()
    if "CAP_SYS_ADMIN" in held:
        return True, "for administrators only, and this process is one"
    if held:
        return None, "for administrators only; drivers from 565 on take CAP_PERFMON for one"
    return False, "only administrators may read the GPU's counters here (RmProfilingAdminOnly is 1)"


#: Words of ncu, and what is wrong with the remedy. In this order: what is wrong comes before what
#: follows from it. Of other errors ncu's own words are given.
_COMPLAINTS = {
    r"target vGPU device|Failed to access the following[^\n]*metrics|other MIG instances": (
        "this part of a GPU may not be counted: take a whole GPU in place of a MIG slice, or ask "
        "the host's administrator to set enable_profiling=1 for a vGPU"
    ),
    r"driver resource was unavailable": (
        "another program has reserved the GPU's counters, perhaps outside of this container: pause "
        "DCGM with `dcgmi profile --pause` (`--resume` afterwards) and end other profilers; if "
        f"there is none, {PERMIT}"
    ),
    r"ERR_NVGPUCTRPERM": f"the driver keeps the GPU's counters from this user: {PERMIT}",
    r"Failed to find metric [^\n]*|Insufficient driver version|unrecogni[sz]ed option[^.\n]*|"
    r"(?<!ERR_NVCMPGPU - )Profiling is not supported on[^.\n]*": (
        "this ncu does not go with this driver or GPU ({words}): install the Nsight Compute of the "
        "driver's CUDA version, or a newer driver; `ncu --list-chips` names its GPUs; or count by "
        "hand and use `mlproject counters`"
    ),
}
#: What ncu says when the step fails by itself, and of the kernel in which it dies.
_STEP_FAILED = ("The application returned an error code", "Failed to profile")
_ERROR_LINE = re.compile(r"^==ERROR== *(.+?)\s*$", re.MULTILINE)


def explain(console: str) -> str | None:
    """Return cause and remedy of what ncu wrote to `console`, or None if ncu had no complaint.

    None also where the step failed by itself, as ncu then says no more than that.
    """
    # ==PROF== lines name kernels, which may be called anything.
    words = "\n".join(line for line in console.splitlines() if not line.startswith("==PROF=="))
    for pattern, explanation in _COMPLAINTS.items():
        if complaint := re.search(pattern, words):
            return explanation.format(words=complaint[0])
    errors = _ERROR_LINE.findall(words)
    if any(error.startswith(_STEP_FAILED[0]) for error in errors):
        errors = [error for error in errors if not error.startswith(_STEP_FAILED)]
    elif not errors and "No kernels were profiled" in words:
        return "ncu saw no kernel in the profiled step: see that the step runs on the GPU"
    return f"ncu: {errors[0]}" if errors else None


#: Where installers put ncu without putting it on PATH.
_PLACES = (
    "usr/local/cuda*/bin/ncu",
    "opt/nvidia/nsight-compute/*/ncu",
    "opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Compute/ncu",
    "Program Files/NVIDIA Corporation/Nsight Compute */ncu.bat",
)
#: The first that counts tensor-core work (sm__ops_path_*), with CUDA 12.2.
_FIRST_VERSION = (2023, 2)
#: A base name such as dram__bytes begins its line; a description that goes on does not.
_METRIC_LINE = re.compile(r"^([\w.]*\w__\w+)\s", re.MULTILINE)
_ANSWERS_WITHIN_S = 60.0
_EXPORTS_WITHIN_S = 600.0
_WORKER = "ncu-step"
#: Where ncu leaves what it collected, in the profile's folder.
_REPORT = Path("ncu", "step.ncu-rep")


class RefusalError(UserError):
    """ncu cannot count here, for this problem."""

    def __init__(self, what: str, remedy: str) -> None:
        self.problem = Problem(what, remedy)
        super().__init__(str(self.problem))


@dataclass(frozen=True)
class Ncu:
    """One Nsight Compute, `version` being (2024, 1, 1)."""

    path: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"ncu {'.'.join(map(str, self.version))}"

    def metrics(self, *of: str) -> frozenset[str]:
        """Return base names (`dram__bytes`) of metrics; `of` is `--chips X` or `--devices N`.

        Raises `UnknownFactError` where it fails, as for a chip that it does not know.
        """
        answer = output_of(self.path, "--query-metrics", *of, timeout_s=_ANSWERS_WITHIN_S)
        return frozenset(_METRIC_LINE.findall(answer))

    def command(self, report: Path, metrics: Iterable[str]) -> tuple[str, ...]:
        """Return what goes before a program's command line to count it into `report`.ncu-rep.

        Only between cudaProfilerStart and Stop. The user's own config.ncu-cfg is ignored: it may
        add sections to what is collected.
        """
        # A % in --export begins a macro, such as %p for the process id.
        export = str(report.resolve()).replace("%", "%%")
        return (
            self.path,
            *("--config-file", "off"),
            *("--profile-from-start", "off"),
            *("--replay-mode", "kernel"),
            *("--clock-control", "none"),
            *("--metrics", ",".join(metrics)),
            "--force-overwrite",
            *("--export", export),
        )


def find_ncu() -> Ncu:
    """Return the ncu on PATH, else the newest in the usual places.

    Raises `RefusalError` if there is none, or if it is broken or too old.
    """
    files = (path for place in _PLACES for path in system_path("").glob(place))
    places = [path for path in files if os.access(path, os.X_OK)]
    program = shutil.which("ncu") or max(map(str, places), key=_numbers, default=None)
    if program is None:
        raise RefusalError(
            "ncu is not found: no kernel counters",
            "install Nsight Compute (it comes with the CUDA toolkit) and put ncu on PATH; sudo "
            f"drops the PATH: `{_AS_ROOT}`",
        )
    try:
        answer = output_of(program, "--version", timeout_s=_ANSWERS_WITHIN_S)
    except UnknownFactError as error:
        answer = str(error)
    version = re.search(r"Version (\d+\.\d+(?:\.\d+)?)", answer)
    if version is None:
        what = f"{program} tells no version ({one_line(answer)[:200]})"
        raise RefusalError(what, "reinstall Nsight Compute")
    ncu = Ncu(program, _numbers(version[1]))
    if ncu.version < _FIRST_VERSION:
        raise RefusalError(
            f"{ncu} at {program} does not count tensor-core work",
            "install Nsight Compute 2023.2 (CUDA 12.2) or newer",
        )
    return ncu


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def choose_metrics(ncu: Ncu, capability: tuple[int, int]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the metrics that `ncu` has on the first device, and why it lacks others of its chip.

    Chips of one compute capability may differ: TU116 lacks the tensor cores of TU102. For an
    unknown chip, whichever exist. All are collected in one run, for which ncu replays each
    kernel: of two runs of the step, cuDNN might choose other kernels in each. Raises `RefusalError`
    where this ncu does not know the device.
    """
    chip = chip_of_capability(capability)
    bases = value_or_none(partial(ncu.metrics, "--devices", "0")) or frozenset()
    if DURATION.rpartition(".")[0] not in bases:  # no list of metrics
        raise RefusalError(
            "{} tells no metrics of compute capability {}.{}".format(ncu, *capability),
            "install a newer Nsight Compute; Blackwell needs that of CUDA 12.8 or newer",
        )
    wanted = [name for of in ([chip] if chip else CHIPS) for name in metrics_for_chip(of)]

    def has(metric: str) -> bool:
        return metric.rpartition(".")[0] in bases

    chosen = dict.fromkeys(filter(has, wanted))
    absent = [name for name in wanted if name not in chosen]
    if DRAM in absent:  # some chips count reads and writes alone
        chosen |= dict.fromkeys(next((way for way in WAYS["dram_bytes"] if all(map(has, way))), ()))
    if chip is not None:
        return tuple(chosen), dict.fromkeys(absent, f"{ncu} has none here")
    # That a foreign chip lacks what others have is no loss. What another metric counts too is
    # left out: `src_fp16_dst_fp32` is a part of `src_fp16`.
    wholes = tuple(f"{name.rpartition('.')[0]}_" for name in chosen)
    return tuple(name for name in chosen if not name.startswith(wholes)), {}


@dataclass
class NcuTool(Tool):
    """Counts one step: hardware counters and executed instructions (SASS).

    Leaves `ncu/step.ncu-rep` and its CSV in the profile's folder.
    `capability` returns the compute capability of the device that the worker will take.
    """

    name: ClassVar[ToolName] = "ncu"
    capability: Callable[[], tuple[int, int]] = compute_capability

    def obstacle(self, backend: Backend) -> str | None:
        """Look for the device, ncu, the permission to count, and the chip's metrics."""
        if backend != "cuda":
            return f"ncu counts on NVIDIA GPUs, and this step runs on {backend}"
        if "rocm" in metadata.version("torch"):
            return "ncu counts on NVIDIA GPUs, and this torch is for AMD's (ROCm)"
        try:
            _ = self._setup
        except RefusalError as refusal:
            return str(refusal)
        return None

    def worker(self, folder: Path) -> ToolWorker:
        """Return the worker under ncu. Raises `RefusalError` where there is an obstacle."""
        ncu, metrics, _ = self._setup
        report = folder / _REPORT
        report.parent.mkdir(exist_ok=True)
        prefix = ncu.command(report.with_suffix(""), metrics)
        return ToolWorker(_WORKER, prefix, {"LC_ALL": "C"})

    def explain(self, console: str) -> str | None:
        """Return what ncu complained of, with the remedy."""
        return explain(console)

    def read(self, folder: Path, step: Account) -> GpuCounters:
        """Make a CSV of the report and add it up: a row per launch, base units, C locale.

        Kernels go by their mangled names, the only ones that every tool has. Raises `UserError`
        where the report is missing or cannot be read.
        """
        from bench.profilers.ncu.read import read_counters

        ncu, metrics, left_out = self._setup
        report = folder / _REPORT
        if not report.exists():
            raise UserError(f"ncu left no {report}: see {folder / _WORKER / 'console.log'}")
        how = ("--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "mangled")
        try:
            text = output_of(
                *(ncu.path, "--config-file", "off", "--import", str(report)),
                *(*how, "--metrics", ",".join(metrics)),
                timeout_s=_EXPORTS_WITHIN_S,
            )
        except UnknownFactError as error:
            raise RefusalError(f"{ncu} cannot read {report}", str(error)) from None
        table = report.with_suffix(".csv")
        write_atomically(table, f"{text}\n")
        counters = read_counters(table)
        return counters.replaced(
            missing={**left_out, **counters.missing},
            source=str(ncu),
            files=(table.relative_to(folder).as_posix(),),
            per_kernel=tuple(
                kernel.model_copy(update={"name": kernel_name(kernel.name)})
                for kernel in counters.per_kernel
            ),
        )

    @cached_property
    def _setup(self) -> tuple[Ncu, tuple[str, ...], dict[str, str]]:
        ncu = find_ncu()
        is_allowed, why = counter_permission()
        if is_allowed is False:
            raise RefusalError(why, PERMIT)
        try:
            capability = self.capability()
        except UnknownFactError as error:
            raise RefusalError(str(error), "see that nvidia-smi lists the GPU") from None
        return ncu, *choose_metrics(ncu, capability)
