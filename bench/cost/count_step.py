"""Counts what a user's own training step computes and moves, while it runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bench.cost.estimate import counts_of
from bench.cost.step_tracer import LiveStepTracer, RecordedCalls
from bench.errors import UserError
from bench.records import OpCost, Phase
from bench.records.complexity import DEFAULT_CACHE_BYTES, NO_WORK, Work, by_phase


@contextmanager
def count_step(*, cache_bytes: int = DEFAULT_CACHE_BYTES) -> Iterator[CountedStep]:
    """Count what a block of code computes and moves, on any device.

    `with count_step() as cost:` stands around one training step, or any part of one. Every op runs
    once, as without it, and slower: Python is called for each. `cost` can be read after the block.
    An op without a formula is named in a warning and in `cost.uncounted`, and the FLOP are then a
    lower bound. `cache_bytes` is the cache of `cost.compulsory_bytes`.

    Only what torch dispatches is seen. A compiled model runs op by op within the block, so it is
    counted as if it were not compiled. Kernels that are launched past torch are not seen: those of
    a replayed CUDA graph, or of a library that is called from Python.
    """
    cost, step = CountedStep(cache_bytes), LiveStepTracer()
    # Torch compiles nothing while ops are counted, but fails where one graph is asked for.
    with torch.compiler.set_stance("force_eager"), step:
        yield cost
    cost.close(step)
    if step.uncounted:
        warnings.warn(f"count_step: {cost.why_incomplete}", stacklevel=3)


class CountedStep:
    """What a step must compute and move, of the whole batch; a multiply-add is 2 FLOP.

    Its counts are those of `mlproject complexity`, under the same names. `uncounted` has the ops
    whose FLOP are missing, by name with the reason: empty where the count is complete.
    """

    forward_macs: int  # multiply-adds of convolutions, products and attention, forward
    step_flops: int  # algorithmic FLOP of the same, in all phases
    recomputed_flops: int  # of what checkpoints compute again; not in step_flops
    causal_skipped_flops: int  # the part of step_flops that fused attention may skip
    elementwise_flops: int  # of everything else, by the conventions of `bench.cost.flops`
    eager_bytes: int  # DRAM traffic if every op reads its inputs and writes its outputs
    fused_bytes: int  # the same if all small ops are folded into their neighbours
    compulsory_bytes: int  # what a cache of `cache_bytes` cannot save: a floor
    ops: tuple[OpCost, ...]  # the counts of every op in every phase

    def __init__(self, cache_bytes: int) -> None:
        self.cache_bytes = cache_bytes
        self.uncounted: dict[str, str] = {}
        self._recorded: RecordedCalls | None = None

    def close(self, step: LiveStepTracer) -> None:
        """Take what was recorded: the counts can be read from now on."""
        self._recorded = step.recorded(step.lasting())
        self.uncounted = step.uncounted

    def __getattr__(self, name: str) -> Any:
        if name not in type(self).__annotations__:
            raise AttributeError(f"a counted step has no {name!r}")
        if self._recorded is None:
            raise UserError(
                "count_step: nothing is counted yet; read the cost after the with block"
            )
        vars(self).update(counts_of(self._recorded, self.cache_bytes))
        return vars(self)[name]

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

    @property
    def phases(self) -> dict[Phase, Work]:
        """Work of forward, backward and optimizer; their sum is the step's."""
        return by_phase(self.ops)

    def __str__(self) -> str:
        """Return a table of the phases, and what is missing."""
        header = ("GFLOP", "small GFLOP", "fused MB", "eager MB")
        lines = [f"{'':9}" + "".join(f"{word:>14}" for word in header)]
        for name, work in (*self.phases.items(), ("step", sum(self.ops, NO_WORK))):
            giga = (work.flops / 1e9, work.elementwise_flops / 1e9)
            numbers = (*giga, work.fused_bytes / 1e6, work.eager_bytes / 1e6)
            lines.append(f"{name:9}" + "".join(f"{number:14,.3f}" for number in numbers))
        return "\n".join([*lines, *filter(None, [self.why_incomplete])])
