"""Short names for kernels, whose full ones take lines: templates cut to what tells them apart."""

from __future__ import annotations

import re

_LIMIT = 40
_ELLIPSIS = "…"

#: Wrappers that say how a kernel is launched, not what it computes.
_WRAPPERS = frozenset({"Kernel", "Kernel2"})
#: Template arguments that every kernel of a kind shares.
_GENERIC = frozenset(
    {"AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor", "UnaryFunctor", "ReduceOp"}
)
_FUNCTOR = re.compile(r"(?<!\w)\w*(?:[Ff]unctor|Ops?)(?:_\w+)?(?!\w)")
#: A function whose lambda is the kernel's body.
_MAKER = re.compile(r"([A-Za-z_]\w*)\((?=[^()]*\)::)")
_ANONYMOUS = re.compile(r"\(anonymous ?namespace\)")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def short_kernel_name(name: str, limit: int = _LIMIT) -> str:
    """Return what people call the kernel: its function, and what a template makes it do.

    `at::native::vectorized_elementwise_kernel<4,at::native::CUDAFunctor_add<float>,...>` becomes
    `vectorized_elementwise CUDAFunctor_add`. What is over `limit` characters is cut in the
    middle, since long names differ at their ends.
    """
    head, _, arguments = name.removeprefix("void ").partition("<")
    function = _last_part(head)
    if function in _WRAPPERS and (inner := _IDENTIFIER.search(arguments)):
        return shortened(_last_part(_qualified(arguments, inner.start())), limit)
    detail = shortened(_detail(arguments).removesuffix("_kernel_cuda"), limit // 2)
    if not function or not detail:
        return shortened(function or name, limit)
    function = function.removesuffix("_kernel")
    return f"{shortened(function, limit - len(detail) - 1)} {detail}"


def shortened(text: str, limit: int) -> str:
    """Return `text` with its middle left out if it is longer than `limit`."""
    if len(text) <= limit:
        return text
    end = (limit - 1) // 2
    return text[: limit - 1 - end] + _ELLIPSIS + text[len(text) - end :]


def _detail(arguments: str) -> str:
    """The innermost functor among the template arguments, else the maker of a lambda."""
    functors = [found for found in _FUNCTOR.findall(arguments) if found not in _GENERIC]
    if functors:
        return str(functors[-1])
    maker = _MAKER.search(_ANONYMOUS.sub("", arguments))
    return maker[1] if maker else ""


def _last_part(qualified: str) -> str:
    return qualified.rstrip(":").rsplit("::", 1)[-1]


def _qualified(text: str, start: int) -> str:
    return re.split(r"[<>,(]", text[start:], maxsplit=1)[0]
