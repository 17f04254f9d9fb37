"""Environment variables that change how fast the libraries compute, whoever set them."""

from __future__ import annotations

import os
from collections.abc import Mapping

#: OpenMP of GCC and LLVM, oneMKL, oneDNN, OpenBLAS, cuBLAS, NCCL, and torch's own compiler.
_FAMILIES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "DNNL_", "ONEDNN_", "OPENBLAS_", "CUBLAS_", "NCCL_"),
    *("TORCH_NCCL_", "TORCHINDUCTOR_"),
)
#: What a step's memory comes from is told by `allocator`, so glibc's variables are not here.
_NAMES = frozenset(
    {
        "ATEN_CPU_CAPABILITY",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_MODULE_LOADING",
        "NVIDIA_TF32_OVERRIDE",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ENABLE_MPS_FALLBACK",
        "THP_MEM_ALLOC_ENABLE",
    }
)
#: Where files are changes no speed, and may name a person.
_PLACES = ("_DIR", "_FILE", "_HOME", "_PATH")


def speed_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return those that are set, by name."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name.startswith(_FAMILIES) or name in _NAMES) and not name.endswith(_PLACES)
    }
