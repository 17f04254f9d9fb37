"""What works on this machine, what does not, and the remedy.

Importing this imports no torch; the checks themselves are in `bench.doctor.suite`.
"""

from bench.doctor.check import Check, can_measure

__all__ = ["Check", "can_measure"]
