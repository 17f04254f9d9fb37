"""One training step: the work that an iteration repeats."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from bench.errors import UnsupportedError
from bench.records.journal import Clock
from bench.training.devices import Device
from bench.training.inputs import NextBatch
from bench.training.precision import Fp32
from bench.training.workloads import Batch, Workload

#: SGD as torchvision's classification references train these models; the learning rate is a
#: tenth of theirs, since labels are random and fp16 must not overflow.
LEARNING_RATE = 0.01
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4
#: AdamW with torch's default weight decay and a tenth of its learning rate, for the same reasons.
ADAMW_LEARNING_RATE = 1e-4
ADAMW_WEIGHT_DECAY = 0.01


def make_optimizer(
    model: torch.nn.Module, name: str, *, fused: bool, captured: bool = False
) -> torch.optim.Optimizer:
    """Return the optimizer `name` over `model`'s parameters: SGD with momentum, or AdamW.

    `captured`: whether its step goes into a CUDA graph. A fused SGD has its momentum, zeros, from
    the start: by itself it would make it in its first step, of memory that nothing has written, and
    leave it so where the loss scaler skips that step.
    """
    if name == "adamw":
        return torch.optim.AdamW(
            model.parameters(),
            lr=ADAMW_LEARNING_RATE,
            weight_decay=ADAMW_WEIGHT_DECAY,
            fused=fused,
            capturable=captured,
        )
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=LEARNING_RATE,
        momentum=MOMENTUM,
        weight_decay=WEIGHT_DECAY,
        fused=fused,
    )
    if fused:
        for parameter in model.parameters():
            if parameter.requires_grad:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


class Phases:
    """The base: phases pass unmarked, at the cost of one empty context."""

    _nothing = nullcontext()

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Context of one phase: data, forward, backward or optimizer."""
        return self._nothing

    def lap(self) -> None:
        """Close an iteration."""

    def clear(self) -> None:
        """Forget what was marked so far: the window begins."""

    def times_s(self) -> dict[str, tuple[float, ...]] | None:
        """Seconds per phase and iteration, or None if phases were not timed."""
        return None


class TimedPhases(Phases):
    """Wall time of each phase, the device synchronised at every phase's end."""

    def __init__(self, device: Device, clock: Clock) -> None:
        self._device = device
        self._clock = clock
        self.clear()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the phase's time to this iteration's."""
        begin = self._clock()
        yield
        self._device.synchronize()
        self._laps[-1][name] += self._clock() - begin

    def lap(self) -> None:
        """Begin the next iteration."""
        self._laps.append(defaultdict(float))

    def clear(self) -> None:
        """Forget the warm-up."""
        self._laps: list[dict[str, float]] = [defaultdict(float)]

    def times_s(self) -> dict[str, tuple[float, ...]] | None:
        """Seconds per phase and iteration."""
        laps = self._laps[:-1]
        return {name: tuple(lap[name] for lap in laps) for name in self._laps[0]}


class NvtxPhases(Phases):
    """A range per iteration, and within it one per phase, for NVIDIA's profilers.

    The warm-up is one range.
    """

    _in_iteration = False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Push and pop a range."""
        if not self._in_iteration:
            torch.cuda.nvtx.range_push("iteration")  # type: ignore[no-untyped-call]
            self._in_iteration = True
        torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]

    def lap(self) -> None:
        """Close the iteration's range; the next phase opens another."""
        if self._in_iteration:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
            self._in_iteration = False

    def clear(self) -> None:
        """Close the warm-up's range."""
        self.lap()


