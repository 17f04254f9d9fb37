"""What holds a training step back: the rule, on plain numbers.

A step of measured time t is compared with what its roof asks for:

- arithmetic: FLOP / peak FLOP/s, which no step can undercut;
- traffic: bytes / peak B/s. Counted bytes make it one number; without counters it is an interval:
  at least the fused bytes, at most the eager bytes. The device cannot have moved bytes for longer
  than it was at work, so the upper end is cut at t, or at the device's busy time where that is
  known;
- input: the host's time inside the loader. It can only cost what the device did not use, so it
  counts at most as t less the larger of the arithmetic and the fused traffic (or as the device's
  idle time where that is known). What neither roof nor input explains is other loss.

The first line that holds gives the bound:

1. input: the loss to input is over 5 % of the step and no smaller than the other loss.
2. compute or memory: the larger of arithmetic and fused (or counted) traffic fills at least half
   of the step. Sure if the whole interval of traffic agrees, and if its lower end fits into the
   step.
3. memory, unsure: only traffic near its eager maximum fills half of the step; counters decide.
4. overhead: not even the eager bytes explain half: launches, small or slow kernels, the host.
   Unsure where nothing is known of waiting for data, as in results of other programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from analysis.roofs.roof import CEILING_MARGIN

Bound = Literal["compute", "memory", "input", "overhead"]

#: Below this share of the step, waiting for data is not worth acting on before anything else.
INPUT_SHARE = 0.05
#: A roof names the bound when it explains the larger part of the step.
ROOF_SHARE = 0.5
#: A boundary is met if it is missed by rounding alone.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step: measured, waiting for data, and what the roof asks for."""

    measured_s: float
    data_wait_s: float | None  # None where it is not known
    compute_s: float
    memory_min_s: float  # fused bytes
    memory_max_s: float  # eager bytes
    # Of a profile. NVML's utilisation is not it: one kernel makes a whole sample count as busy.
    device_busy_s: float | None = None
    counted: bool = False  # both ends are the bytes that counters saw

    @property
    def traffic(self) -> str:
        """What the traffic's lower end is called."""
        return "counted memory traffic" if self.counted else "fused memory traffic"


@dataclass(frozen=True)
class BoundDecision:
    """A bound, whether the whole interval of traffic agrees on it, and why, with numbers."""

    bound: Bound
    sure: bool
    because: str


def decide_bound(times: StepTimes) -> BoundDecision:
    """Return the bound of a step by the rule at the top of this module."""
    step_s = times.measured_s
    at_work_s = step_s if times.device_busy_s is None else min(times.device_busy_s, step_s)
    least_s = max(times.compute_s, times.memory_min_s)
    most_traffic_s = max(times.memory_min_s, min(times.memory_max_s, at_work_s))
    unused_s = step_s - (least_s if times.device_busy_s is None else at_work_s)
    input_s = min(times.data_wait_s or 0.0, max(unused_s, 0.0))
    other_s = max(step_s - least_s - input_s, 0.0)

    if input_s > INPUT_SHARE * step_s and _reaches(input_s, other_s):
        because = f"waiting for data costs {_share(input_s, step_s)} of the step"
        return BoundDecision("input", True, because)
    if _reaches(least_s, ROOF_SHARE * step_s):
        return _decide_by_roof(times, step_s, most_traffic_s)
    if _reaches(most_traffic_s, ROOF_SHARE * step_s):
        because = (
            f"memory traffic is {_share(times.memory_min_s, step_s)} of the step if fused, "
            f"{_share(most_traffic_s, step_s)} if every operation goes through memory"
        )
        return BoundDecision("memory", False, because)
    at_most = "" if times.counted else "at most "
    because = (
        f"arithmetic ({_share(times.compute_s, step_s)}) and memory traffic "
        f"({at_most}{_share(most_traffic_s, step_s)}) do not explain half of the step"
    )
    if times.data_wait_s is None:
        return BoundDecision("overhead", False, f"{because}; waiting for data is not known")
    return BoundDecision("overhead", True, because)


def _decide_by_roof(times: StepTimes, step_s: float, most_traffic_s: float) -> BoundDecision:
    if times.memory_min_s > times.compute_s:
        because = f"{times.traffic} alone takes {_share(times.memory_min_s, step_s)} of the step"
        possible = times.memory_min_s <= CEILING_MARGIN * step_s
        if not possible:
            other = "counters and time are not of the same step"
            because += f", so {other if times.counted else 'a cache must have kept some of it'}"
        return BoundDecision("memory", possible, because)
    because = f"arithmetic at the roof takes {_share(times.compute_s, step_s)} of the step"
    sure = _reaches(times.compute_s, most_traffic_s)
    if not sure:
        because += f", unfused memory traffic would take {_share(most_traffic_s, step_s)}"
    return BoundDecision("compute", sure, because)


def _reaches(value: float, limit: float) -> bool:
    return value >= limit * (1 - _ROUNDING)


def _share(part_s: float, whole_s: float) -> str:
    return f"{100 * part_s / whole_s:.0f} %"
