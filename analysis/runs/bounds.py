"""What holds a training step back, and what no step can do: the rules, on plain numbers.

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
4. what the account of a profiled step says (`analysis.account`): the largest of slow kernels,
   unfused traffic (memory), an idle device, the host between ops, and communication. Not known
   without an account, or where it is disturbed or does not explain more of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from analysis.account import Kind, StepAccount
from analysis.roofs import CEILING_MARGIN, Roof
from bench.records import Finding
from bench.records.metrics import StepCost

Bound = Literal[
    "compute", "memory", "input", "slow kernels", "idle", "host", "communication", "not known"
]  # fmt: skip
#: What a kind of parts of an account is as a bound, and in words.
_BOUND_OF: Mapping[Kind, tuple[Bound, str]] = {
    "ops": ("slow kernels", "ops below their roof take"),
    "traffic": ("memory", "unfused memory traffic takes"),
    "idle": ("idle", "the device idles for"),
    "host": ("host", "the host between ops takes"),
    "communication": ("communication", "communication that nothing hides takes"),
    "unknown work": ("not known", "ops of unknown work take"),
    "not explained": ("not known", "nothing explains"),
}
#: A bound, whether the whole interval of traffic agrees on it, and why, with numbers.
Decision: TypeAlias = tuple[Bound, bool, str]

#: Below this share of the step, waiting for data is not worth acting on before anything else.
INPUT_SHARE = 0.05
#: A roof names the bound when it explains the larger part of the step.
ROOF_SHARE = 0.5
#: A boundary is met if it is missed by rounding alone.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step (however many batches): measured, waiting, and what the roof asks for."""

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


def step_times(
    cost: StepCost,
    roof: Roof,
    step_s: float,
    data_wait_s: float | None = None,
    counted_bytes: float | None = None,
    device_busy_s: float | None = None,
) -> StepTimes:
    """Return the measured times beside those that `roof` asks for.

    Counted bytes, where there are any, take the place of the modelled interval.
    """
    least, most = (
        each if counted_bytes is None else counted_bytes
        for each in (cost.fused_bytes, cost.eager_bytes)
    )
    return StepTimes(
        measured_s=step_s,
        data_wait_s=data_wait_s,
        compute_s=cost.computed_share * cost.flops / roof.peak_flops_per_s,
        memory_min_s=least / roof.peak_bytes_per_s,
        memory_max_s=most / roof.peak_bytes_per_s,
        device_busy_s=device_busy_s,
        counted=counted_bytes is not None,
    )


def decide_bound(times: StepTimes, account: StepAccount | None = None) -> Decision:
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
        return "input", True, because
    if _reaches(least_s, ROOF_SHARE * step_s):
        return _decide_by_roof(times, step_s, most_traffic_s)
    if _reaches(most_traffic_s, ROOF_SHARE * step_s):
        because = (
            f"memory traffic is {_share(times.memory_min_s, step_s)} of the step if fused, "
            f"{_share(most_traffic_s, step_s)} if every operation goes through memory"
        )
        return "memory", False, because
    at_most = "" if times.counted else "at most "
    because = (
        f"arithmetic ({_share(times.compute_s, step_s)}) and memory traffic "
        f"({at_most}{_share(most_traffic_s, step_s)}) do not explain half of the step"
    )
    if times.data_wait_s is None:
        return "not known", True, f"{because}; waiting for data is not known"
    if account is None or account.is_disturbed:
        why = "the profiled step was disturbed" if account else "no step was profiled"
        return "not known", True, f"{because}, and {why}"
    kind = max(_BOUND_OF, key=account.seconds_of)
    bound, words = _BOUND_OF[kind]
    share = _share(account.seconds_of(kind), account.step_time_s)
    return bound, True, f"{because}; {words} {share} of it"


def _decide_by_roof(times: StepTimes, step_s: float, most_traffic_s: float) -> Decision:
    if times.memory_min_s > times.compute_s:
        because = f"{times.traffic} alone takes {_share(times.memory_min_s, step_s)} of the step"
        possible = times.memory_min_s <= CEILING_MARGIN * step_s
        if not possible:
            other = "counters and time are not of the same step"
            because += f", so {other if times.counted else 'a cache must have kept some of it'}"
        return "memory", possible, because
    because = f"arithmetic at the roof takes {_share(times.compute_s, step_s)} of the step"
    sure = _reaches(times.compute_s, most_traffic_s)
    if not sure:
        because += f", unfused memory traffic would take {_share(most_traffic_s, step_s)}"
    return "compute", sure, because


def _reaches(value: float, limit: float) -> bool:
    return value >= limit * (1 - _ROUNDING)


def _share(part_s: float, whole_s: float) -> str:
    return f"{100 * part_s / whole_s:.0f} %"


def check_possible(
    cost: StepCost,
    times: StepTimes,
    roof: Roof,
    executed_flops: float | None = None,
    *,
    what: str = "the run",
) -> Iterator[Finding]:
    """Yield findings for a step that outruns its roof by more than 3 %.

    Arithmetic is what was executed, where counters say it: Winograd's needs less than the
    algorithm. Else it is what the kernels cannot skip. A step shorter than a burst may reach the
    burst's rate. Against the memory roof only the compulsory bytes are impossible: a cache can keep
    small tensors out of DRAM. Outrunning the fused bytes is suspect. `what` may be wrong, where it
    is not the work or the roof.
    """
    flops = cost.computed_share * cost.flops if executed_flops is None else executed_flops
    compute_s = flops / roof.most_flops_per_s
    compulsory_s = cost.compulsory_bytes / roof.peak_bytes_per_s
    most_s = CEILING_MARGIN * times.measured_s
    for which, least_s in (("compute", compute_s), ("memory", compulsory_s)):
        if least_s > most_s:
            percent = 100 * least_s / times.measured_s
            yield Finding.of(f"above-{which}-roof", percent=percent, ceiling=which, what=what)
    if compulsory_s <= most_s < times.memory_min_s:
        percent = 100 * times.memory_min_s / times.measured_s
        yield Finding.of("below-fused-traffic", percent=percent, what=what)
