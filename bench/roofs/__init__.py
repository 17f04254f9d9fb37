"""One device's roofs: what to probe on each backend, and the ceilings that follow.

All probes are tried, the slower are given up, the rest is repeated. Probes of every roof take
turns, so that heat, clocks and neighbours' loads fall on all alike.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import get_args

import psutil
import torch

from bench.errors import Unknown
from bench.records import AllReduce, Ceiling, CeilingSample, MathMode
from bench.records.journal import Clock, ignore
from bench.roofs.roof_probes import (
    MINIMUM_REPETITIONS,
    ONE_WAY,
    Convolution,
    Launch,
    Layout,
    Probe,
    Product,
    account_of,
    array_sizes,
    best_sample,
    convolution_probe,
    linear_probe,
    product_probe,
    set_arithmetic,
    stream_probes,
    sustained_rate,
)
from bench.training.devices import Device
from bench.training.team import DdpTeam

#: A probe whose best repetition is this far under the leader's is given up, after its second.
_GIVEN_UP_BELOW = 0.9


class ProbeGroup:
    """The probes of one roof; `notes` say why a probe gave no rate."""

    def __init__(self, title: str, probes: Iterable[Probe], *notes: str) -> None:
        self.title = title
        self.probes = list(probes)
        self.notes = list(notes)
        self.alone: CeilingSample | None = None

    @property
    def best_rate(self) -> float:
        """The fastest repetition of any probe; 0 before the first."""
        return max((rate for probe in self.probes for rate in probe.rates), default=0.0)

    @property
    def leader(self) -> Probe | None:
        """The live probe of the highest sustained rate."""
        measured = [probe for probe in self.probes if probe.launch and probe.rates]
        return max(measured, key=lambda probe: sustained_rate(probe.rates), default=None)

    def give_up_slower(self) -> None:
        """End the probes that two repetitions have shown to be far behind."""
        limit = _GIVEN_UP_BELOW * self.best_rate
        for probe in self.probes:
            if len(probe.rates) >= 2 and max(probe.rates) < limit:
                probe.give_up()

    def samples(self) -> list[CeilingSample]:
        """Every probe that was measured, with its raw rates; not what was repeated alone."""
        return [probe.sample("", probe.rates) for probe in self.probes if probe.rates]

    def rate_of(self, sample: CeilingSample | None) -> float | Unknown:
        """Return the roof that a sample gives, or why this group has none."""
        if sample is not None:
            return sustained_rate(sample.rates)
        why = "" if self.samples() else "; ".join(self.notes)
        return Unknown(why or "not measured on this backend")


def free_bytes(device: Device) -> int:
    """Return the bytes that can be allocated, what torch's own cache holds included."""
    if device.backend == "cuda":
        free, _ = torch.cuda.mem_get_info(device.torch_device)
        reserved = torch.cuda.memory_reserved(device.torch_device)
        return int(free + reserved - torch.cuda.memory_allocated(device.torch_device))
    if device.backend == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    available = int(psutil.virtual_memory().available)
    limit = device.info().memory_bytes  # a container's may be far below the machine's
    if limit is None:
        return available
    return max(0, min(available, limit - int(psutil.Process().memory_info().rss)))


#: A single launch longer than this, at the best rate reached so far, costs too many repetitions.
_LONGEST_LAUNCH_S = 0.25
_MOST_LAUNCHES = 2**16
#: Of what is repeated alone, the part that counts: clocks have followed the power limit by then.
_LAST_S = 1.0


