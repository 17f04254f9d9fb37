"""One device's roofs: what to probe on each backend, and the ceilings that follow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import get_args

import torch

from bench.records import Ceiling, CeilingSample, MathMode
from bench.records.journal import Clock, ignore
from bench.roofs.probe_sampler import ProbeGroup, ProbeSampler, free_bytes
from bench.roofs.roof_probes import (
    ONE_WAY,
    Convolution,
    Layout,
    Probe,
    Product,
    account_of,
    arithmetic_restored,
    array_sizes,
    best_sample,
    convolution_probe,
    linear_probe,
    product_probe,
    stream_probes,
    sustained_rate,
)
from bench.training.devices import Device

MATH_MODES: tuple[MathMode, ...] = ("fp32", "tf32", "bf16", "fp16")


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
class Plan:
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
    one_way: bool = False  # whether reading alone and writing alone are probed too


PLANS = {
    "cpu": Plan(
        products=_products(1024, (512, 2048, 4096), 12544, 256, 2304),
        convolutions=((16, 128, 28, 128), (16, 256, 14, 256), (64, 256, 28, 256)),
        stream_steps=(1, 2, 4),
        group_s=0.1,
        budget_s=30.0,
    ),
    "cuda": Plan(
        products=_products(8192, (4096, 16384), 200704, 512, 4608),
        convolutions=((256, 512, 14, 512), (128, 256, 56, 256), (256, 512, 28, 512)),
        stream_steps=(1, 4, 16),
        group_s=0.05,
        budget_s=20.0,
        sustain_s=4.0,
        one_way=True,
    ),
    "mps": Plan(
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
    without any probe is None with its reason. Arithmetic switches are as before afterwards.
    """
    plan = PLANS[device.backend]
    bandwidth, one_way = _bandwidth_groups(device, plan)
    compute = {
        mode: ProbeGroup(mode, compute_probes(device, plan, mode))
        for mode in MATH_MODES
        if device.native_math(mode)
    }
    fewer = {
        mode: ProbeGroup(f"{mode}, convolutions", convolution_probes(device, plan, mode))
        for mode in compute
        if _may_execute_fewer(device, mode)
    }
    groups = [*compute.values(), *fewer.values(), bandwidth, *([one_way] if plan.one_way else [])]
    with arithmetic_restored(), torch.inference_mode():
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


def compute_probes(device: Device, plan: Plan, mode: MathMode) -> list[Probe]:
    """Return the probes that set the roof of `mode`, those of least work first."""
    probes = [product_probe(shape, mode, device.torch_device) for shape in plan.products]
    if not _may_execute_fewer(device, mode):
        probes += convolution_probes(device, plan, mode)
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if device.backend == "cpu" and mode == "fp32" and has_onednn:
        probes += [linear_probe(shape) for shape in plan.products if shape[-1] == "NT"]
    return sorted(probes, key=lambda probe: probe.work_per_launch)


def convolution_probes(device: Device, plan: Plan, mode: MathMode) -> list[Probe]:
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


def _bandwidth_groups(device: Device, plan: Plan) -> tuple[ProbeGroup, ProbeGroup]:
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
    peaks = [group.alone or best_sample(group.samples()) for group in (compute, bandwidth)]
    faster = [*compute.samples(), *(fewer.samples() if fewer else [])]
    burst = best_sample(faster) if compute.alone or fewer else None
    roofs = {
        "peak_flops_per_s": (compute, peaks[0]),
        "peak_bytes_per_s": (bandwidth, peaks[1]),
        "burst_flops_per_s": (compute, burst),
        "one_way_bytes_per_s": (one_way, best_sample(one_way.samples())),
    }
    failed = {name: "; ".join(group.notes) for name, (group, _) in roofs.items()}
    return Ceiling.of(
        "not measured on this backend",
        {name: why for name, why in failed.items() if why and not roofs[name][0].samples()},
        device=device.info().name,
        backend=device.backend,
        math_mode=mode,
        **{name: sustained_rate(best.rates) for name, (_, best) in roofs.items() if best},
        kind="measured",
        source="; ".join([*map(account_of, filter(None, peaks)), software_of(device)]),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def software_of(device: Device) -> str:
    """Return what the probes ran with."""
    threads = f", {torch.get_num_threads()} threads" if device.backend == "cpu" else ""
    return f"torch {torch.__version__}{threads}"
