"""What one step launched: the fingerprint by which two runs are known to have done the same."""

from __future__ import annotations

from typing import Literal

from bench.records.base import Count, Record


class WorkSet(Record):
    """Names and counts of what one training step launched.

    `kernels` on CUDA; `ops` (aten) elsewhere. Kernel names are as
    `bench.records.verdict.kernel_names` spells them: without the return type and the parameter
    list, which tools print differently.
    """

    unit: Literal["kernels", "ops"]
    counts: dict[str, Count]

    def differences(self, other: WorkSet) -> tuple[str, ...]:
        """Return what the two do not share, as `name: 3 against 4`; empty for the same work."""
        names = sorted(self.counts.keys() | other.counts.keys())
        pairs = ((name, self.counts.get(name, 0), other.counts.get(name, 0)) for name in names)
        return tuple(
            f"{name}: {ours} against {theirs}" for name, ours, theirs in pairs if ours != theirs
        )
