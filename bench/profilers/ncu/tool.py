"""Nsight Compute as a profile's tool: one training step, each kernel replayed.

The program `ncu` says itself where it can count: its version, its chips, their metrics.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from bench.errors import Problem, UserError
from bench.machine.gpu_drivers import compute_capability
from bench.machine.probes import ROOT, UnknownFactError, output_of, value_or_none
from bench.profilers.base import Attempt, Tool
from bench.profilers.ncu.complaints import AS_ROOT, counter_permission, explain, permission_remedy
from bench.profilers.ncu.metrics import (
    CHIPS,
    DRAM,
    DURATION,
    MEMBERS,
    WAYS,
    chip_of_capability,
    metrics_for_chip,
)
from bench.records import Account, Backend, Counters, ToolName
from bench.records.folders import write_atomically
from bench.records.kernel_names import kernel_name

#: Where installers put ncu without putting it on PATH.
_PLACES = (
    "usr/local/cuda*/bin/ncu",
    "opt/nvidia/nsight-compute/*/ncu",
    "opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Compute/ncu",
    "Program Files/NVIDIA Corporation/Nsight Compute */ncu.bat",
)
#: The first that counts tensor-core work (sm__ops_path_*), with CUDA 12.2.
_FIRST_VERSION = (2023, 2)
_REINSTALL = "reinstall Nsight Compute"
#: A base name such as dram__bytes begins its line; a description that goes on does not.
_METRIC_LINE = re.compile(r"^([\w.]*\w__\w+)\s", re.MULTILINE)
_ANSWERS_WITHIN_S = 60.0
_EXPORTS_WITHIN_S = 600.0
_ATTEMPT = "ncu-step"
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

    def chips(self) -> frozenset[str]:
        """Return the chips that it has metrics of, such as `gh100`. Needs no GPU.

        Raises `UnknownFactError` where it fails.
        """
        return frozenset(re.findall(r"\w+", self._ask("--list-chips")))

    def metrics(self, *of: str) -> frozenset[str]:
        """Return base names (`dram__bytes`) of metrics; `of` is `--chips X` or `--devices N`.

        Raises `UnknownFactError` where it fails, as for a chip that it does not know.
        """
        return frozenset(_METRIC_LINE.findall(self._ask("--query-metrics", *of)))

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

    def to_csv(self, report: Path, csv: Path, metrics: Iterable[str]) -> None:
        """Write the `metrics` of a .ncu-rep to `csv`: a row per launch, base units, C locale.

        Kernels go by their mangled names, the only ones that every tool has. Raises
        `RefusalError` where ncu cannot read its own report.
        """
        how = ("--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "mangled")
        chosen = ("--metrics", ",".join(metrics))
        try:
            table = output_of(
                *(self.path, "--config-file", "off", "--import", str(report), *how, *chosen),
                timeout_s=_EXPORTS_WITHIN_S,
            )
        except UnknownFactError as error:
            raise RefusalError(f"{self} cannot read {report}", str(error)) from None
        write_atomically(csv, f"{table}\n")

    def _ask(self, *question: str) -> str:
        return output_of(self.path, *question, timeout_s=_ANSWERS_WITHIN_S)


def find_ncu(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> Ncu:
    """Return the ncu on PATH, else the newest in the usual places.

    Raises `RefusalError` if there is none, or if it is broken or too old.
    """
    places = [path for place in _PLACES for path in root.glob(place) if os.access(path, os.X_OK)]
    program = shutil.which("ncu") or max(map(str, places), key=_numbers, default=None)
    if program is None:
        remedy = "install Nsight Compute (it comes with the CUDA toolkit) and put ncu on PATH"
        if "SUDO_USER" in environ:
            remedy += f"; if ncu works without sudo, {AS_ROOT}: sudo drops your PATH"
        raise RefusalError("ncu is not found: no kernel counters", remedy)
    try:
        answer = output_of(program, "--version", timeout_s=_ANSWERS_WITHIN_S)
    except UnknownFactError as error:
        raise RefusalError(str(error), _REINSTALL) from None
    version = re.search(r"Version (\d+\.\d+(?:\.\d+)?)", answer)
    if version is None:
        raise RefusalError(f"{program} tells no version", _REINSTALL)
    ncu = Ncu(program, _numbers(version[1]))
    if ncu.version < _FIRST_VERSION:
        raise RefusalError(
            f"{ncu} at {program} does not count tensor-core work",
            "install Nsight Compute 2023.2 (CUDA 12.2) or newer",
        )
    return ncu


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def require_chip(ncu: Ncu, capability: tuple[int, int]) -> None:
    """Raise `RefusalError` if `ncu` is older than the chip of that compute capability."""
    chip = chip_of_capability(capability)
    chips = value_or_none(ncu.chips)
    if chip is not None and chips and MEMBERS[chip] not in chips:
        of = "compute capability {}.{}".format(*capability)
        raise RefusalError(
            f"{ncu} is older than this GPU ({of}, {chip})",
            "install a newer Nsight Compute; Blackwell needs that of CUDA 12.8 or newer",
        )


def choose_metrics(ncu: Ncu, capability: tuple[int, int]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the chip's metrics that `ncu` has, and the reasons of those that it has not.

    For an unknown chip, whichever exist. All are collected in one run, for which ncu replays each
    kernel: of two runs of the step, cuDNN might choose other kernels in each. Raises `RefusalError`
    where this ncu does not know the device.
    """
    require_chip(ncu, capability)
    chip = chip_of_capability(capability)
    known = _metrics_here(ncu, chip)
    if known is None and chip is None:
        raise RefusalError(
            "{} does not tell the metrics of compute capability {}.{}".format(ncu, *capability),
            f"see that `{ncu.path} --query-metrics` lists them",
        )
    wanted = [name for one in ([chip] if chip else CHIPS) for name in metrics_for_chip(one)]
    if known is None:
        return tuple(wanted), {}
    found = {name: None for name in wanted if _has(known, name)}
    absent = [name for name in wanted if name not in found]
    if DRAM in absent:  # some chips count reads and writes alone
        ways = (way for way in WAYS["dram_bytes"] if all(_has(known, name) for name in way))
        found |= dict.fromkeys(next(ways, ()))
    if chip is None:
        # That a foreign chip lacks what others have is no loss. What another metric counts too is
        # left out: `src_fp16_dst_fp32` is a part of `src_fp16`.
        wholes = tuple(f"{name.rpartition('.')[0]}_" for name in found)
        return tuple(name for name in found if not name.startswith(wholes)), {}
    return tuple(found), dict.fromkeys(absent, f"{ncu} has none here")


