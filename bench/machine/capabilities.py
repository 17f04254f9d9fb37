"""What Linux allows this process beyond its user's rights."""

from __future__ import annotations

from pathlib import Path

from bench.machine.probes import ROOT, UnknownFactError, text_of

#: Bit numbers of capabilities(7).
_BITS = {"CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38}


def profiling_capabilities(root: Path = ROOT) -> frozenset[str]:
    """Return which of CAP_SYS_ADMIN and CAP_PERFMON this process has; none where not told."""
    try:
        status = text_of(root / "proc/self/status")
    except UnknownFactError:
        return frozenset()
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
            return frozenset(name for name, bit in _BITS.items() if effective >> bit & 1)
    return frozenset()


def may_profile(root: Path = ROOT) -> bool:
    """Whether this process may read performance counters whatever the system's default is."""
    return bool(profiling_capabilities(root))
