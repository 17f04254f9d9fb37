"""What was measured: the frozen records that are the whole interface to everything after.

Raw values are stored and statistics derived (`bench.records.metrics`). Times are
seconds, sizes bytes, rates per second; a multiply-add is 2 FLOP, and a MAC count is called MAC.
Instants named `*_clock_s` are readings of `time.perf_counter`, whose zero every process of one boot
shares.

Each name is imported when it is first used: a reader of counters needs three of these modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

#: Where a name is looked for, in this order.
_MODULES = ("base", "counters", "complexity", "environment", "profile", "measurement", "trace")

if TYPE_CHECKING:
    from bench.config.resolved import Backend as Backend
    from bench.config.resolved import MathMode as MathMode
    from bench.config.resolved import ResolvedConfig as ResolvedConfig
    from bench.records.base import *
    from bench.records.complexity import *
    from bench.records.counters import *
    from bench.records.environment import *
    from bench.records.measurement import *
    from bench.records.profile import *
    from bench.records.trace import *
else:

    def __getattr__(name: str) -> object:
        for module in _MODULES:
            names = vars(import_module(f"{__name__}.{module}"))
            if name in names:
                return names[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
