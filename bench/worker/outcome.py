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
    # cuDNN's plans each ran out of memory, which torch's search for one keeps to itself
    "FIND was unable to find an engine",
    "GET was unable to find an engine",
)
#: What libraries also say for other reasons: of memory only where the device has next to none left.
_FULL_DEVICE_PHRASES = (
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "unhandled cuda error",  # NCCL, whose buffers are past torch's allocator
)
_FULL_FREE_SHARE = 0.05
_NOT_DETERMINISTIC = "does not have a deterministic implementation"


def attempt(work: Callable[[], None]) -> tuple[Outcome, str | None]:
    """Run `work`; return its outcome and, unless it went well, the reason in one line.

    The traceback of a crash goes to the worker's console.
    """
    try:
        work()
    except KeyboardInterrupt:
        return "interrupted", "interrupted from outside"
    except SystemExit as error:
        return "crashed", f"the code that was measured ended the process: sys.exit({error.code!r})"
    except UnsupportedError as error:
        return "unsupported", str(error)
    except UserError as error:
        return "refused", str(error)
    except Exception as error:
        if _NOT_DETERMINISTIC in str(error):
            what = _first_line(error).partition(", but")[0]
            return "unsupported", f"deterministic=true: {what}; use deterministic=false"
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
    line = _first_line(error)
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    if any(phrase in text for phrase in _MEMORY_PHRASES):
        return True
    return any(phrase in text for phrase in _FULL_DEVICE_PHRASES) and _is_device_full()


def _is_device_full() -> bool:
    try:
        free_bytes, total_bytes = torch.cuda.mem_get_info()
    except Exception:  # a context that has failed answers nothing
        return False
    return free_bytes < _FULL_FREE_SHARE * total_bytes
