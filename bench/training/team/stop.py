"""An interrupt that ends all ranks before the same step, so that none is left waiting in one."""

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
        """Whether all of `keys` are kept, told at once."""


class CommonStop:
    """Ends every rank with `KeyboardInterrupt` after the same number of steps.

    A rank that left its step at once would leave the others in a collective that never ends. So a
    signal only calls `ask`, and `before_step` costs one look at a flag until then.

    Once asked, a rank waits for its device before each step and tells that it was asked. From then
    on it can begin a step that rank 0 has not begun, but not end it. When all have been asked, rank
    0, about to begin step k, says that k is the last: nobody can have ended it, and whoever has
    ended it later finds that word in the store.
    """

    def __init__(self, rank: int, ranks: int, store: Store, wait: Callable[[], None]) -> None:
        self._rank = rank
        self._others = [f"asked/{other}" for other in range(1, ranks)]
        self._store = store
        self._wait = wait
        self._asked = False
        self._told = False
        self._begun = 0
        self._last: int | None = None

    def ask(self) -> None:
        """Note that this rank shall end."""
        self._asked = True

    def before_step(self) -> None:
        """Count a step that is about to begin. Raises `KeyboardInterrupt` after the last one."""
        if self._asked:
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
        if not self._told:
            self._store.set(f"asked/{self._rank}", "")
            self._told = True
        return int(self._store.get("last")) if self._store.check(["last"]) else None
