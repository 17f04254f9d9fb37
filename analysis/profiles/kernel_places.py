"""Where each kernel stands under each level's roof, by the counters of one profile.

One height (executed FLOP over the kernel's own time) and an intensity per memory level (executed
FLOP over the bytes that the level moved): C. Yang, Hierarchical Roofline Analysis: How to Collect
Data using Performance Tools on Intel CPUs and NVIDIA GPUs, 2020.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from bench.records import Counters, KernelTotals
from bench.records.base import ratio

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
        qualified = re.split(r"[<>,(]", arguments[inner.start() :], maxsplit=1)[0]
        return shortened(_last_part(qualified), limit)
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


#: A GPU has no L3; a processor does.
MemoryLevel = Literal["L1", "L2", "L3", "DRAM"]

#: Levels from the arithmetic outwards, and the counter of each.
_BYTES: dict[MemoryLevel, str] = {"L1": "l1_bytes", "L2": "l2_bytes", "DRAM": "dram_bytes"}


@dataclass(frozen=True, kw_only=True)
class KernelPlace:
    """All launches of one kernel; `rank` counts from 1 by time, the longest first.

    `intensities` holds the levels whose bytes were counted and moved any. `flops_per_s` is None
    without FLOP, or where FLOP or time were not counted. With `at_least` some FLOP were not
    counted: both are lower bounds, to be drawn as such and never told as values.
    """

    rank: int
    totals: KernelTotals
    share: float | None  # of the time of all kernels
    flops_per_s: float | None
    intensities: dict[MemoryLevel, float]
    at_least: bool

    @property
    def name(self) -> str:
        """Its short name; `totals.name` is the whole one."""
        return short_kernel_name(self.totals.name)

    @property
    def placed(self) -> bool:
        """Whether it has a place at any level."""
        return self.flops_per_s is not None and bool(self.intensities)


@dataclass(frozen=True)
class KernelPlaces:
    """All kernels of a profile, the longest first."""

    kernels: tuple[KernelPlace, ...]

    @property
    def placed(self) -> tuple[KernelPlace, ...]:
        """Those with a place at some level, or a lower bound of it."""
        return tuple(kernel for kernel in self.kernels if kernel.placed)

    @property
    def without_flops(self) -> tuple[KernelPlace, ...]:
        """Those that executed no FLOP: copies, index arithmetic."""
        return tuple(kernel for kernel in self.kernels if kernel.totals.flops == 0)

    @property
    def without_flops_share(self) -> float:
        """Share of the kernels' time that they took."""
        return sum(kernel.share or 0.0 for kernel in self.without_flops)

    @property
    def unknown(self) -> tuple[KernelPlace, ...]:
        """Those whose FLOP or time were not counted."""
        return tuple(
            kernel
            for kernel in self.kernels
            if kernel.totals.flops is None or kernel.totals.duration_s is None
        )


def place_kernels(counters: Counters) -> KernelPlaces:
    """Place every kernel name of `counters`."""
    ordered = sorted(counters.per_kernel, key=lambda kernel: kernel.duration_s or 0.0, reverse=True)
    total_s = sum(kernel.duration_s or 0.0 for kernel in ordered)
    return KernelPlaces(
        tuple(_place(rank, kernel, total_s) for rank, kernel in enumerate(ordered, 1))
    )


def _place(rank: int, kernel: KernelTotals, total_s: float) -> KernelPlace:
    at_least = kernel.flops is None
    flops = (kernel.flops_at_least if at_least else kernel.flops) or None
    counts = {level: getattr(kernel, field) for level, field in _BYTES.items()}
    return KernelPlace(
        rank=rank,
        totals=kernel,
        share=ratio(kernel.duration_s, total_s),
        flops_per_s=ratio(flops, kernel.duration_s),
        intensities={level: flops / count for level, count in counts.items() if flops and count},
        at_least=at_least,
    )
