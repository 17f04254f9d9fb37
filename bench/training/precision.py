"""The arithmetic of a step: fp32, tf32 and automatic mixed precision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import MethodType
from typing import Literal

import torch

from bench.errors import UnsupportedError
from bench.records import MathMode
from bench.training.devices import Device

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

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type

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


def open_precision(name: str, device: Device) -> Fp32:
    """Return the arithmetic of precision `name` on `device`.

    `amp` is bf16 where the device computes it natively, else fp16 where it computes that, else
    fp32: emulation is slower than that. `amp-bf16` and `amp-fp16` are emulated by the library where
    the device lacks them. Raises `UnsupportedError` for tf32 where there is none.
    """
    if name == "tf32" and not device.native_math("tf32"):
        raise UnsupportedError(
            f"precision={name!r}: not on this {device.backend} device; use fp32 or amp (tf32 needs "
            "an NVIDIA GPU from Ampere on, and NVIDIA_TF32_OVERRIDE other than 0)"
        )
    if name == "amp":
        native = (mode for mode in ("bf16", "fp16") if device.native_math(mode))
        name = next((f"amp-{mode}" for mode in native), "fp32")
    kinds: dict[str, Callable[[], Fp32]] = {
        "fp32": Fp32,
        "tf32": Tf32,
        "amp-bf16": lambda: AmpBf16(device.backend),
        "amp-fp16": lambda: AmpFp16(device.backend),
    }
    return kinds[name]()
