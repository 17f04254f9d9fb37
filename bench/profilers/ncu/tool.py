"""Nsight Compute as a profile's tool: one training step, each kernel replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from bench.errors import UserError
from bench.machine.gpu_drivers import compute_capability
from bench.machine.probes import ROOT, UnknownFactError
from bench.profilers.base import Attempt, Tool
from bench.profilers.ncu.complaints import counter_permission, explain
from bench.profilers.ncu.program import Choice, Ncu, RefusalError, choose_metrics, find_ncu
from bench.records import Backend, Counters, ProfiledStep, ToolName
from bench.records.kernel_names import kernel_name

_ATTEMPT = "ncu-step"


class NcuTool(Tool):
    """Counts one step: hardware counters and executed instructions (SASS).

    Leaves `ncu/step.ncu-rep` and its CSV in the profile's folder.
    `capability` returns the compute capability of the device that the worker will take.
    """

    name: ClassVar[ToolName] = "ncu"

    def __init__(
        self,
        root: Path = ROOT,
        capability: Callable[[], tuple[int, int]] = compute_capability,
    ) -> None:
        self._root = root
        self._capability = capability

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
        ncu, choice = self._setup
        report = _report(folder)
        report.parent.mkdir(exist_ok=True)
        prefix = ncu.command(report.with_suffix(""), choice.metrics)
        return [Attempt(name=_ATTEMPT, prefix=prefix, environment={"LC_ALL": "C"})]

    def explain(self, console: str) -> str | None:
        """Return what ncu complained of, with the remedy for this machine."""
        return explain(console, self._root)

    def read(self, folder: Path, steps: Sequence[ProfiledStep]) -> Counters:
        """Make a CSV of the report and add it up.

        Raises `UserError` where ncu complained although the step went on, and where the report is
        missing.
        """
        from bench.profilers.ncu.read import read_counters

        ncu, choice = self._setup
        console = folder / _ATTEMPT / "console.log"
        if complaint := self.explain(console.read_text(encoding="utf-8", errors="replace")):
            raise UserError(complaint)
        report = _report(folder)
        if not report.exists():
            raise UserError(f"ncu left no {report}: see {console}")
        table = report.with_suffix(".csv")
        ncu.to_csv(report, table, choice.metrics)
        found = read_counters(table)
        return found.replaced(
            missing={**choice.left_out, **found.missing},
            source=str(ncu),
            files=(table.relative_to(folder).as_posix(),),
            per_kernel=tuple(
                kernel.model_copy(update={"name": kernel_name(kernel.name)})
                for kernel in found.per_kernel
            ),
        )

    @cached_property
    def _setup(self) -> tuple[Ncu, Choice]:
        ncu = find_ncu(self._root)
        permission = counter_permission(self._root)
        if permission.state == "forbidden":
            raise RefusalError(permission.detail, permission.remedy)
        try:
            capability = self._capability()
        except UnknownFactError as error:
            raise RefusalError(str(error), "see that nvidia-smi lists the GPU") from None
        return ncu, choose_metrics(ncu, capability)


def _report(folder: Path) -> Path:
    """Where ncu leaves what it collected, in the profile's folder."""
    return folder / "ncu" / "step.ncu-rep"