@dataclass(frozen=True)
class ProbeSampler:
    """Gives the probes of all groups their turns on one device until the time is spent.

    `group_s` is the least time of a repetition.
    """

    device: Device
    clock: Clock
    group_s: float
    progress: Callable[[str], None]

    def sample(self, groups: Sequence[ProbeGroup], budget_s: float) -> None:
        """Fill `groups` with rates. The leaders' least repetitions may exceed `budget_s`."""
        deadline = self.clock() + budget_s
        for number in itertools.count(1):
            for group, probe in _in_turn(groups):
                # However short the time, each roof gets one probe to repeat.
                if self.clock() < deadline or (probe.waiting and not group.best_rate):
                    self._turn(group, probe)
            standing = [
                f"{group.title} {leader.rate_text(sustained_rate(leader.rates))}"
                for group in groups
                if (leader := group.leader)
            ]
            if self.clock() >= deadline or not standing:
                break
            self.progress(f"round {number}: {', '.join(standing)}")
        for group in groups:
            for probe in group.probes:
                if probe.waiting:
                    self._leave_out(group, probe, "the time was spent")
            while (leader := group.leader) and len(leader.rates) < MINIMUM_REPETITIONS:
                self._turn(group, leader)

    def sustain(self, group: ProbeGroup, seconds: float) -> None:
        """Repeat the group's leader alone for `seconds` and keep the rates of the last second.

        Among probes that take turns each has rested, or followed one that took less power.
        """
        leader = group.leader
        if leader is None or leader.launch is None:
            return
        set_arithmetic(leader.math_mode)
        begin_s, kept = self.clock(), list[tuple[float, float]]()
        while (now_s := self.clock()) < begin_s + seconds:
            kept.append((now_s, self._rate(leader, leader.launch)))
        last = (rate for at_s, rate in kept if at_s >= now_s - _LAST_S)
        group.alone = leader.sample(f", alone for {seconds:g} s", last)
        rate = sustained_rate(group.alone.rates)
        self.progress(f"{group.alone.probe}: {leader.rate_text(rate)}")

    def _turn(self, group: ProbeGroup, probe: Probe) -> None:
        try:
            if probe.waiting:
                self._start(group, probe)
            elif probe.launch is not None:
                set_arithmetic(probe.math_mode)
                probe.rates.append(self._rate(probe, probe.launch))
        except (RuntimeError, MemoryError) as error:  # out of memory, or not implemented there
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self._leave_out(group, probe, reason)
        group.give_up_slower()

    def _start(self, group: ProbeGroup, probe: Probe) -> None:
        """Warm the probe up, find how many launches make a repetition, and keep the first."""
        probe.waiting = False
        if group.best_rate and probe.work_per_launch > _LONGEST_LAUNCH_S * group.best_rate:
            self._leave_out(group, probe, f"one launch takes over {_LONGEST_LAUNCH_S} s")
            return
        if probe.operand_bytes > free_bytes(self.device) // 4:
            self._leave_out(group, probe, "its operands need over a quarter of free memory")
            return
        set_arithmetic(probe.math_mode)
        probe.launch = probe.prepare()
        rate = self._rate(probe, probe.launch)
        while probe.launches < _MOST_LAUNCHES:
            launch_s = probe.work_per_launch / rate
            if probe.launches * launch_s >= self.group_s / 2:
                break
            wanted = math.ceil(self.group_s / launch_s)
            probe.launches = min(max(wanted, 2 * probe.launches), _MOST_LAUNCHES)
            rate = self._rate(probe, probe.launch)
        probe.rates.append(rate)
        self.progress(f"{probe.name}: {probe.rate_text(rate)}")

    def _rate(self, probe: Probe, launch: Launch) -> float:
        """One repetition after a launch that is not timed, the device idle at both ends."""
        launch()
        self.device.synchronize()
        start = self.clock()
        for _ in range(probe.launches):
            launch()
        self.device.synchronize()
        seconds = max(self.clock() - start, 1e-9)
        return probe.launches * probe.work_per_launch / seconds

    def _leave_out(self, group: ProbeGroup, probe: Probe, reason: str) -> None:
        probe.give_up()
        note = f"{probe.name} left out: {reason}"
        group.notes.append(note)
        self.progress(note)


def _in_turn(groups: Sequence[ProbeGroup]) -> Iterator[tuple[ProbeGroup, Probe]]:
    lanes = [[(group, probe) for probe in group.probes if probe.live] for group in groups]
    for row in itertools.zip_longest(*lanes):
        yield from filter(None, row)


MATH_MODES: tuple[MathMode, ...] = ("fp32", "tf32", "bf16", "fp16", "fp8")


def _products(
    size: int, other_sizes: Sequence[int], pixels: int, filters: int, inputs: int
) -> tuple[Product, ...]:
    """Square products and a tall one that a convolution turns into, channels x 9 being `inputs`.

    Those of `size` come in each layout that training uses: forward NT, input gradient NN, weight
    gradient TN.
    """
    return (
        *((size, size, size, layout) for layout in get_args(Layout)),
        *((other, other, other, "NT") for other in other_sizes),
        (pixels, filters, inputs, "NT"),
    )


@dataclass(frozen=True)
class RoofPlan:
    """What is tried on a backend; `group_s` is the least time of one repetition.

    Where power limits the clock the winner of each math mode is repeated alone for `sustain_s`
    seconds, and its last second is the roof.
    """

    products: tuple[Product, ...]
    convolutions: tuple[Convolution, ...]
    stream_steps: tuple[int, ...]
    group_s: float
    budget_s: float
    sustain_s: float = 0.0


