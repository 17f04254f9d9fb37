"""A step's passes over memory, and what they move: eager, fused and compulsory bytes.

Fused: what a perfect fusing compiler would move, kernel by kernel, without a cache.

The passes of a step are put together into kernels by these rules:

- A kernel has at most one convolution, product, attention or opaque op.
- Pointwise passes join the kernel that makes their input (an epilogue), and a kernel of pointwise
  passes alone becomes the prologue of the first big op that reads its result.
- A reduction joins the kernel that makes its input, but its result is there only when that kernel
  has ended: whatever reads it runs in a later one. So a batch norm's statistics cost no pass of
  their own, and its input is still written once and read once more.
- Kernels do not cross the borders of forward, backward and optimizer.

Each kernel reads once what comes from outside it and writes once what is needed outside it, so what
only fusable ops need is never moved; what is saved for the backward pass is. This is a schedule
that could run, and never moves more than the ops one by one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from itertools import groupby

from bench.records import Phase


class Role(Enum):
    """What decides whether neighbouring passes can become one kernel."""

    CONTRACTION = "convolution, matrix product or attention"
    OPAQUE = "anything else that runs as it is, such as pooling or an unknown op"
    POINTWISE = "output elements, or rows, need their own inputs only; moving data counts too"
    REDUCTION = "as pointwise, but the result is there only when the whole pass has ended"


@dataclass(frozen=True)
class Access:
    """The part of a value that a pass reads or writes. `value` numbers a storage's contents."""

    value: int
    view: Hashable
    size_bytes: int
    elements: int = 0


@dataclass(frozen=True)
class Pass:
    """One sweep over memory: most ops are one, a batch norm or a convolution's backward several.

    `recomputed_macs` are those of what the backward pass computes again, which has no `macs`.
    `causal_skipped_macs` are the part of `macs` that a kernel may leave out under a causal mask,
    `fp32_macs` that of 32-bit numbers. `hidden` is the share of `macs`, or of what a small op
    masks, that a mask hides; None where it is not known.
    """

    op: str
    phase: Phase
    role: Role
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    macs: int = 0
    elementwise_flops: int = 0
    recomputed_macs: int = 0
    causal_skipped_macs: int = 0
    fp32_macs: int = 0
    hidden: Fraction | None = Fraction(0)


class Traffic:
    """Bytes moved: each view of a value once, and no value beyond its own size."""

    def __init__(self) -> None:
        self._views: dict[int, set[Hashable]] = {}
        self._moved_bytes: dict[int, int] = {}

    def add(self, accesses: Iterable[Access], sizes_bytes: Sequence[int]) -> int:
        """Return the bytes that `accesses` add; `sizes_bytes` are those of all values."""
        added = 0
        for access in accesses:
            views = self._views.setdefault(access.value, set())
            if access.view in views:
                continue
            views.add(access.view)
            before = self._moved_bytes.get(access.value, 0)
            after = min(before + access.size_bytes, sizes_bytes[access.value])
            self._moved_bytes[access.value] = after
            added += after - before
        return added


def eager_bytes(item: Pass, sizes_bytes: Sequence[int]) -> int:
    """Return what one pass reads and writes by itself; `sizes_bytes` are those of all values."""
    return Traffic().add(item.reads, sizes_bytes) + Traffic().add(item.writes, sizes_bytes)


def compulsory_bytes(
    passes: Sequence[Pass], sizes_bytes: Sequence[int], lasting: frozenset[int], cache_bytes: int
) -> int:
    """Return the floor of a step's traffic with a cache of `cache_bytes`, in bytes.

    What the step reads and did not make (batch, weights, momentum) comes from memory, but for what
    the cache held when it began. Of what it leaves, the values `lasting`, the cache can keep as
    much.
    """
    made = {access.value for item in passes for access in item.writes}
    found = (access for item in passes for access in item.reads if access.value not in made)
    left = (access for item in passes for access in item.writes if access.value in lasting)
    return sum(max(0, Traffic().add(each, sizes_bytes) - cache_bytes) for each in (found, left))


#: Passes that are a kernel of their own.
UNFUSABLE = frozenset({Role.CONTRACTION, Role.OPAQUE})


