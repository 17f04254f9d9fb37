"""IEEE single precision: TF32 off everywhere, no autocast, no scaling. The base of the others."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from bench.records import MathMode


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