PLANS = {
    "cpu": RoofPlan(
        products=_products(1024, (512, 2048, 4096), 12544, 256, 2304),
        convolutions=((16, 128, 28, 128), (16, 256, 14, 256), (64, 256, 28, 256)),
        stream_steps=(1, 2, 4),
        group_s=0.1,
        # on shared machines a memory roof of 8 repetitions was 15 to 30 % too low, 3 of 6 times
        budget_s=30.0,
    ),
    "cuda": RoofPlan(
        products=_products(8192, (4096, 16384), 200704, 512, 4608),
        convolutions=((256, 512, 14, 512), (128, 256, 56, 256), (256, 512, 28, 512)),
        stream_steps=(1, 4, 16),
        group_s=0.05,
        budget_s=20.0,
        sustain_s=4.0,
    ),
    "mps": RoofPlan(
        products=_products(4096, (2048, 8192), 50176, 256, 2304),
        convolutions=((64, 256, 14, 256), (32, 256, 28, 256), (64, 512, 28, 512)),
        stream_steps=(1, 2, 4),
        group_s=0.05,
        budget_s=20.0,
    ),
}


def measure_ceilings(
    device: Device,
    *,
    clock: Clock = time.perf_counter,
    budget_s: float | None = None,
    progress: Callable[[str], None] = ignore,
) -> tuple[tuple[Ceiling, ...], tuple[CeilingSample, ...]]:
    """Return a ceiling for each math mode that `device` has natively, and every probe's raw rates.

    A peak is the highest sustained rate (`sustained_rate`) of any probe repeated at least
    `MINIMUM_REPETITIONS` times; the bandwidth is the same for all math modes. Takes about
    `budget_s` seconds (default: 30 on a CPU, 20 on a GPU), plus what the leaders need for their
    least repetitions. `progress` receives one line per probe and per round. A probe that the
    device cannot run, for memory or otherwise, is left out with a line that says so; a roof
    without any probe is None with its reason. Torch's switches stay as the last probe set them.
    """
    plan = PLANS[device.backend]
    bandwidth, one_way = _bandwidth_groups(device, plan)
    modes = [mode for mode in MATH_MODES if device.native_math(mode)]
    compute = {mode: ProbeGroup(mode, compute_probes(device, plan, mode)) for mode in modes}
    fewer = {
        mode: ProbeGroup(f"{mode}, convolutions", convolution_probes(device, plan, mode))
        for mode in modes
        if _may_execute_fewer(device, mode)
    }
    groups = [*compute.values(), *fewer.values(), bandwidth, one_way]
    torch.backends.cudnn.benchmark = True  # as in training
    with torch.inference_mode():
        sampler = ProbeSampler(device, clock, plan.group_s, progress)
        sampler.sample(groups, plan.budget_s if budget_s is None else budget_s)
        for group in compute.values() if plan.sustain_s else ():
            sampler.sustain(group, plan.sustain_s)
    ceilings = tuple(
        _ceiling(device, mode, group, fewer.get(mode), bandwidth, one_way)
        for mode, group in compute.items()
    )
    alone = [group.alone for group in groups if group.alone]
    return ceilings, (*(sample for group in groups for sample in group.samples()), *alone)


#: Of all-reduces: from where latency is all to where bandwidth is, 1 KiB to 256 MiB.
_MESSAGE_BYTES = tuple(2**10 * 4**power for power in range(10))
_REPETITIONS, _MOST_IN_A_GROUP = 7, 1000


