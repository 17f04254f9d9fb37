"""How an attempt ended, by the exception that ended it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

import torch

from bench.errors import UnsupportedError, UserError
from bench.records import Outcome

T = TypeVar("T")

#: What PyTorch's allocators and libraries say when memory runs out without an error class for it.
_MEMORY_PHRASES = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def attempt(work: Callable[[], None]) -> tuple[Outcome, str | None]:
    """Run `work`; return its outcome and, unless it went well, the reason in one line.

    The traceback of a crash goes to the worker's console.
    """
    try:
        work()
    except KeyboardInterrupt:
        return "interrupted", "interrupted from outside"
    except UnsupportedError as error:
        return "unsupported", str(error)
    except UserError as error:
        return "refused", str(error)
    except Exception as error:
        traceback.print_exc()
        return ("oom" if _is_out_of_memory(error) else "crashed"), _in_short(error)
    return "ok", None


def or_reason(name: str, make: Callable[[], T | None], missing: dict[str, str]) -> T | None:
    """Make one fact; if that fails, note why, so that the others are not lost with it."""
    try:
        return make()
    except Exception as error:
        missing[name] = _in_short(error)
        return None


def _in_short(error: BaseException) -> str:
    """The exception's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(p in str(error) for p in _MEMORY_PHRASES)
