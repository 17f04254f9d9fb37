"""Roofs before a sweep's runs: what the device can reach, and which precisions it really has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from bench.launcher.device_lock import device_names, exclusive
from bench.launcher.from_python import find_ceilings
from bench.launcher.measurement import launch_ceilings
from bench.records import CeilingsRecord, Environment
from bench.records.folders import RecordFolder
from bench.records.journal import OnEvent
from campaigns.sweep.local import Deliver
from campaigns.sweep.local_devices import environment_of
from campaigns.sweep.plan import Plan

#: Arithmetic of half the bits is twice as fast where a device has it; two measurements of one speed
#: differ by less than this.
_NATIVE_GAIN = 1.3


def measure_roofs(
    backends: Collection[str],
    records: Path,
    deliver: Deliver,
    on_event: OnEvent,
    waiting: Callable[[str], None],
) -> dict[str, CeilingsRecord]:
    """Return the roofs of each backend, measured where `records` holds none of its device."""
    found = {}
    for backend in backends:
        known = find_ceilings(records, backend)
        if known is None:
            with exclusive(device_names(backend), waiting):
                folder = RecordFolder.create(records)
                known = launch_ceilings(backend, folder, on_event)
                deliver(folder, known)
        found[backend] = known
    return found


def in_precisions(
    plan: Plan, roofs: Mapping[str, CeilingsRecord], environments: tuple[Environment, ...]
) -> Plan:
    """Return the plan without the runs in a precision that their device does not have."""
    have = {backend: precisions(record) for backend, record in roofs.items()}
    runs = (
        run
        for run in plan.runs
        if run.precision in have[environment_of(run, environments).device.backend]
    )
    return replace(plan, runs=tuple(runs))


def precisions(ceilings: CeilingsRecord) -> tuple[str, ...]:
    """Return the precisions of a device, by the arithmetic that its roofs were measured in.

    Each arithmetic once: `amp` is bf16 where there is bf16; `amp-fp16` is then listed too. A 16-bit
    arithmetic that multiplies no faster than fp32 is emulated: `amp` is fp32 again where both are,
    and `amp-fp16` would take most of the time.
    """
    peaks = {ceiling.math_mode: ceiling.peak_flops_per_s or 0.0 for ceiling in ceilings.ceilings}
    least = _NATIVE_GAIN * peaks.get("fp32", 0.0)
    faster = {mode for mode, peak in peaks.items() if peak > least}
    found = ["fp32", *(["tf32"] if "tf32" in peaks else [])]
    if {"bf16", "fp16"} & faster:
        found.append("amp")
    if {"bf16", "fp16"} <= faster:
        found.append("amp-fp16")
    return tuple(found)
