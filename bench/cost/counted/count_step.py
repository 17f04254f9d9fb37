"""Counts what a user's own training step computes and moves, while it runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, get_args

import torch

from bench.cost.cached import DEFAULT_CACHE_BYTES
from bench.cost.estimate import calls_of, ops_of, totals_of
from bench.cost.tracing.dispatched_step import DispatchedStep
from bench.cost.tracing.step_tracer import RecordedPasses
from bench.cost.traffic.floor import compulsory_bytes
from bench.errors import UserError
from bench.records import OpCost, Phase
from bench.records.complexity import PhaseCost


@contextmanager
def count_step(*, cache_bytes: int = DEFAULT_CACHE_BYTES) -> Iterator[StepCost]:
    """Count what a block of code computes and moves, on any device.

    `with count_step() as cost:` stands around one training step, or any part of one. Every op runs
    once, as without it, and slower: Python is called for each. `cost` can be read after the block.
    An op without a formula is named in a warning and in `cost.uncounted`, and the FLOP are then a
    lower bound. `cache_bytes` is the cache of `cost.compulsory_bytes`.

    Only what torch dispatches is seen. A compiled model runs op by op within the block, so it is
    counted as if it were not compiled. Kernels that are launched past torch are not seen: those of
    a replayed CUDA graph, or of a library that is called from Python.
    """
    cost = StepCost(cache_bytes)
    step = DispatchedStep()
    # Torch compiles nothing while ops are counted, but fails where one graph is asked for.
    with torch.compiler.set_stance("force_eager"), step:
        yield cost
    recorded = RecordedPasses(
        passes=tuple(step.passes),
        calls=tuple(step.calls),
        sizes_bytes=tuple(step.values.sizes_bytes),
        lasting=step.lasting(),
    )
    cost.close(recorded, step.uncounted)
    if step.uncounted:
        warnings.warn(f"count_step: {cost.why_incomplete}", stacklevel=3)


class StepCost:
    """What a step must compute and move, of the whole batch; a multiply-add is 2 FLOP.

    Its counts are those of `mlproject complexity`, under the same names. `uncounted` has the ops
    whose FLOP are missing, by name with the reason: empty where the count is complete.
    """

    def __init__(self, cache_bytes: int) -> None:
        self.cache_bytes = cache_bytes
        self.uncounted: dict[str, str] = {}
        self._recorded: RecordedPasses | None = None

    def close(self, recorded: RecordedPasses, uncounted: Mapping[str, str]) -> None:
        """Take what was recorded: the counts can be read from now on."""
        self._recorded = recorded
        self.uncounted = dict(uncounted)

    @property
    def is_complete(self) -> bool:
        """Whether the FLOP of every op were counted."""
        return not self.uncounted

    @property
    def why_incomplete(self) -> str | None:
        """Which ops lack a count, and why; None where the count is complete."""
        if self.is_complete:
            return None
        ops = "; ".join(f"{op}, {reason}" for op, reason in self.uncounted.items())
        return f"the FLOP are a lower bound, without those of {ops}"

    @cached_property
    def ops(self) -> tuple[OpCost, ...]:
        """The counts of every op in every phase."""
        return ops_of(calls_of(self._step))

    @property
    def phases(self) -> tuple[PhaseCost, ...]:
        """Forward, backward and optimizer; their sums are the totals."""
        return tuple(PhaseCost.of(phase, self.ops) for phase in get_args(Phase))

    @property
    def forward_macs(self) -> int:
        """Multiply-adds of convolutions, matrix products and attention in the forward pass."""
        return sum(item.macs for item in self._step.passes if item.phase == "forward")

    @property
    def step_flops(self) -> int:
        """Algorithmic FLOP of the same, in all phases."""
        return self._totals["flops"]

    @property
    def recomputed_flops(self) -> int:
        """FLOP of what checkpoints compute again in the backward pass; not in `step_flops`."""
        return 2 * sum(item.recomputed_macs for item in self._step.passes)

    @property
    def causal_skipped_flops(self) -> int:
        """The part of `step_flops` that causal masks leave out, where fused attention may skip."""
        return 2 * sum(item.causal_skipped_macs for item in self._step.passes)

    @property
    def elementwise_flops(self) -> int:
        """FLOP of everything else, by the conventions of `bench.cost.flops`."""
        return self._totals["elementwise_flops"]

    @property
    def eager_bytes(self) -> int:
        """DRAM traffic if every op reads its inputs and writes its outputs."""
        return self._totals["eager_bytes"]

    @property
    def fused_bytes(self) -> int:
        """DRAM traffic if all small ops are folded into their neighbours."""
        return self._totals["fused_bytes"]

    @cached_property
    def compulsory_bytes(self) -> int:
        """DRAM traffic that a cache of `cache_bytes` cannot save: a floor."""
        step = self._step
        return compulsory_bytes(step.passes, step.lasting, self.cache_bytes)

    def __str__(self) -> str:
        """Return a table of the phases, and what is missing."""
        lines = [_line("", "GFLOP", "small GFLOP", "fused MB", "eager MB")]
        rows = {phase.phase: phase.model_dump(exclude={"phase"}) for phase in self.phases}
        lines += [
            _counts_line(name, counts) for name, counts in (rows | {"step": self._totals}).items()
        ]
        return "\n".join([*lines, *filter(None, [self.why_incomplete])])

    @cached_property
    def _totals(self) -> dict[str, int]:
        return totals_of(self.ops)

    @property
    def _step(self) -> RecordedPasses:
        if self._recorded is None:
            raise UserError(
                "count_step: nothing is counted yet; read the cost after the with block"
            )
        return self._recorded


def _counts_line(name: str, counts: Mapping[str, Any]) -> str:
    units = {"flops": 1e9, "elementwise_flops": 1e9, "fused_bytes": 1e6, "eager_bytes": 1e6}
    return _line(name, *(f"{counts[count] / unit:,.3f}" for count, unit in units.items()))


def _line(name: str, *cells: str) -> str:
    return f"{name:9}" + "".join(f"{cell:>14}" for cell in cells)
