"""An interrupt that ends all ranks before the same step, so that none waits in one for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Store(Protocol):
    """What is asked of torch's key-value store."""

    def set(self, key: str, value: str) -> None:
        """Keep `value`."""

    def get(self, key: str) -> bytes:
        """Return what is kept."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of `keys` are kept, answered at once."""


class CommonStop:
    """Ends every rank with `KeyboardInterrupt` after the same number of steps.

    A rank that ended within a step would leave the others in a collective that never ends. So a
    signal only calls `request`, and until then `before_step` only reads a flag.

    Once asked, a rank waits for its device before each step and notes in the store that it was
    asked. From then on it can begin a step that rank 0 has not begun, but not end it. When all have
    been asked, rank 0, about to begin step k, writes that k is the last: no rank can have ended it
    yet, and each rank reads that number from the store when it has ended it.
    """

    def __init__(self, rank: int, ranks: int, store: Store, wait: Callable[[], None]) -> None:
        self._rank = rank
        self._others = [f"asked/{other}" for other in range(1, ranks)]
        self._store = store
        self._wait = wait
        self._requested = False
        self._reported = False
        self._begun = 0
        self._last: int | None = None

    def request(self) -> None:
        """Note that this rank was asked to end."""
        self._requested = True

    def before_step(self) -> None:
        """Count a step that is about to begin. Raises `KeyboardInterrupt` after the last one."""
        if self._requested:
            self._agree()
        self._begun += 1

    def _agree(self) -> None:
        self._wait()
        if self._last is None:
            self._last = self._decide() if self._rank == 0 else self._ask_rank_0()
        if self._last is not None and self._begun >= self._last:
            raise KeyboardInterrupt

    def _decide(self) -> int | None:
        if not self._store.check(self._others):
            return None
        self._store.set("last", str(self._begun + 1))
        return self._begun + 1

    def _ask_rank_0(self) -> int | None:
        if not self._reported:
            self._store.set(f"asked/{self._rank}", "")
            self._reported = True
        return int(self._store.get("last")) if self._store.check(["last"]) else None
