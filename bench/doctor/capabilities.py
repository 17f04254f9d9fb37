"""What Linux allows this process beyond its user's rights."""

from __future__ import annotations

from pathlib import Path

from bench.environment.probes import ROOT, UnknownFactError, text_of

#: Bit numbers of capabilities(7).
_BITS = {"CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38}


def may_profile(root: Path = ROOT) -> bool:
    """Whether this process may read performance counters whatever the system's default is."""
    try:
        status = text_of(root / "proc/self/status")
    except UnknownFactError:
        return False
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
            return any(effective >> bit & 1 for bit in _BITS.values())
    return False