def _metrics_here(ncu: Ncu, chip: str | None) -> frozenset[str] | None:
    """Base names that the device has, or a chip of its family; None where ncu names neither.

    The device goes first if it is ncu's first too: chips of one compute capability may differ
    (TU116 lacks the tensor cores of TU102).
    """
    questions = [("--devices", "0")]
    if chip is not None:
        # Where CUDA is told to see another device first, ncu's first one may be of another chip.
        first_is_ours = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() == "0"
        questions.insert(len(questions) if first_is_ours else 0, ("--chips", MEMBERS[chip]))
    answers = (value_or_none(partial(ncu.metrics, *question)) for question in questions)
    # Without a duration it is no list of metrics.
    return next((known for known in answers if known and _has(known, DURATION)), None)


def _has(known: frozenset[str], metric: str) -> bool:
    return metric.rpartition(".")[0] in known


@dataclass
class NcuTool(Tool):
    """Counts one step: hardware counters and executed instructions (SASS).

    Leaves `ncu/step.ncu-rep` and its CSV in the profile's folder.
    `capability` returns the compute capability of the device that the worker will take.
    """

    name: ClassVar[ToolName] = "ncu"
    root: Path = ROOT
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

    def attempts(self, folder: Path) -> Sequence[Attempt]:
        """Return the one worker. Raises `RefusalError` where there is an obstacle."""
        ncu, metrics, _ = self._setup
        report = folder / _REPORT
        report.parent.mkdir(exist_ok=True)
        prefix = ncu.command(report.with_suffix(""), metrics)
        return [Attempt(name=_ATTEMPT, prefix=prefix, environment={"LC_ALL": "C"})]

    def explain(self, console: str) -> str | None:
        """Return what ncu complained of, with the remedy for this machine."""
        return explain(console, self.root)

    def read(self, folder: Path, steps: Sequence[Account]) -> Counters:
        """Make a CSV of the report and add it up.

        Raises `UserError` where ncu complained although the step went on, and where the report is
        missing.
        """
        from bench.profilers.ncu.read import read_counters

        ncu, metrics, left_out = self._setup
        console = folder / _ATTEMPT / "console.log"
        if complaint := self.explain(console.read_text(encoding="utf-8", errors="replace")):
            raise UserError(complaint)
        report = folder / _REPORT
        if not report.exists():
            raise UserError(f"ncu left no {report}: see {console}")
        table = report.with_suffix(".csv")
        ncu.to_csv(report, table, metrics)
        found = read_counters(table)
        return found.replaced(
            missing={**left_out, **found.missing},
            source=str(ncu),
            files=(table.relative_to(folder).as_posix(),),
            per_kernel=tuple(
                kernel.model_copy(update={"name": kernel_name(kernel.name)})
                for kernel in found.per_kernel
            ),
        )

    @cached_property
    def _setup(self) -> tuple[Ncu, tuple[str, ...], dict[str, str]]:
        ncu = find_ncu(self.root)
        is_allowed, why = counter_permission(self.root)
        if is_allowed is False:
            raise RefusalError(why, permission_remedy(self.root))
        try:
            capability = self.capability()
        except UnknownFactError as error:
            raise RefusalError(str(error), "see that nvidia-smi lists the GPU") from None
        return ncu, *choose_metrics(ncu, capability)
