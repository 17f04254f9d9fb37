"""What is to be measured of one level of caches, or why it cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.roofs.probe import Probe

LevelName = Literal["L1", "L2", "L3"]


@dataclass(frozen=True)
class Level:
    """One level and the probe that reads what fits into it.

    `size_bytes` is that of all instances together, None with `why_no_size`; `probe` is None with
    `why_no_probe`. `only_control`: the reading is bound by its own arithmetic there, so that its
    rate is no roof, but shows that slower levels are bound by the cache.
    """

    name: LevelName
    size_bytes: int | None
    probe: Probe | None
    why_no_size: str = ""
    why_no_probe: str = ""
    only_control: bool = False
