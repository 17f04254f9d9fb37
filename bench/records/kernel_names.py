"""One spelling of a CUDA kernel's name, whichever tool printed it.

The same kernel is `_Z1kIfLi4EEvPT_` in the program, `void k<float, 4>(float*)` to PyTorch's
profiler (kineto calls `__cxa_demangle`, and leaves names over 1,024 characters and all names on
Windows as they are) and `void k<float, (int)4>(T1 *)` to ncu, whose own demangler also writes
lambdas and enclosing functions so that no rule leads from one to the other. Two tools are
therefore compared by the program's own name, demangled here as kineto does.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache, lru_cache

#: Where `__cxa_demangle` is: GCC's runtime, LLVM's on macOS, LLVM's on Linux. Windows has none.
_RUNTIMES = ("libstdc++.so.6", "/usr/lib/libc++.1.dylib", "libc++abi.so.1")
#: How the C++ ABI's demanglers mark a literal's type (libiberty/cp-demangle.c, D_PRINT_*).
_SUFFIXES = {
    "int": "",
    "unsigned int": "u",
    "long": "l",
    "unsigned long": "ul",
    "long long": "ll",
    "unsigned long long": "ull",
}
_CAST = re.compile(rf"\((bool|{'|'.join(_SUFFIXES)})\)(-?\d+)")
#: Kernels that cuDNN and cuBLAS, MIOpen and hipBLAS (Tensile's `Cijk_...`) choose among by trial or
#: by rule, and what they need around them.
_CHOSEN = re.compile(
    r"gemm|gemv|convol|conv[23]d|cudnn|cutlass|xmma|winograd|[fdw]prop|[dw]grad|split_?k|im2col|fft"
    r"|cublas|nvjet|nchwTo|nhwcTo|computeOffsets"
    r"|miopen|naive_conv|Cijk_|batched_transpose_|transpose_[NCHW]{4}2|SubTensorOp|Im2d2Col|Col2Im2d",
    re.IGNORECASE,
)
_SPACE_AT_PUNCTUATION = re.compile(r"\s*([^\w\s])\s*")


@lru_cache(maxsize=65536)
def kernel_name(printed: str) -> str:
    """Return `printed` demangled, without return type, parameters and the spaces tools differ in.

    `void at::native::foo<float, (int)4>(int, float *)` becomes `at::native::foo<float,4>`.
    Parentheses inside the template arguments belong to the name and stay. A name that is spelled
    so already comes back as it is.
    """
    name = printed.strip()
    if name.startswith("_Z"):
        name = _demangler()(name)
    name = name.removeprefix("void ").replace("<unnamed>", "(anonymous namespace)")
    name = _CAST.sub(_literal, name[: _parameter_list(name)])
    return _SPACE_AT_PUNCTUATION.sub(r"\1", name).strip()


def is_chosen_by_library(name: str) -> bool:
    """Whether another process may run another kernel for the same convolution or product."""
    return _CHOSEN.search(name) is not None


def _literal(cast: re.Match[str]) -> str:
    kind, value = cast.groups()
    if kind == "bool":
        return "true" if value != "0" else "false"
    return value + _SUFFIXES[kind]


def _parameter_list(name: str) -> int:
    """The index at which the parameter list begins, or the length where there is none.

    It is the last group of parentheses that stands outside of every template argument.
    """
    if not name.endswith(")"):
        return len(name)
    depth = 0
    for index in range(len(name) - 1, -1, -1):
        if name[index] == ")":
            depth += 1
        elif name[index] == "(":
            depth -= 1
            if depth == 0:
                return index
    return len(name)


@cache
def _demangler() -> Callable[[str], str]:
    """The C++ runtime's own demangler, or one that changes nothing where there is no runtime."""
    for runtime in _RUNTIMES:
        try:
            library = ctypes.CDLL(runtime)
            demangle, free = library.__cxa_demangle, ctypes.CDLL(None).free
        except (OSError, AttributeError, TypeError):
            continue
        demangle.restype, free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
        return lambda name: _demangled(name, demangle, free)
    return lambda name: name


def _demangled(name: str, demangle: Callable[..., int | None], free: Callable[..., None]) -> str:
    """Itanium C++ ABI, `__cxa_demangle`: NULL for a name that is not mangled; the caller frees."""
    text = demangle(name.encode(), None, None, None)
    if not text:
        return name
    try:
        return ctypes.string_at(text).decode(errors="replace")
    finally:
        free(text)
