"""Measures a whole device into a folder of records: its roofs, then models x precisions x batches.

Needs no server and no network, and ends in time: what did not fit is named, not left out silently.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from bench.config import RunConfig
from bench.launcher.measurement import launch_ceilings, launch_measurement
from bench.launcher.watch import TimeLimit
from bench.records import CeilingsRecord, RunRecord
from bench.records.folders import RecordFolder
from bench.records.journal import Clock, OnEvent, ignore

ARCHITECTURES = ("resnet18", "resnet50", "vgg16", "mobilenet_v2")
#: Two sizes each: one that leaves a device room, one near what people train with.
BATCH_SIZES = {"cpu": (4, 8), "mps": (16, 64), "cuda": (64, 256)}
ITERATIONS = {"cpu": (2, 10), "mps": (5, 30), "cuda": (10, 100)}  # warm-up, measured
#: Arithmetic of half the bits is twice as fast where a device has it; two measurements of one speed
#: differ by less than this.
_NATIVE_GAIN = 1.3
#: A worker's end (its record, the grace it is given) must fit before the time limit.
_CLOSING_S = 25.0


@dataclass
class Acceptance:
    """What an acceptance measured, and which configurations the time limit cut."""

    ceilings: CeilingsRecord
    runs: list[RunRecord] = field(default_factory=list)
    not_measured: list[str] = field(default_factory=list)


def accept(
    backend: str,
    records: Path,
    *,
    limit_s: float,
    architectures: Sequence[str] = ARCHITECTURES,
    batch_sizes: Sequence[int] = (),
    announce: Callable[[str], None] = print,
    on_event: OnEvent = ignore,
    clock: Clock = time.perf_counter,
) -> Acceptance:
    """Measure the device of `backend` into `records`, within `limit_s` seconds.

    `batch_sizes` empty means the two of the backend. Smaller batches come first, so that a slow
    device has every model before it has every batch.
    """
    deadline_s = clock() + limit_s - _CLOSING_S
    limit = TimeLimit(deadline_s, on_event)
    announce("ceilings")
    done = Acceptance(launch_ceilings(backend, RecordFolder.create(records), limit.on_event))
    plan = list(_plan(done.ceilings, architectures, batch_sizes))
    for number, config in enumerate(plan):
        left_s = deadline_s - clock()
        if left_s <= 0:
            done.not_measured.append(_name(config))
            continue
        announce(f"{number + 1} of {len(plan)}: {_name(config)}, {left_s:.0f} s left")
        share_s = max(1.0, left_s / (len(plan) - number) / 2)
        timed = config.model_copy(update={"max_seconds": round(share_s, 1)})
        done.runs.append(launch_measurement(timed, RecordFolder.create(records), limit.on_event))
    return done


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


def _plan(
    ceilings: CeilingsRecord, architectures: Sequence[str], batch_sizes: Sequence[int]
) -> Iterator[RunConfig]:
    if ceilings.environment is None:
        return
    backend = ceilings.environment.device.backend
    warmup_iters, iters = ITERATIONS[backend]
    sizes = sorted(batch_sizes or BATCH_SIZES[backend])
    for batch_size, arch, precision in product(sizes, architectures, precisions(ceilings)):
        yield RunConfig(
            arch=arch,
            backend=backend,
            precision=precision,
            batch_size=batch_size,
            warmup_iters=warmup_iters,
            iters=iters,
            campaign="acceptance",
        )


def _name(config: RunConfig) -> str:
    return f"{config.arch} {config.precision} batch {config.batch_size}"
