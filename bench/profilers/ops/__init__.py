"""Time per op of a step, by PyTorch's own profiler, joined with the cost model's FLOP and bytes.

`TorchTool` is that profiler as a tool: it works on every backend, and in the worker itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from bench.errors import UserError
from bench.profilers.base import Attempt, Tool
from bench.records import Account, OpProfile, ToolName

__all__ = ["TorchTool"]


class TorchTool(Tool):
    """One worker, which times its own ops (`bench.profilers.ops.torch_profiler.profile_ops`)."""

    name: ClassVar[ToolName] = "torch"
    counts_ranks: ClassVar[bool] = True

    def attempts(self, folder: Path) -> Sequence[Attempt]:
        """Return the one worker, which leaves the trace of a step in `folder`."""
        return (Attempt(self.name, task={"trace": str(folder / "trace.json")}),)

    def read(self, folder: Path, steps: Sequence[Account]) -> OpProfile:
        """Return the worker's op times. Raises `UserError` with its reason if it has none."""
        step = steps[0]
        if step.ops is None:
            raise UserError(f"{folder / self.name}: no op times: {step.missing['ops']}")
        return step.ops