def measure_all_reduces(
    device: Device,
    team: DdpTeam,
    *,
    clock: Clock = time.perf_counter,
    progress: Callable[[str], None] = ignore,
) -> tuple[AllReduce, ...]:
    """Return how long all-reduces of fp32 sums over the ranks of `team` take, by their size.

    Every rank calls this. All begin a repetition together with their devices idle; it is the mean
    over a group of launches. Messages of over an eighth of free memory are left out.
    """
    measured: list[AllReduce] = []
    for message_bytes in _MESSAGE_BYTES:
        if team.most(8 * team.shard.ranks * message_bytes > free_bytes(device)):
            break
        message = torch.randn(message_bytes // 4, device=device.torch_device)

        def repetition_s(launches: int, message: torch.Tensor = message) -> float:
            team.barrier()
            begin_s = clock()
            for _ in range(launches):
                torch.distributed.all_reduce(message)
            device.synchronize()
            return float(max(team.gather((clock() - begin_s) / launches)))

        once_s = min(repetition_s(1) for _ in range(3))
        launches = min(math.ceil(PLANS[device.backend].group_s / once_s), _MOST_IN_A_GROUP)
        times_s = tuple(repetition_s(launches) for _ in range(_REPETITIONS))
        ranks, by = team.shard.ranks, team.communication
        measured.append(
            AllReduce(communication=by, devices=ranks, message_bytes=message_bytes, times_s=times_s)
        )
        progress(f"all-reduce of {message_bytes // 2**10} KiB: {1e3 * min(times_s):.3g} ms")
    return tuple(measured)


def known_work(device: Device) -> list[Probe]:
    """Return what proves a counter: copy and read of known bytes, a product of known FLOP.

    The product is in a type that counters count: bf16 on a GPU, fp32 on a CPU.
    """
    plan, where = PLANS[device.backend], device.torch_device
    cache_bytes = device.info().last_level_cache_bytes
    sizes = array_sizes(cache_bytes, plan.stream_steps, free_bytes(device))
    mode: MathMode = "bf16" if device.backend != "cpu" and device.native_math("bf16") else "fp32"
    product = product_probe(plan.products[0], mode, where)
    return [*(stream_probes(sizes[-1:], where, ("copy", "read")) if sizes else []), product]


def compute_probes(device: Device, plan: RoofPlan, mode: MathMode) -> list[Probe]:
    """Return the probes that set the roof of `mode`, those of least work first."""
    shapes = (shape for shape in plan.products if mode != "fp8" or shape[-1] == "NT")
    probes = [product_probe(shape, mode, device.torch_device) for shape in shapes]
    if mode != "fp8" and not _may_execute_fewer(device, mode):
        probes += convolution_probes(device, plan, mode)
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if device.backend == "cpu" and mode == "fp32" and has_onednn:
        probes += [linear_probe(shape) for shape in plan.products if shape[-1] == "NT"]
    return sorted(probes, key=lambda probe: probe.work_per_launch)


def convolution_probes(device: Device, plan: RoofPlan, mode: MathMode) -> list[Probe]:
    """Return the convolutions in `mode`, in each layout that training uses."""
    return [
        convolution_probe(shape, mode, device.torch_device, channels_last)
        for shape in plan.convolutions
        for channels_last in device.channels_last(mode)
    ]


def _may_execute_fewer(device: Device, mode: MathMode) -> bool:
    """Whether 3x3 convolutions are no measure of the arithmetic.

    cuDNN computes them in fp32 by Winograd's algorithm: on an H200 at 147 TFLOP/s by the FLOP that
    are counted, where products reach 52 and the datasheet says 67.
    """
    return device.backend == "cuda" and mode == "fp32"


def _bandwidth_groups(device: Device, plan: RoofPlan) -> tuple[ProbeGroup, ProbeGroup]:
    free = free_bytes(device)
    sizes = array_sizes(device.info().last_level_cache_bytes, plan.stream_steps, free)
    if not sizes:
        why = f"{free // 2**20} MiB are free, too few for three arrays past the last-level cache"
        return ProbeGroup("memory", [], why), ProbeGroup("memory, one way", [], why)
    where = device.torch_device
    # Of the largest: a cache serves a part of what is read again and again.
    one_way = stream_probes(sizes[-1:], where, ONE_WAY)
    return ProbeGroup("memory", stream_probes(sizes, where)), ProbeGroup("memory, one way", one_way)


def _ceiling(
    device: Device,
    mode: MathMode,
    compute: ProbeGroup,
    fewer: ProbeGroup | None,
    bandwidth: ProbeGroup,
    one_way: ProbeGroup,
) -> Ceiling:
    """One math mode's ceiling; a roof that no probe gave is None with the reason.

    What was repeated alone is the peak. The probes that took turns are bursts, and so are those
    that may execute `fewer` FLOP than are counted: no fault of a step that is as fast.
    """
    peak = compute.alone or best_sample(compute.samples())
    memory = best_sample(bandwidth.samples())
    faster = [*compute.samples(), *(fewer.samples() if fewer else [])]
    burst = best_sample(faster) if compute.alone or fewer else None
    alone = best_sample(one_way.samples())
    winners = map(account_of, filter(None, (peak, memory, alone)))
    facts = {
        "device": device.info().name,
        "backend": device.backend,
        "math_mode": mode,
        "peak_flops_per_s": compute.rate_of(peak),
        "burst_flops_per_s": compute.rate_of(burst),
        "peak_bytes_per_s": bandwidth.rate_of(memory),
        "one_way_bytes_per_s": one_way.rate_of(alone),
        "kind": "measured",
        "source": "; ".join([*winners, software_of(device)]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    return Ceiling.model_validate(facts)


def software_of(device: Device) -> str:
    """Return what the probes ran with."""
    threads = f", {torch.get_num_threads()} threads" if device.backend == "cpu" else ""
    return f"torch {torch.__version__}{threads}"
