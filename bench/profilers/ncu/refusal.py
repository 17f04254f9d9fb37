"""Why ncu cannot count, and what to do about it on this very machine."""

from __future__ import annotations

from bench.errors import UserError


class RefusalError(UserError):
    """ncu cannot count here: `what` is wrong, and `remedy` is what to do, word for word."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}")
        self.what = what
        self.remedy = remedy
