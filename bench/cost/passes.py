"""What a step is made of: passes over memory, and the contents of storages they read and write."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

import torch
from torch.multiprocessing.reductions import StorageWeakRef

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


@dataclass(frozen=True)
class Pass:
    """One sweep over memory: most ops are one, a batch norm or a convolution's backward several.

    `recomputed_macs` are those of what the backward pass computes again, which has no `macs`.
    `causal_skipped_macs` are the part of `macs` that a causal mask leaves out.
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


class Values:
    """Numbers the contents of storages: each write to a storage makes a new value.

    Storages are held by weak references: these keep an address from becoming another storage's,
    and free its memory all the same. Contents of `torch.empty` were written by no op: reading them
    moves nothing.
    """

    def __init__(self) -> None:
        self.sizes_bytes: list[int] = []
        self._current: dict[int, int | None] = {}
        self._seen: dict[int, StorageWeakRef] = {}
        self._made: set[int] = set()

    def key(self, tensor: torch.Tensor) -> int:
        """Return the identity of the storage of `tensor`, which views share."""
        storage = tensor.untyped_storage()
        address: int = storage._cdata
        if address not in self._current:
            self._seen[address] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            self._current[address] = self._number(storage)
        return address

    def declare_empty(self, tensor: torch.Tensor) -> None:
        """Note that `tensor` is new, and that nothing was written to it yet."""
        key = self.key(tensor)
        self._made.add(key)
        self._current[key] = None

    def read(self, tensor: torch.Tensor) -> Access | None:
        """Return the access of a pass that reads `tensor`; None if nothing was written there."""
        value = self._current[self.key(tensor)]
        return None if value is None else self._access(value, tensor)

    def write(self, tensor: torch.Tensor) -> Access:
        """Return the access of a pass that writes `tensor`, which is a new value from now on."""
        key = self.key(tensor)
        value = self._current[key] = self._number(tensor.untyped_storage())
        return self._access(value, tensor)

    def living(self, *, made: bool) -> set[int]:
        """Return what the storages in use hold, of those that an op has made, or of the others."""
        return {
            value
            for key, value in self._current.items()
            if value is not None and (key in self._made) is made and self._is_in_use(key)
        }

    def covers(self, tensor: torch.Tensor) -> bool:
        """Return whether `tensor` is all of its storage."""
        return _distinct_bytes(tensor) >= tensor.untyped_storage().nbytes()

    def _is_in_use(self, key: int) -> bool:
        return not self._seen[key].expired()  # type: ignore[no-untyped-call]

    def _number(self, storage: torch.UntypedStorage) -> int:
        self.sizes_bytes.append(storage.nbytes())
        return len(self.sizes_bytes) - 1

    def _access(self, value: int, tensor: torch.Tensor) -> Access:
        view = (tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))
        return Access(value, view, min(_distinct_bytes(tensor), self.sizes_bytes[value]))


def _distinct_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the elements of `tensor`; an expanded dimension repeats the same ones."""
    size_bytes = tensor.element_size()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size_bytes *= length if stride != 0 else min(length, 1)
    return size_bytes
