"""Compulsory traffic: what no schedule of a step's products can avoid, given a cache.

Only convolutions, products and attention count, and the optimizer as one op: these n ops run once
each, in order, as kernels of their own. Everything between them may be fused, computed again or
kept on the chip for nothing; batched products too, because a compiler can make one kernel of the
two in an attention. What an op reads is therefore traced back, along the widest way through the
passes between, to the *root* it is computed from: the result of an earlier op, a weight, the
momentum or the images. The narrowest tensor of that way, the *width*, is the least that must come
through memory or cache between the two, in whatever form it is kept; ways from different roots
share no tensor.

Cut the sequence of ops into intervals. When an interval begins, at most `cache_bytes` of what it
needs from before are in the cache, so the rest is read from memory; when it ends, at most
`cache_bytes` of what it made for later are in the cache alone, so the rest was written. With reads
in(i, j) and writes out(i, j) of the ops i to j - 1,

    traffic >= sum over intervals of max(0, in - cache_bytes) + max(0, out - cache_bytes)

holds for every way to cut and for any replacement policy (the argument of Hong and Kung, "I/O
complexity: the red-blue pebble game", 1981). The best cut is found by dynamic programming. With no
cache the intervals are single ops; with a large one, the whole step. The step is one of many alike:
weights and momentum were written by the step before, and count as written by this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bench.cost.passes import Access, Pass, Role

_FUSABLE_PRODUCTS = frozenset({"bmm", "baddbmm"})

_BEFORE = -1  # the op that made what the step finds: weights, momentum, images


@dataclass
class _Root:
    """A result of op `birth`; `uses` are the ops that need it, with the bytes they need."""

    birth: int
    uses: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Way:
    """The widest way from a root to a value."""

    root: _Root
    width_bytes: int


class _Ops:
    """The ops of a step in order, and the roots that they need and make."""

    def __init__(self) -> None:
        self.roots: list[_Root] = []
        self.count = 0
        self._ways: dict[int, _Way | None] = {}

    def pass_between(self, item: Pass) -> None:
        """Follow the widest way through a pass that is not an op; later roots win a draw."""
        ways = [way for access in item.reads if (way := self._way(access))]
        best = max(ways, key=lambda way: (way.width_bytes, way.root.birth), default=None)
        for access in item.writes:
            self._ways[access.value] = best and _Way(
                best.root, min(best.width_bytes, access.size_bytes)
            )

    def op(self, reads: Iterable[Access], writes: Iterable[Access]) -> None:
        """Note what one op needs, and its results as new roots."""
        for access in reads:
            if way := self._way(access):
                needed = way.root.uses.get(self.count, 0)
                way.root.uses[self.count] = max(needed, way.width_bytes)
        for access in writes:
            self._ways[access.value] = _Way(self._root(self.count), access.size_bytes)
        self.count += 1

    def outlive(self, values: Iterable[int]) -> None:
        """Note, after the last op, which values the next step needs."""
        for value in values:
            if (way := self._ways.get(value)) is not None:
                way.root.uses[self.count] = way.width_bytes

    def _way(self, access: Access) -> _Way | None:
        if access.value not in self._ways:  # nothing in this step made it
            self._ways[access.value] = _Way(self._root(_BEFORE), access.size_bytes)
        way = self._ways[access.value]
        return way and _Way(way.root, min(way.width_bytes, access.size_bytes))

    def _root(self, birth: int) -> _Root:
        self.roots.append(_Root(birth))
        return self.roots[-1]


def compulsory_bytes(passes: Sequence[Pass], lasting: frozenset[int], cache_bytes: int) -> int:
    """Return the floor of a step's traffic with a cache of `cache_bytes`, in bytes.

    `lasting` are the values that outlive the step.
    """
    ops = _ops(passes, lasting)
    reads, writes = _interval_bytes(ops)
    gain = np.maximum(reads - cache_bytes, 0) + np.maximum(writes - cache_bytes, 0)
    best = np.zeros(ops.count + 1, dtype=np.int64)
    for end in range(1, ops.count + 1):
        best[end] = (best[:end] + gain[:end, end]).max()
    return int(best[-1])


def _ops(passes: Sequence[Pass], lasting: frozenset[int]) -> _Ops:
    ops = _Ops()
    for item in passes:
        if item.phase == "optimizer":
            continue
        if item.role is Role.CONTRACTION and item.op not in _FUSABLE_PRODUCTS:
            ops.op(item.reads, item.writes)
        else:
            ops.pass_between(item)
    update = [item for item in passes if item.phase == "optimizer"]
    made = {access.value for item in update for access in item.writes}
    ops.op(
        [access for item in update for access in item.reads if access.value not in made],
        [access for item in update for access in item.writes if access.value in lasting],
    )
    ops.outlive(lasting)
    return ops


def _interval_bytes(ops: _Ops) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return in and out, indexed [i, j] for the interval of the ops i to j - 1.

    A use at op u whose root was last used, or made, at op p is read by the intervals with
    p < i <= u < j. A result of op b is written by those with i <= b < j, as wide as the widest of
    its uses from j on.
    """
    shape = (ops.count + 2, ops.count + 2)
    reads, writes = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for root in ops.roots:
        uses = list(root.uses.items())
        previous_uses = [root.birth, *root.uses]
        widest = 0
        for (use, width_bytes), previous in zip(
            reversed(uses), reversed(previous_uses[:-1]), strict=True
        ):
            widest = max(widest, width_bytes)
            if use < ops.count:
                _add_to_block(reads, (previous + 1, use), (use + 1, ops.count), width_bytes)
            # Nothing in the step writes what was there before it: a block without rows.
            _add_to_block(writes, (0, root.birth), (previous + 1, use), widest)
    return reads.cumsum(axis=0).cumsum(axis=1), writes.cumsum(axis=0).cumsum(axis=1)


def _add_to_block(
    differences: npt.NDArray[np.int64],
    rows: tuple[int, int],
    columns: tuple[int, int],
    amount: int,
) -> None:
    """Add `amount` to a block, ends included, of a matrix kept as differences along both axes."""
    for row, row_sign in ((rows[0], 1), (rows[1] + 1, -1)):
        for column, column_sign in ((columns[0], 1), (columns[1] + 1, -1)):
            differences[row, column] += row_sign * column_sign * amount