@dataclass(eq=False)
class TrainingStep:
    """Fetch, forward, backward and update; calling it returns the loss, left on the device.

    `grad_accum_steps` batches make one step; their gradients are averaged. All but the last are
    passed within `no_gradient_sync`, so that several devices exchange gradients once a step.
    Gradients are set to None after the update, not filled with zeros.
    """

    workload: Workload
    model: Callable[..., Any]
    optimizer: torch.optim.Optimizer
    precision: Fp32
    grad_accum_steps: int = 1
    phases: Phases = field(default_factory=Phases)
    no_gradient_sync: Callable[[], AbstractContextManager[object]] = nullcontext

    def __call__(self, next_batch: NextBatch) -> torch.Tensor:
        """Run one step on the batches that `next_batch` gives; return the last batch's loss."""
        for _ in range(self.grad_accum_steps - 1):
            with self.no_gradient_sync():
                self._accumulate_next(next_batch)
        loss = self._accumulate_next(next_batch)
        self.update()
        return loss

    def _accumulate_next(self, next_batch: NextBatch) -> torch.Tensor:
        with self.phases.phase("data"):
            batch = next_batch()
        return self.accumulate(batch)

    def accumulate(self, batch: Batch) -> torch.Tensor:
        """Forward and backward of one batch; return its loss."""
        with self.phases.phase("forward"), self.precision.forward():
            loss = self.workload.loss(self.workload.output(self.model, batch), batch)
        with self.phases.phase("backward"):
            # No division in the common case: it would be one more kernel.
            n = self.grad_accum_steps
            self.precision.backward(loss if n == 1 else loss / n)
        return loss.detach()

    def update(self) -> None:
        """Update the weights and drop the gradients."""
        with self.phases.phase("optimizer"):
            self.precision.step(self.optimizer)
            self.optimizer.zero_grad(set_to_none=True)


class GraphedStep:
    """A training step captured once as a CUDA graph and replayed on each batch.

    Copies each batch into the tensors that the graph reads, unless it `reuses_batch`: then all
    batches are the same tensors, which the graph reads where they are. Raises `UnsupportedError`
    where the step cannot be captured.
    """

    #: Iterations on a side stream before the capture, as torch.cuda.graphs asks.
    _WARMUP = 3

    def __init__(
        self, step: TrainingStep, precision: Fp32, device: Device, *, reuses_batch: bool = False
    ) -> None:
        if not device.supports_cuda_graphs:
            raise UnsupportedError(
                f"cuda_graphs=true: not on {device.backend}; use backend=cuda or cuda_graphs=false"
            )
        if precision.loss_scaling:
            raise UnsupportedError(
                "cuda_graphs=true: the loss scale changes between replays; "
                "use precision=amp-bf16 or cuda_graphs=false"
            )
        self._step = step
        self._reuses_batch = reuses_batch
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Batch = None
        self._loss = torch.empty(0)

    def __call__(self, next_batch: NextBatch) -> torch.Tensor:
        """Capture at the first call, replay from then on; return the loss."""
        batch = next_batch()
        if self._graph is None:
            self._graph = self._capture(batch)
        elif not self._reuses_batch:
            for own, new in zip(tree_leaves(self._batch), tree_leaves(batch), strict=True):
                own.copy_(new, non_blocking=True)
        self._graph.replay()
        return self._loss

    def _capture(self, batch: Batch) -> torch.cuda.CUDAGraph:
        self._batch = batch if self._reuses_batch else tree_map(torch.clone, batch)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(self._WARMUP):
                self._once()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Another thread, a loader that pins its next batch, may allocate at the same time.
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._loss = self._once()
        except RuntimeError as error:
            if "captur" not in str(error):
                raise
            raise UnsupportedError(
                "cuda_graphs=true: CUDA cannot capture this step, which waits for the device (as "
                ".item() does) or allocates past torch; use cuda_graphs=false"
            ) from error
        return graph

    def _once(self) -> torch.Tensor:
        return self._step(lambda: self._batch)


#: Why a record of such a run lacks what a model would have given.
NO_MODEL = "data_only=true: no model ran"
_NO_LOSS = torch.tensor(math.nan)


def fetch_only(next_batch: NextBatch) -> torch.Tensor:
    """Fetch a batch onto the device and do nothing with it; the loss is not a number."""
    next_batch()
    return _NO_LOSS
