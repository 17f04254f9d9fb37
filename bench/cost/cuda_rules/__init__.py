"""What CUDA does otherwise than a CPU, for a step that is traced on a CPU's fake tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bench.cost.cuda_rules.autocast import set_autocast
from bench.cost.cuda_rules.kernels import set_kernels

__all__ = ["cuda_rules"]


@contextmanager
def cuda_rules() -> Iterator[None]:
    """While active, ops on a CPU's tensors are cast and dispatched as on CUDA."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        set_autocast(library)
        set_kernels(library)
        yield
