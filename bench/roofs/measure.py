"""One device's roofs: what to probe, and the ceilings that follow from the rates."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone

import torch

from bench.records import Ceiling, CeilingSample, MathMode
from bench.records.journal import Clock, ignore
from bench.roofs.compute_probes import MATH_MODES, PLANS, Plan, arithmetic_restored, compute_probes
from bench.roofs.probe import account_of, best_sample, sustained_rate
from bench.roofs.probe_sampler import Candidate, ProbeGroup, ProbeSampler, free_bytes
from bench.roofs.streams import array_sizes, stream_probes
from bench.training.devices import Device


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
    bandwidth = _bandwidth_group(device, plan)
    compute = {
        mode: ProbeGroup(mode, [Candidate(probe) for probe in compute_probes(device, plan, mode)])
        for mode in MATH_MODES
        if device.native_math(mode)
    }
    groups = [*compute.values(), bandwidth]
    with arithmetic_restored(), torch.inference_mode():
        sampler = ProbeSampler(device, clock, plan.group_s, progress)
        sampler.sample(groups, plan.budget_s if budget_s is None else budget_s)
    ceilings = tuple(_ceiling(device, mode, group, bandwidth) for mode, group in compute.items())
    return ceilings, tuple(sample for group in groups for sample in group.samples())


def _bandwidth_group(device: Device, plan: Plan) -> ProbeGroup:
    free = free_bytes(device)
    sizes = array_sizes(device.info().last_level_cache_bytes, plan.stream_steps, free)
    if not sizes:
        why = f"{free // 2**20} MiB are free, too few for three arrays past the last-level cache"
        return ProbeGroup("memory", [], [why])
    return ProbeGroup(
        "memory", [Candidate(each) for each in stream_probes(sizes, device.torch_device)]
    )


def _ceiling(device: Device, mode: MathMode, compute: ProbeGroup, bandwidth: ProbeGroup) -> Ceiling:
    """One math mode's ceiling; a roof that no probe gave is None with the reason."""
    roofs = {"peak_flops_per_s": compute, "peak_bytes_per_s": bandwidth}
    best = {name: best_sample(group.samples()) for name, group in roofs.items()}
    found = {name: sample for name, sample in best.items() if sample is not None}
    return Ceiling(
        device=device.info().name,
        backend=device.backend,
        math_mode=mode,
        peak_flops_per_s=_peak(best["peak_flops_per_s"]),
        peak_bytes_per_s=_peak(best["peak_bytes_per_s"]),
        kind="measured",
        source="; ".join([*map(account_of, found.values()), software_of(device)]),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        missing={
            name: "; ".join(group.notes) for name, group in roofs.items() if name not in found
        },
    )


def _peak(sample: CeilingSample | None) -> float | None:
    return None if sample is None else sustained_rate(sample.rates)


def software_of(device: Device) -> str:
    """Return what the probes ran with."""
    threads = f", {torch.get_num_threads()} threads" if device.backend == "cpu" else ""
    return f"torch {torch.__version__}{threads}"
