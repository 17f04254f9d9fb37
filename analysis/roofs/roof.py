"""The roofline's arithmetic: what a device can do at an arithmetic intensity.

Williams, Waterman, Patterson: Roofline, Communications of the ACM 52(4), 2009:
attainable = min(peak FLOP/s, intensity x peak B/s).
"""

from __future__ import annotations

from dataclasses import dataclass

#: A ceiling is itself a measurement, good to a few percent: only what passes it by more counts.
CEILING_MARGIN = 1.03


@dataclass(frozen=True)
class Roof:
    """Two limits of one device in one math mode, both positive.

    What a device may exceed them by without a fault: `burst_flops_per_s`, for as long as its power
    allows, and `one_way_bytes_per_s`, by a kernel that only reads or only writes. 0 where unknown.
    """

    peak_flops_per_s: float
    peak_bytes_per_s: float
    burst_flops_per_s: float = 0.0
    one_way_bytes_per_s: float = 0.0

    @property
    def most_flops_per_s(self) -> float:
        """The most that arithmetic can reach, for however short a time."""
        return max(self.peak_flops_per_s, self.burst_flops_per_s)

    @property
    def most_bytes_per_s(self) -> float:
        """The most that a single kernel can move."""
        return max(self.peak_bytes_per_s, self.one_way_bytes_per_s)

    def of_several(self, devices: int) -> Roof:
        """Return the roof of so many such devices together."""
        return Roof(
            self.peak_flops_per_s * devices,
            self.peak_bytes_per_s * devices,
            self.burst_flops_per_s * devices,
            self.one_way_bytes_per_s * devices,
        )

    @property
    def ridge_flop_per_byte(self) -> float:
        """Intensity from which on the arithmetic, not the memory, is the limit."""
        return self.peak_flops_per_s / self.peak_bytes_per_s

    def attainable_flops_per_s(self, intensity_flop_per_byte: float) -> float:
        """Return the most FLOP/s that a step of this intensity can reach."""
        return min(self.peak_flops_per_s, intensity_flop_per_byte * self.peak_bytes_per_s)
