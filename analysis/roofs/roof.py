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
    """Two limits of one device in one math mode, both positive."""

    peak_flops_per_s: float
    peak_bytes_per_s: float

    def of_several(self, devices: int) -> Roof:
        """Return the roof of so many such devices together."""
        return Roof(self.peak_flops_per_s * devices, self.peak_bytes_per_s * devices)

    @property
    def ridge_flop_per_byte(self) -> float:
        """Intensity from which on the arithmetic, not the memory, is the limit."""
        return self.peak_flops_per_s / self.peak_bytes_per_s

    def attainable_flops_per_s(self, intensity_flop_per_byte: float) -> float:
        """Return the most FLOP/s that a step of this intensity can reach."""
        return min(self.peak_flops_per_s, intensity_flop_per_byte * self.peak_bytes_per_s)
