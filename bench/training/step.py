"""One training step: its arithmetic (fp32, tf32, automatic mixed precision), and its work."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_leaves, tree_map

from bench.config.resolved import MODES_OF
from bench.errors import UnsupportedError
from bench.records import MathMode
from bench.records.journal import Clock
from bench.training.devices import Device
from bench.training.inputs import NextBatch
from bench.training.workloads import Batch, Workload

#: What weights of a type are multiplied in. Others are storage, unpacked before they are used.
_OF_WEIGHTS: dict[torch.dtype, MathMode] = {
    torch.float32: "fp32",
    torch.complex64: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float64: "fp64",
    torch.complex128: "fp64",
}


def weight_modes(layers: Iterable[torch.nn.Module], *inputs: torch.Tensor) -> Counter[MathMode]:
    """Count the weights of `layers`, without those inside, by the arithmetic they compute in.

    Weights that are stored in another type, as quantised ones are, compute in that of `inputs`.
    Vectors, and embeddings whose rows are only looked up, count as one number.
    """
    modes: Counter[MathMode] = Counter()
    for layer in layers:
        looked_up = isinstance(layer, torch.nn.Embedding | torch.nn.EmbeddingBag)
        for weight in layer.parameters(recurse=False):
            types = (tensor.dtype for tensor in (weight, *inputs) if tensor.dtype in _OF_WEIGHTS)
            if (dtype := next(types, None)) is not None:
                is_product = weight.dim() > 1 and not looked_up
                modes[_OF_WEIGHTS[dtype]] += weight.numel() if is_product else 1
    return modes


def math_mode_of(weights: Counter[MathMode], asked: MathMode, *, autocast: bool) -> MathMode:
    """Return the arithmetic of a step: `asked`, unless weights of another type decide.

    Autocast casts weights of all types but of 64 bits.
    """
    own = weights.most_common(1)[0][0] if weights else "fp32"
    return own if own == "fp64" or (own != "fp32" and not autocast) else asked


class Fp32:
    """How forward, backward and optimizer steps are wrapped, and what arithmetic they use."""

    math_mode: MathMode = "fp32"
    fp32_math: Literal["ieee", "tf32"] = "ieee"
    autocast_dtype: Literal["none", "bf16", "fp16"] = "none"
    loss_scaling = False

    def __init__(self, device_type: str = "cpu") -> None:
        self._device_type = device_type

    def apply(self) -> None:
        """Set the process's switches for 32-bit products and convolutions.

        PyTorch's default for cuDNN convolutions is TF32, for products IEEE. Its older switches
        are set with its newer ones, since torch refuses to answer when the two disagree.
        """
        torch.backends.cuda.matmul.allow_tf32 = self.fp32_math == "tf32"
        torch.backends.cudnn.allow_tf32 = self.fp32_math == "tf32"
        torch.backends.cuda.matmul.fp32_precision = self.fp32_math
        torch.backends.cudnn.conv.fp32_precision = self.fp32_math  # type: ignore[attr-defined]
        torch.backends.cudnn.rnn.fp32_precision = self.fp32_math  # type: ignore[attr-defined]
        torch.backends.mkldnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]
        torch.backends.mkldnn.matmul.fp32_precision = "ieee"  # type: ignore[attr-defined]
        torch.backends.mkldnn.rnn.fp32_precision = "ieee"  # type: ignore[attr-defined]

    def forward(self) -> AbstractContextManager[object]:
        """Context of the forward pass and the loss."""
        return nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        """Accumulate the gradients of `loss`."""
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the weights."""
        optimizer.step()


class Tf32(Fp32):
    """Inputs rounded to 10 bits of mantissa, sums kept in 32 bits."""

    math_mode = "tf32"
    fp32_math = "tf32"


class AmpBf16(Fp32):
    """Autocast to bf16, which has fp32's range and needs no scaling."""

    math_mode: MathMode = "bf16"
    autocast_dtype: Literal["bf16", "fp16"] = "bf16"
    _dtype = torch.bfloat16

    def forward(self) -> AbstractContextManager[object]:
        """Autocast to 16 bits."""
        return torch.autocast(self._device_type, dtype=self._dtype)


class AmpFp16(AmpBf16):
    """Autocast to fp16; the loss is scaled so that small gradients do not vanish."""

    math_mode = "fp16"
    autocast_dtype = "fp16"
    loss_scaling = True
    _dtype = torch.float16

    def __init__(self, device_type: str) -> None:
        super().__init__(device_type)
        self._scaler = torch.amp.GradScaler(device_type)

    def backward(self, loss: torch.Tensor) -> None:
        """Accumulate the gradients of the scaled loss."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale and update; a step with infinite gradients is left out and the scale halved."""
        self._scaler.step(optimizer)
        self._scaler.update()


class Fp8(AmpBf16):
    """Autocast to bf16, of a model whose linear layers `multiply_in_fp8`."""

    math_mode = "fp8"


def keep_depthwise_in_fp32(model: torch.nn.Module) -> bool:
    """Compute every strided depthwise convolution of `model` in fp32 beside autocast.

    The backward passes of just these have no fast bf16 kernel in oneDNN (docs/results.md).
    Only the layer's `forward` is replaced: it stays the same module, with its name, weights and
    function. A user's own kind of convolution is left as it is. Returns whether there was any.
    """
    kept = [layer for layer in model.modules() if _is_strided_depthwise(layer)]
    for layer in kept:
        layer.forward = MethodType(_convolve_in_fp32, layer)
    return bool(kept)


def _convolve_in_fp32(layer: torch.nn.Conv2d, images: torch.Tensor) -> torch.Tensor:
    """Convolve (batch, channels, height, width) in fp32; the output has autocast's type."""
    device = images.device.type
    autocast_dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        return torch.nn.Conv2d.forward(layer, images.float()).to(autocast_dtype)


def _is_strided_depthwise(layer: torch.nn.Module) -> bool:
    return (
        type(layer) is torch.nn.Conv2d
        and layer.groups == layer.in_channels > 1
        and max(layer.stride) > 1
    )


#: What computes in each arithmetic; a 16-bit one by autocast.
ARITHMETIC: dict[MathMode, type[Fp32]] = {
    kind.math_mode: kind for kind in (Fp32, Tf32, AmpBf16, AmpFp16, Fp8)
}
_NEEDS = {
    "tf32": "an NVIDIA GPU from Ampere on, and NVIDIA_TF32_OVERRIDE other than 0",
    "fp8": "an NVIDIA GPU of compute capability 8.9 or more",
}


def open_precision(name: str, device: Device) -> Fp32:
    """Return the arithmetic of precision `name` on `device`.

    `amp` is bf16 where the device computes it natively, else fp16 where it computes that, else
    fp32: emulation is slower than that. `amp-bf16` and `amp-fp16` are emulated by the library where
    the device lacks them. Raises `UnsupportedError` for tf32 and fp8 where there is none.
    """
    if name in _NEEDS and not device.native_math(name):
        capability = device.info().compute_capability
        of = f" of compute capability {capability}" if capability else ""
        raise UnsupportedError(
            f"precision={name!r}: not on this {device.backend} device{of}; use fp32 or amp ({name} "
            f"needs {_NEEDS[name]})"
        )
    modes: Iterable[MathMode] = MODES_OF[name]
    if name == "amp":
        modes = filter(device.native_math, MODES_OF[name])
    return ARITHMETIC[next(iter(modes), "fp32")](device.backend)


# The work that an iteration repeats

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
