"""Results of other programs as runs: what their files say, and their modelled place under a roof.

The step that a file names was counted when it was imported (`tracking/importing/work.py`). A file
names a device, and neither its driver nor its power limit, so the roof is one of a device of that
name. What the file does not say of the step stands in the findings of the run's place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from analysis.profiles.profiled_step import NOT_PROFILED, ProfiledStep
from analysis.roofs.by_name import ceiling_by_name, driver_name, highest_roof
from analysis.roofs.ceilings import NoCeiling, UsedCeiling
from analysis.roofs.peaks import Peaks
from analysis.roofs.roof import Roof
from analysis.runs.points import (
    Refusal,
    RooflinePoint,
    StepWork,
    check_possible,
    under_roof,
)
from analysis.runs.quantities import whole_number
from analysis.runs.run import Run
from bench.config import RunConfig, rate_metric
from bench.records import CeilingsRecord, DeviceInfo, Finding, ImportedRecord, MathMode
from bench.records.verdict.record_metrics import imported_summary, step_cost
from bench.records.verdict.step_settings import NO_SETTINGS
from tracking import schema

if TYPE_CHECKING:
    from tracking.reading.run_columns import TrackedRun

#: What a ledger may say of a run's throughput: deviation and number of repeats.
_DEVIATION = "throughput_images_per_s_std"
_REPEATS = "repeats"
_FASTEST = "throughput_images_per_s_max"
#: The finding that says what an imported run's place takes for granted.
MODELLED = "modelled"
#: Of a file's own settings those that a result of ours has too.
_STATED = ("arch", "backend", "precision", "batch_size", "env", "device")
#: What may be wrong of a result that cannot be true.
_ITS_FILE = "its file"
_NO_PROFILE = ProfiledStep(None, NOT_PROFILED, None, None, None)
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


@dataclass(frozen=True, kw_only=True)
class ImportedRun(Run):
    """A result of another program, with its modelled point or the reason why it has none."""

    source: ImportedRecord

    @property
    def record_id(self) -> str:
        """The id of the imported record."""
        return self.source.record_id

    def order(self) -> tuple[str, str, str, int, int, str]:
        """Return what sorts runs as a report does; repeats come as in their file."""
        one = self.source
        line = f"{one.source_file} {one.source_line or 0:09} {one.record_id}"
        return *super().order()[:4], one.repeat or 0, line

    def facts(self) -> dict[str, object]:
        """Return the facts of `Run` with where the result comes from and what is assumed."""
        return super().facts() | {
            "record_id": self.source.record_id,
            "source_file": self.source.source_file,
            "source_line": self.source.source_line,
            "assumed": list(self.source.assumed),
        }


def imported_run(
    record: ImportedRecord,
    ceilings: Sequence[CeilingsRecord] = (),
    peaks: Sequence[Peaks] = (),
    *,
    run_id: str | None = None,
) -> ImportedRun:
    """Return an imported result as a run, placed under the roof of a device of its name.

    `peaks` are datasheet figures of a user's own. Without a place it may still be impossible: what
    exceeds every peak of that name is found.
    """
    placed = _placed(record, ceilings, peaks)
    point = placed if isinstance(placed, RooflinePoint) else None
    own = record.verdict.findings if record.verdict else ()
    deviation = record.metrics.get(_DEVIATION)
    known = {
        name: text
        for name, text in record.params.items()
        if name in RunConfig.model_fields and name not in NO_SETTINGS
    }
    stated = {name: getattr(record, name) for name in _STATED}
    return ImportedRun(
        name=run_id or record.record_id,
        settings=known | {name: str(fact) for name, fact in stated.items() if fact is not None},
        metrics=imported_summary(record),
        campaign=record.campaign,
        count=max(whole_number(record.params.get(_REPEATS)) or 1, 1),
        deviations={} if deviation is None else {rate_metric("image"): deviation},
        started=record.measured_at,
        imported_from=record.source_file,
        source=record,
        point=point,
        findings=own + (point.findings if point else ()) + _impossible(record, point, peaks),
        refusal=placed.reason if isinstance(placed, Refusal) else None,
    )


def imported(runs: Iterable[Run]) -> list[ImportedRun]:
    """Return the imported ones of `runs`."""
    return [run for run in runs if isinstance(run, ImportedRun)]


def run_of_tags(run: TrackedRun) -> Run:
    """Return a tracked run by its tags, parameters and metrics alone, which takes no record."""
    known = {
        name: value
        for name, value in run.params.items()
        if name in RunConfig.model_fields and name not in NO_SETTINGS
    }
    batch = whole_number(run.params.get("resolved_batch_size") or known.get("batch_size"))
    if batch is not None:
        known["batch_size"] = f"{batch}"
    for setting, tag in (("env", schema.ENV), ("device", schema.DEVICE)):
        if run.tags.get(tag):
            known[setting] = run.tags[tag]
    return Run(
        name=run.run_id,
        settings=known,
        outcome=run.tags.get(schema.OUTCOME, "ok"),
        reason=run.tags.get(schema.REASON),
        metrics=run.metrics,
        campaign=run.tags.get(schema.CAMPAIGN),
    )


def _placed(
    record: ImportedRecord, ceilings: Sequence[CeilingsRecord], peaks: Sequence[Peaks]
) -> RooflinePoint | Refusal:
    work, complexity = _work(record), record.complexity
    if work is None or complexity is None:
        return Refusal(f"no complexity: {record.missing.get('complexity', 'no throughput')}")
    if record.precision is None:
        return Refusal(f"in which precision it computed: {record.missing['precision']}")
    if record.device is None:
        return Refusal(f"on which device it ran: {record.missing['device']}")
    used = _roof(record, record.device, complexity.math_mode, ceilings, peaks)
    if isinstance(used, NoCeiling):
        return Refusal(f"no ceiling: {used.reason}; report --peaks FILE takes figures of your own")
    # The processes of one CPU share that machine's roof.
    roofs = int(record.params.get("nodes", 1)) if record.backend == "cpu" else record.devices
    return under_roof(
        work,
        used.roof.of_several(roofs),
        used,
        _NO_PROFILE,
        record_id=record.record_id,
        env=record.env or "unknown",
        arch=record.arch,
        precision=record.precision,
        batch_size=complexity.batch_size,
        device=record.device,
        math_mode=used.ceiling.math_mode,
        what=_ITS_FILE,
        findings=(_note(record, used.instead_of_measured or "", used.ceiling.math_mode),),
        imported_from=record.source_file,
    )


def _work(record: ImportedRecord) -> StepWork | None:
    """FLOP, bytes and time of one step on all devices; without the optimizer where it had none."""
    complexity, rate = record.complexity, record.throughput_images_per_s
    if complexity is None or rate is None or not complexity.eager_bytes:
        return None
    batches, devices = record.grad_accum_steps, record.devices
    cost = step_cost(complexity, batches)
    left_out = [op for op in complexity.ops if op.phase == "optimizer" and "step" in record.params]
    return StepWork(
        flops=devices * cost.flops,
        fused_bytes=devices * (cost.fused_bytes - sum(op.fused_bytes for op in left_out)),
        eager_bytes=devices * (cost.eager_bytes - sum(op.eager_bytes for op in left_out)),
        compulsory_bytes=devices * cost.compulsory_bytes if not left_out else 0.0,
        step_s=devices * batches * complexity.batch_size / rate,
        data_wait_s=None,
        causal_skipped_flops=devices * cost.causal_skipped_flops,
    )


def _roof(
    record: ImportedRecord,
    name: str,
    counted: MathMode,
    ceilings: Sequence[CeilingsRecord],
    peaks: Sequence[Peaks],
) -> UsedCeiling | NoCeiling:
    """The roof of a device of that name in the first of its modes; for fp32 in the higher one."""
    backend = record.backend or "cuda"
    if backend not in ("cpu", "cuda", "mps"):
        return NoCeiling(f"nothing is known of the backend {backend!r}")
    device = DeviceInfo.of("its file does not say", name=driver_name(name), backend=backend)

    def of(mode: MathMode) -> UsedCeiling | NoCeiling:
        because = "its roof is that of a device of this name"
        return ceiling_by_name(device, mode, ceilings, peaks, because=because, env=record.env)

    found = [of(mode) for mode in _MODES[counted]]
    used = [one for one in found if isinstance(one, UsedCeiling)]
    if counted != "fp32" or not used:
        return used[0] if used else found[0]
    measured = [one for one in used if one.record_id is not None]
    return max(measured or used, key=lambda one: one.roof.peak_flops_per_s)


def _note(record: ImportedRecord, roof: str, mode: MathMode) -> Finding:
    """What of the place is taken for granted."""
    words = [roof, *record.assumed]
    if record.precision == "fp32" and mode == "tf32":
        words.append("fp32 under the roof of tf32, which libraries use for it on this device")
    return Finding(
        code=MODELLED, level="note", message=f"imported, its work modelled; {'; '.join(words)}"
    )


def _impossible(
    record: ImportedRecord, point: RooflinePoint | None, peaks: Sequence[Peaks]
) -> tuple[Finding, ...]:
    """Findings for what no device of its name can have reached, beside those of the point.

    Of a result without a place, in any arithmetic; and of the fastest part that its file states.
    """
    work = _work(record)
    roof = point.roof if point else _highest(record, peaks)
    if work is None or roof is None:
        return ()
    whole = check_possible(work, work.times_under(roof), roof, what=_ITS_FILE)
    rate, fastest = record.throughput_images_per_s, record.metrics.get(_FASTEST)
    found = () if point else whole
    if rate is None or fastest is None or fastest <= rate:
        return found
    part = replace(work, step_s=work.step_s * rate / fastest)
    return found + tuple(
        finding.model_copy(update={"message": f"at {fastest:.4g} images/s: {finding.message}"})
        for finding in check_possible(part, part.times_under(roof), roof, what=_ITS_FILE)
        if finding.code not in {one.code for one in whole}
    )


def _highest(record: ImportedRecord, peaks: Sequence[Peaks]) -> Roof | None:
    roof = None if record.device is None else highest_roof(record.device, peaks)
    return roof and roof.of_several(record.devices)
