"""Runs, profiles and results of other programs under roofs: each record as a report shows it.

The step that an imported file names was counted when it was imported. The file names a device, and
neither its driver nor its power limit, so the roof is one of a device of that name. What the file
does not say of the step stands in the findings of the run's place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from analysis.presentation.words import whole_number
from analysis.profiles import (
    KernelPlace,
    OpPlace,
    Places,
    check_counters,
    check_ops,
    explains,
    place_kernels,
    place_ops,
)
from analysis.roofs import (
    Peaks,
    UsedCeiling,
    ceiling_by_name,
    choose_ceiling,
    driver_name,
    highest_roof,
)
from analysis.runs.bounds import check_possible, step_times
from analysis.runs.groups import Runs
from analysis.runs.points import RooflinePoint, point_under, roofline_point
from analysis.runs.run import Run, Trust, distinguished, problem_lines, trust
from analysis.runs.settings import Identified, Identity
from bench.config import RunConfig, rate_metric
from bench.errors import Unknown, UserError, fault_line
from bench.records import (
    CeilingsRecord,
    DeviceInfo,
    Environment,
    Finding,
    ImportedRecord,
    MathMode,
    ProfileRecord,
    RunRecord,
)
from bench.records.metrics import (
    StepCost,
    imported_summary,
    profile_summary,
    step_cost,
    summary,
)
from bench.records.step_settings import NO_SETTINGS, settings_of


def place(
    source: RunRecord | ImportedRecord,
    ceilings: Sequence[CeilingsRecord] = (),
    profiles: Sequence[ProfileRecord] = (),
    *,
    run_id: str | None = None,
    peaks: Sequence[Peaks] = (),
    said: Mapping[str, Any] = MappingProxyType({}),
) -> Run:
    """Place one run under its roof, with what `profiles` counted of it.

    An imported result has the roof of a device of its name. `peaks` are datasheet figures of a
    user's own, `said` is what a server alone knows of the run: its `user`, who `accepted` it.
    """
    if isinstance(source, ImportedRecord):
        return _imported_run(source, ceilings, peaks, run_id, said)
    found = roofline_point(source, ceilings, profiles, peaks)
    settings, asked = settings_of(source)
    environment, measurement = source.environment, source.measurement
    return Run(
        name=run_id or source.record_id,
        source=source,
        run_id=run_id,
        place=found,
        settings=settings,
        asked=asked,
        outcome=source.outcome,
        reason=source.reason,
        metrics=summary(source),
        sample=source.resolved.sample if source.resolved else "sample",
        campaign=source.config.campaign,
        software=_software(environment),
        started=source.created,
        # a GPU by its UUID, wherever it stands; else the machine by what it calls itself
        machine=(environment.device.uuid or environment.host) if environment else None,
        iteration_times_s=measurement.iteration_times_s if measurement else (),
        findings=(source.verdict.findings if source.verdict else ())
        + (found.findings if found else ()),
        **said,
    )


def place_runs(
    records: Iterable[RunRecord | ImportedRecord],
    ceilings: Sequence[CeilingsRecord] = (),
    profiles: Sequence[ProfileRecord] = (),
    *,
    run_ids: Mapping[str, str] | None = None,
    peaks: Sequence[Peaks] = (),
    said: Mapping[str, Mapping[str, Any]] | None = None,
    unplaced: list[str] | None = None,
) -> Runs:
    """Place every record under its roof, as `place` does, and number the runs.

    `run_ids` and what a server `said` are by record id. Ordered by machine, model, precision and
    batch size, so that neighbours can be compared, imported ones last. A line on a run that fails
    goes to `unplaced`, where it is given, and the others go on.
    """
    placed, run_ids, said = list[Run](), run_ids or {}, said or {}
    for record in records:
        run_id, of_server = run_ids.get(record.record_id), said.get(record.record_id, {})
        try:
            run = place(record, ceilings, profiles, run_id=run_id, peaks=peaks, said=of_server)
            placed.append(run)
        except Exception as error:
            if unplaced is None or isinstance(error, UserError):
                raise
            unplaced.append(f"{record.record_id}: {fault_line(error)}")
    ordered = sorted(distinguished(placed), key=lambda run: (run.record is None, run.order()))
    return Runs(replace(run, number=number) for number, run in enumerate(ordered, start=1))


def _software(environment: Environment | None) -> dict[str, str]:
    if environment is None:
        return {}
    found = {
        "torch": environment.torch,
        "CUDA": environment.cuda,
        "driver": environment.device.driver,
        "variables": environment.variables_set,
        "commit": environment.git_commit and environment.git_commit[:12],
        "model's commit": environment.model_code and environment.model_code.commit,
    }
    return {name: value for name, value in found.items() if value}


# Results of other programs

#: The finding that says what an imported run's place takes for granted.
MODELLED = "modelled"
#: Of an imported run's parameters those that are settings of ours.
_SETTINGS = RunConfig.model_fields.keys() - NO_SETTINGS
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


def _imported_run(
    record: ImportedRecord,
    ceilings: Sequence[CeilingsRecord],
    peaks: Sequence[Peaks],
    run_id: str | None,
    said: Mapping[str, Any],
) -> Run:
    """The result as a run. Without a place, what exceeds every peak of its device is found too."""
    work = _work(record)
    found = _modelled_point(record, work, ceilings, peaks)
    deviation = record.metrics.get("throughput_images_per_s_std")
    stated = {name: getattr(record, name) for name in _STATED}
    return Run(
        name=run_id or record.record_id,
        source=record,
        run_id=run_id,
        place=found,
        settings={name: text for name, text in record.params.items() if name in _SETTINGS}
        | {name: str(fact) for name, fact in stated.items() if fact is not None},
        metrics=imported_summary(record),
        campaign=record.campaign,
        started=record.measured_at,
        count=max(whole_number(record.params.get("repeats")) or 1, 1),
        deviations={} if deviation is None else {rate_metric("image"): deviation},
        findings=(
            *(record.verdict.findings if record.verdict else ()),
            *(found.findings if found else ()),
            *_impossible(record, work, found, peaks),
        ),
        **said,
    )


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


def _modelled_point(
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
    by_mode = [
        ceiling_by_name(device, roof_mode, ceilings, peaks, because=because, env=record.env)
        for roof_mode in _MODES[mode]
    ]
    fitting = [ceiling for ceiling in by_mode if isinstance(ceiling, UsedCeiling)]
    if not fitting:
        why = next(ceiling.reason for ceiling in by_mode if isinstance(ceiling, Unknown))
        return Unknown(f"no ceiling: {why}; report --peaks FILE takes figures of your own")
    used = fitting[0]
    if mode == "fp32":
        measured = [ceiling for ceiling in fitting if ceiling.record_id is not None]
        used = max(measured or fitting, key=lambda ceiling: ceiling.roof.peak_flops_per_s)
    taken = [used.instead_of_measured or "", *record.assumed]
    if record.precision == "fp32" and used.ceiling.math_mode == "tf32":
        taken.append("fp32 under the roof of tf32, which libraries use for it on this device")
    notes = [Finding.of(MODELLED, taken="; ".join(taken))]
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
        if finding.code not in {other.code for other in whole}:
            yield finding.with_facts(images_per_s=fastest)


# Profiles


@dataclass(frozen=True)
class PlacedProfile(Identified):
    """A profile's record, the tracked run that holds it, its device's roof and its timed runs.

    `number` is the profile's in a report, counted from 1. `runs` are those of the report that it
    explains, the one that it was made of first.
    """

    number: int
    record: ProfileRecord
    run_id: str | None  # None for a record that was read from disk
    ceiling: UsedCeiling | Unknown
    runs: tuple[Run, ...]

    @cached_property
    def identity(self) -> Identity:
        """The settings of the step that was profiled."""
        settings, asked = settings_of(self.record)
        return Identity(settings, (asked,))

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The profile's statistics by their names in the tracking schema."""
        return profile_summary(self.record)

    @property
    def used(self) -> UsedCeiling | None:
        """The roof of its device, if there is one."""
        return self.ceiling or None

    @property
    def name(self) -> str:
        """The tracked run's id, else the record's."""
        return self.run_id or self.record.record_id

    @cached_property
    def ops(self) -> Places[OpPlace] | None:
        """Its ops under the roof, if PyTorch's profiler looked."""
        ops, roof = self.record.ops, self.used.roof if self.used else None
        return None if ops is None else place_ops(ops.ops, roof)

    @cached_property
    def kernels(self) -> Places[KernelPlace] | None:
        """Its kernels under the roofs, if counters were read."""
        return None if self.record.counters is None else place_kernels(self.record.counters)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What the profile found of itself, then what the roof shows."""
        record, used = self.record, self.used
        found = list(record.verdict.findings if record.verdict else ())
        if used and record.counters is not None:
            timed = self.runs[0].record if self.runs else None
            window = timed.measurement if timed else None
            step_s = window.step_s if window else None
            found += check_counters(record.counters, used.roof, used.cache_roofs, step_s)
        if used and self.ops is not None:
            found += check_ops(self.ops, used.roof)
        return tuple(found)

    @property
    def verdict(self) -> Trust:
        """The gravest of the findings; `no result` if the profile did not end well."""
        return trust(self.record, self.findings)

    @property
    def problems(self) -> tuple[str, ...]:
        """What a reader must know before using its numbers; empty for most profiles."""
        return problem_lines(self.findings, self.ceiling, "not held against a roof")

    def facts(self) -> dict[str, object]:
        """Return what a script wants of the profile, ready for JSON."""
        return {
            "run_id": self.run_id,
            "record_id": self.record.record_id,
            "configuration": self.label,
            "explains": [run.record_id for run in self.runs],
            **self.metrics,
            "verdict": self.verdict,
            "problems": list(self.problems),
        }


def place_profiles(
    profiles: Sequence[ProfileRecord],
    runs: Sequence[Run],
    ceilings: Sequence[CeilingsRecord],
    *,
    run_ids: Mapping[str, str] | None = None,
    peaks: Sequence[Peaks] = (),
) -> list[PlacedProfile]:
    """Hold every profile against its device's roof and find those of `runs` that it explains.

    The arguments are those of `place_runs`. Ordered by the first run that each explains, then by
    time; those that explain none come last.
    """
    found = []
    for record in sorted(profiles, key=lambda one: (one.created, one.record_id)):
        fitting = [run for run in runs if run.record and explains(record, run.record)]
        fitting.sort(key=lambda run: run.record_id != record.timed_record_id)
        run_id = (run_ids or {}).get(record.record_id)
        used = choose_ceiling(record, ceilings, peaks)
        found.append(PlacedProfile(0, record, run_id, used, tuple(fitting)))
    found.sort(key=lambda one: one.runs[0].number if one.runs else math.inf)
    return [replace(one, number=number) for number, one in enumerate(found, start=1)]
