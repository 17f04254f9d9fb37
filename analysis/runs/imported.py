"""Results of other programs: what their files say, and their modelled place under a roof.

The step that a file names was counted when it was imported (`tracking/importing/work.py`). A file
names a device, and neither its driver nor its power limit, so the roof is one of a device of that
name. What the file does not say of the step stands in the findings of the run's place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from analysis.roofs.ceilings import UsedCeiling, ceiling_by_name, driver_name, highest_roof
from analysis.roofs.roof import Peaks
from analysis.runs.bounds import check_possible, step_times
from analysis.runs.points import RooflinePoint, point_under
from analysis.runs.run import Run
from analysis.words import whole_number
from bench.config import RunConfig, rate_metric
from bench.errors import Unknown
from bench.records import CeilingsRecord, DeviceInfo, Finding, ImportedRecord, MathMode
from bench.records.metrics import StepCost, imported_summary, step_cost
from bench.records.step_settings import NO_SETTINGS

#: The finding that says what an imported run's place takes for granted.
MODELLED = "modelled"
#: Of a file's own settings those that a result of ours has too.
_STATED = ("arch", "backend", "precision", "batch_size", "env", "device")
#: What may be wrong of a result that cannot be true.
_ITS_FILE = "its file"
#: In which arithmetic a roof is looked for, by that of the count. NVIDIA's libraries compute fp32
#: convolutions in TF32 where the device has it, unless asked otherwise, which no file says: the
#: higher roof is right or too high, never too low. Of the two 16-bit formats a datasheet may give
#: the peak of one alone.
_MODES: dict[MathMode, tuple[MathMode, ...]] = {
    "fp32": ("fp32", "tf32"),
    "tf32": ("tf32",),
    "fp16": ("fp16", "bf16"),
    "bf16": ("bf16", "fp16"),
}


def imported_run(
    record: ImportedRecord,
    ceilings: Sequence[CeilingsRecord] = (),
    peaks: Sequence[Peaks] = (),
    run_id: str | None = None,
) -> Run:
    """Return a result as a run, under the roof of a device of its name.

    Without a place it may still be impossible: what exceeds every peak of that name is found.
    """
    work = _work(record)
    found = _place(record, work, ceilings, peaks)
    findings = (record.verdict.findings if record.verdict else ()) + (
        found.findings if found else ()
    )
    deviation = record.metrics.get("throughput_images_per_s_std")
    stated = {name: getattr(record, name) for name in _STATED}
    return Run(
        name=run_id or record.record_id,
        source=record,
        run_id=run_id,
        place=found,
        settings=known_settings(record.params)
        | {name: str(fact) for name, fact in stated.items() if fact is not None},
        metrics=imported_summary(record),
        campaign=record.campaign,
        started=record.measured_at,
        count=max(whole_number(record.params.get("repeats")) or 1, 1),
        deviations={} if deviation is None else {rate_metric("image"): deviation},
        findings=(*findings, *_impossible(record, work, found, peaks)),
    )


def known_settings(params: Mapping[str, str]) -> dict[str, str]:
    """Return those of a tracked or imported run's parameters that are settings of ours."""
    return {
        name: text
        for name, text in params.items()
        if name in RunConfig.model_fields and name not in NO_SETTINGS
    }


def _work(record: ImportedRecord) -> tuple[StepCost, float] | None:
    """Cost and time of one step on all devices; without the optimizer where it had none."""
    complexity, rate = record.complexity, record.throughput_images_per_s
    if complexity is None or rate is None or not complexity.eager_bytes:
        return None
    batches, devices = record.grad_accum_steps, record.devices
    cost = step_cost(complexity, batches, devices)
    if "step" in record.params:
        optimizer = [op for op in complexity.ops if op.phase == "optimizer"]
        cost = replace(
            cost,
            fused_bytes=cost.fused_bytes - devices * sum(op.fused_bytes for op in optimizer),
            eager_bytes=cost.eager_bytes - devices * sum(op.eager_bytes for op in optimizer),
            compulsory_bytes=0 if optimizer else cost.compulsory_bytes,
        )
    return cost, devices * batches * complexity.batch_size / rate


def _place(
    record: ImportedRecord,
    work: tuple[StepCost, float] | None,
    ceilings: Sequence[CeilingsRecord],
    peaks: Sequence[Peaks],
) -> RooflinePoint | Unknown:
    """Its point under the roof of the first of its modes; for fp32 under the higher one."""
    if work is None or record.complexity is None:
        return Unknown(f"no complexity: {record.missing.get('complexity', 'no throughput')}")
    if record.precision is None:
        return Unknown(f"in which precision it computed: {record.missing['precision']}")
    if record.device is None:
        return Unknown(f"on which device it ran: {record.missing['device']}")
    mode, backend = record.complexity.math_mode, record.backend or "cuda"
    if backend not in ("cpu", "cuda", "mps"):
        return Unknown(f"no ceiling: nothing is known of the backend {backend!r}")
    name = driver_name(record.device)
    device = DeviceInfo.of("its file does not say", name=name, backend=backend)
    because = "its roof is that of a device of this name"
    found = [
        ceiling_by_name(device, one, ceilings, peaks, because=because, env=record.env)
        for one in _MODES[mode]
    ]
    fitting = [one for one in found if isinstance(one, UsedCeiling)]
    if not fitting:
        why = next(one.reason for one in found if isinstance(one, Unknown))
        return Unknown(f"no ceiling: {why}; report --peaks FILE takes figures of your own")
    used = fitting[0]
    if mode == "fp32":
        measured = [one for one in fitting if one.record_id is not None]
        used = max(measured or fitting, key=lambda one: one.roof.peak_flops_per_s)
    taken = [used.instead_of_measured or "", *record.assumed]
    if record.precision == "fp32" and used.ceiling.math_mode == "tf32":
        taken.append("fp32 under the roof of tf32, which libraries use for it on this device")
    notes = [(MODELLED, f"imported, its work modelled; {'; '.join(taken)}")]
    # The processes of one CPU share that machine's roof.
    roofs = int(record.params.get("nodes", 1)) if record.backend == "cpu" else record.devices
    return point_under(used, roofs, *work, notes=notes, what=_ITS_FILE)


def _impossible(
    record: ImportedRecord,
    work: tuple[StepCost, float] | None,
    place: RooflinePoint | Unknown,
    peaks: Sequence[Peaks],
) -> Iterator[Finding]:
    """What no device of its name can have reached, besides what its point finds.

    Of a result without a point, in any arithmetic; and of the fastest part that its file states.
    """
    roof = place.roof if place else None
    if roof is None and record.device is not None:
        highest = highest_roof(record.device, peaks)
        roof = highest and highest.of_several(record.devices)
    if work is None or roof is None:
        return
    cost, step_s = work
    whole = list(check_possible(cost, step_times(cost, roof, step_s), roof, what=_ITS_FILE))
    yield from () if place else whole
    rate = record.throughput_images_per_s or math.inf
    fastest = record.metrics.get("throughput_images_per_s_max", 0.0)
    if fastest <= rate:
        return
    times = step_times(cost, roof, step_s * rate / fastest)
    for finding in check_possible(cost, times, roof, what=_ITS_FILE):
        if finding.code not in {one.code for one in whole}:
            message = f"at {fastest:.4g} images/s: {finding.message}"
            yield finding.model_copy(update={"message": message})
