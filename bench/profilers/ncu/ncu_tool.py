"""Nsight Compute as a profile's tool: two passes over one training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from bench.errors import UserError
from bench.machine.cuda_driver import compute_capability
from bench.machine.probes import ROOT, UnknownFactError
from bench.profilers.base import Attempt, Tool
from bench.profilers.ncu.ncu_choice import Choice, choose_metrics
from bench.profilers.ncu.ncu_complaints import counter_permission, explain
from bench.profilers.ncu.ncu_program import Ncu, RefusalError, find_ncu
from bench.records import Backend, Counters, ProfiledStep, ToolName
from bench.records.verdict.kernel_names import kernel_name


class NcuTool(Tool):
    """Counts one step twice: hardware counters, then executed instructions (SASS).

    Leaves `ncu/hardware.ncu-rep`, `ncu/sass.ncu-rep` and a CSV of each in the profile's folder.
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
        try:
            _ = self._setup
        except RefusalError as refusal:
            return str(refusal)
        return None

    def attempts(self, folder: Path) -> Sequence[Attempt]:
        """Return one worker per pass. Raises `RefusalError` where there is an obstacle."""
        (ncu, choice), files = self._setup, folder / "ncu"
        files.mkdir(exist_ok=True)
        return [
            Attempt(
                name=f"ncu-{name}",
                prefix=ncu.command(files / name, metrics),
                environment={"LC_ALL": "C"},
            )
            for name, metrics in choice.passes.items()
        ]

    def explain(self, console: str) -> str | None:
        """Return what ncu complained of, with the remedy for this machine."""
        return explain(console, self._root)

    def read(self, folder: Path, steps: Sequence[ProfiledStep]) -> Counters:
        """Make a CSV of each report and add them up.

        Raises `UserError` where ncu complained although the step went on, where a report is
        missing, and where the two passes saw different kernels.
        """
        from bench.profilers.files.ncu_read import read_counters_of

        ncu, choice = self._setup
        tables = [self._table(folder, name) for name in choice.passes]
        found = read_counters_of(tables)
        return found.replaced(
            missing={**choice.left_out, **found.missing},
            source=str(ncu),
            files=tuple(table.relative_to(folder).as_posix() for table in tables),
            per_kernel=tuple(
                kernel.model_copy(update={"name": kernel_name(kernel.name)})
                for kernel in found.per_kernel
            ),
        )

    def _table(self, folder: Path, name: str) -> Path:
        """Make the CSV of one pass beside its report."""
        console = folder / f"ncu-{name}" / "console.log"
        if complaint := self.explain(console.read_text(encoding="utf-8", errors="replace")):
            raise UserError(complaint)
        report = folder / "ncu" / f"{name}.ncu-rep"
        if not report.exists():
            raise UserError(f"ncu left no {report}: see {console}")
        table = report.with_suffix(".csv")
        ncu, choice = self._setup
        ncu.to_csv(report, table, choice.passes[name])
        return table

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