@dataclass(eq=False)
class Kernel:
    """Passes that run as one; `earliest` is the first position that its inputs allow."""

    has_big_op: bool = False
    earliest: int = 0
    reads: Traffic = field(default_factory=Traffic)
    writes: Traffic = field(default_factory=Traffic)


class _Schedule:
    """Kernels in the order they run: every one needs results of earlier ones only."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self._merged_into: list[int] = []
        self._maker: dict[int, int] = {}  # value -> kernel
        self._late: set[int] = set()  # values that are there only when their kernel has ended

    def add(self, item: Pass) -> int:
        """Return the kernel that `item` becomes part of."""
        made = [access.value for access in item.reads if access.value in self._maker]
        is_big = item.role in UNFUSABLE
        position = self._join(made, is_big=is_big)
        kernel = self.kernels[position]
        kernel.has_big_op |= is_big
        for value in made:
            if (place := self._place(value)) != position:
                kernel.earliest = max(kernel.earliest, place + (value in self._late))
        for access in item.writes:
            self._maker[access.value] = position
            if item.role is Role.REDUCTION:
                self._late.add(access.value)
        return position

    def settled(self, position: int) -> int:
        """Return where the kernel of `position` is after all merges."""
        while self._merged_into[position] != position:
            position = self._merged_into[position]
        return position

    def _place(self, value: int) -> int:
        return self.settled(self._maker[value])

    def _join(self, made: list[int], *, is_big: bool) -> int:
        places = sorted({self._place(value) for value in made})
        if not places:
            return self._open()
        late = {self._place(value) for value in made if value in self._late}
        last = self._pull_back(places, late, is_big=is_big)
        must_wait = last in map(self.settled, late)
        return self._open() if must_wait or (is_big and self.kernels[last].has_big_op) else last

    def _pull_back(self, places: list[int], late: set[int], *, is_big: bool) -> int:
        """Merge the last of the kernels that feed a pass into the ones before, where order allows.

        So a cast of weights, which waits for nothing, does not keep a convolution from joining the
        kernel of its other input. `late` are kernels that the pass must wait for: it joins none of
        them, so nothing is merged into them.
        """
        last = places.pop()
        while places and places[-1] not in late:
            target, source = self.kernels[places[-1]], self.kernels[last]
            if source.earliest > places[-1] or (
                target.has_big_op and (is_big or source.has_big_op)
            ):
                break
            target.has_big_op |= source.has_big_op
            target.earliest = max(target.earliest, source.earliest)
            self._merged_into[last] = places[-1]
            last = places.pop()
        return last

    def _open(self) -> int:
        self._merged_into.append(len(self.kernels))
        self.kernels.append(Kernel())
        return len(self.kernels) - 1


def schedule(passes: Sequence[Pass]) -> list[tuple[Pass, Kernel]]:
    """Return every pass with its kernel, in the order of the passes; phases share no kernel."""
    placed: list[tuple[Pass, Kernel]] = []
    for _, group in groupby(passes, key=lambda item: item.phase):
        items, one_phase = list(group), _Schedule()
        positions = [one_phase.add(item) for item in items]
        kernels = [one_phase.kernels[one_phase.settled(position)] for position in positions]
        placed += zip(items, kernels, strict=True)
    return placed


def fused_bytes(
    passes: Sequence[Pass], sizes_bytes: Sequence[int], lasting: frozenset[int]
) -> list[int]:
    """Return what each pass adds to the fused traffic of a step, in bytes.

    `lasting` are the values that outlive the step (weights, momentum). What a kernel reads is put
    down to its first pass that reads it, what it writes to the pass that makes it.
    """
    placed = schedule(passes)
    makers = {access.value: kernel for item, kernel in placed for access in item.writes}
    needed = set(lasting) | {
        access.value
        for item, kernel in placed
        for access in item.reads
        if makers.get(access.value) is not kernel
    }
    shares = []
    for item, kernel in placed:
        reads = [access for access in item.reads if makers.get(access.value) is not kernel]
        writes = [access for access in item.writes if access.value in needed]
        shares.append(kernel.reads.add(reads, sizes_bytes) + kernel.writes.add(writes, sizes_bytes))
    return shares
