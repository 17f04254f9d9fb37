"""From a trace's steps and ops to its record: what is kept, and what holds the steps back."""

from __future__ import annotations

import hashlib
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import cast

from analysis.presentation.words import counted, flops_rate, interval, percent, three_digits
from analysis.roofs import Peaks, choose_ceiling
from analysis.runs.bounds import ROOF_SHARE
from analysis.traces.explain import NOT_KNOWN, explain
from analysis.traces.placed import PlacedTrace, place_traces
from bench.config import THROUGHPUT, Sample, rate_unit
from bench.errors import UserError
from bench.profilers.traces import ProfilerTrace, read_counters
from bench.profilers.traces.idle import STEP_MARK
from bench.profilers.traces.intervals import by_kind
from bench.profilers.traces.ops import WorkOf, op_rows
from bench.profilers.traces.steps import (
    HINTS,
    StepSpans,
    cut_steps,
    loader_share,
    marks_of,
    rank_step,
    step_time_s,
    timeline,
    why_hidden,
)
from bench.records import (
    CeilingsRecord,
    MathMode,
    ProfileRecord,
    TracedOp,
    TraceRecord,
)
from bench.records.base import ratio
from bench.records.complexity import CalledOp, CallWork
from bench.records.profile import COMMUNICATION, LOADER

#: Each op of the trace with what it took and bought.
OpRows = Sequence[tuple[CalledOp, TracedOp]]

_MODES: dict[str, MathMode] = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32",
                               "c10::Float8_e4m3fn": "fp8", "c10::Float8_e5m2": "fp8"}  # fmt: skip
#: Libraries name kernels that round fp32 to TF32.
_TF32 = re.compile(r"tf32", re.IGNORECASE)
#: Ops with less of the ops' time are not worth a name.
_NAMED_SHARE = 0.05
#: FLOP of a step's ops over the model's. Activations computed again make it 4/3 at most, layers
#: that are not trained 1/3; a second batch, or twice the batch size, makes it 2.
_MOST_FLOPS, _LEAST_FLOPS = 1.5, 0.75
#: The ops' FLOP are all there where the work of no more of their time is unknown.
_UNKNOWN_SHARE = 0.1
#: Devices that are busy for times that differ by no more of the mean do the same.
_ALIKE = 0.05


@dataclass(frozen=True)
class TracedModel:
    """Which model a trace is of, as its reader says, and the calls of its training step."""

    arch: str
    batch_size: int
    precision: str
    calls: Sequence[CallWork]
    sample: Sample = "image"

    def total(self, work: str) -> int:
        """Return the FLOP or bytes of all its calls, by the name of `CallWork`'s field."""
        return sum(getattr(call, work) for call in self.calls)


def explained_trace(
    trace: ProfilerTrace,
    mark: str | None,
    work_of: WorkOf,
    *,
    number: int,
    name: str,
    campaign: str,
    ceilings: Sequence[CeilingsRecord] = (),
    peaks: Sequence[Peaks] = (),
    model: TracedModel | None = None,
    profile: ProfileRecord | None = None,
) -> PlacedTrace:
    """Return the record of `trace`, cut by `mark`, under its roof, with what holds it back.

    `number` is the trace's in a report. Where times of ops are not the device's (`why_hidden`),
    there is no rate and no bound. Of a trace that `profile` was recorded with, the profile knows
    the device, the arithmetic and the roof. The record is named by the trace and by what was read
    of it, so that none replaces another.
    """
    steps = cut_steps(trace, mark)
    measured = profile.environment if profile is not None else None
    on_cpu = measured is not None and measured.device.backend == "cpu"
    hidden = None if on_cpu else why_hidden(trace, steps)
    rows = op_rows(
        [step for step in steps if not step.lost] or steps,
        trace,
        work_of=lambda ops: dict.fromkeys(ops, hidden) if hidden else work_of(ops),
        calls=model.calls if model and not hidden else (),
    )
    digest = hashlib.sha256()
    with Path(trace.path).open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    ran = trace.device or trace.counters or not hidden
    device, cores = (
        trace.of_the_device(fact) if ran else None for fact in ("name", "multiprocessors")
    )
    mode = _math_mode(rows)
    if measured is not None:
        device, cores = measured.device.name, measured.device.cores
    if profile is not None and profile.resolved is not None:
        mode = profile.resolved.math_mode
    counters, no_counters = None, "the trace holds no counters (cuda_profiler_range)"
    if trace.counters:
        try:
            counters = read_counters(trace)
        except UserError as error:
            no_counters = str(error)
    step_s = step_time_s(trace, steps)
    no_model = "no --arch and --batch-size say which model it is"
    not_a_step = no_model if model is None else hidden or _why_not_a_step(rows, model)
    whole = model if not_a_step is None else None
    work = {f"step_{name}": name for name in ("flops", "eager_bytes", "fused_bytes")}
    record = TraceRecord.of(
        hidden or "the trace does not say",
        {
            **dict.fromkeys(("arch", "batch_size", "precision"), no_model),
            **dict.fromkeys(work, not_a_step or ""),
            "throughput_samples_per_s": not_a_step or "the steps take no time",
            "math_mode": hidden or HINTS[trace.tool]["types"],
            "counters": no_counters,
        },
        record_id=f"trace-{digest.hexdigest()[:16]}",  # until it is explained
        created=datetime.now(timezone.utc),
        source_file=name,
        source_sha256=digest.hexdigest(),
        campaign=campaign,
        device=device,
        device_cores=cores,
        rank=trace.rank,
        world_size=trace.world_size,
        math_mode=mode,
        **{of: model and getattr(model, of) for of in ("arch", "batch_size", "precision")},
        sample=model.sample if model else "image",
        throughput_samples_per_s=whole and ratio(whole.batch_size, step_s),
        step_time_s=step_s,
        **{of: whole and whole.total(name) for of, name in work.items()},
        bound=NOT_KNOWN,
        findings=(),
        advice=(),
        counters=counters,
        steps=tuple(timeline(trace, steps)),
        ops=tuple(op for _, op in rows),
    )
    [placed] = place_traces([record], ceilings, peaks)
    if profile is not None:
        placed = replace(placed, ceiling=choose_ceiling(profile, ceilings, peaks))
    kernels, of_kernels = _bound_of_kernels(placed)
    compiled = any(name.startswith("triton_") for op in record.ops for name in op.kernels)
    loader, tool = loader_share(steps), trace.tool
    explained = explain(record.steps, kernels, in_loader=loader, compiled=compiled, tool=tool)
    others = (_of_devices(trace, steps), trace.left_out, of_kernels, _of_model(placed))
    findings = (*explained.findings, *filter(None, others))
    findings += tuple(left_out(trace, steps))
    record = record.replaced(
        bound=NOT_KNOWN if hidden else explained.bound, findings=findings, advice=explained.advice
    )
    # Another cut, model or roof makes another record of the same trace.
    read = record.model_dump_json(exclude={"record_id", "created"}).encode()
    identity = f"{record.record_id}-{hashlib.sha256(read).hexdigest()[:8]}"
    ranks = () if trace.rank is None else map(rank_step, steps, record.steps)
    return PlacedTrace(number, record.replaced(record_id=identity), placed.ceiling, tuple(ranks))


def _why_not_a_step(rows: OpRows, model: TracedModel) -> str | None:
    """Why the traced step is not one batch of `model`, by its ops' FLOP; None where it may be."""
    seen, expected = sum(op.flops or 0.0 for _, op in rows), model.total("flops")
    computing = [op for _, op in rows if op.label not in (COMMUNICATION, LOADER)]
    time_s = sum(op.time_s for op in computing)
    unknown_s = sum(op.time_s for op in computing if op.flops is None)
    all_seen = time_s > 0 and unknown_s <= _UNKNOWN_SHARE * time_s
    if seen <= _MOST_FLOPS * expected and not (all_seen and seen < _LEAST_FLOPS * expected):
        return None
    return (
        f"a traced step has {seen / 1e9:.4g} GFLOP, and one of {model.arch} at batch "
        f"{model.batch_size} {expected / 1e9:.4g}: another batch size or model, several batches "
        "a step (--steps names other marks), or layers that are not trained"
    )


def _math_mode(rows: OpRows) -> MathMode | None:
    """The arithmetic in which most of the time of convolutions and products went."""
    times_s: defaultdict[MathMode, float] = defaultdict(float)
    for called, op in rows:
        kind = next((name for name in called.types or () if name in _MODES), None)
        if op.flops and kind is not None:
            tf32 = kind == "float" and any(map(_TF32.search, op.kernels))
            times_s["tf32" if tf32 else _MODES[kind]] += op.time_s
    return max(times_s, key=lambda mode: times_s[mode], default=None)


def _bound_of_kernels(trace: PlacedTrace) -> tuple[str | None, str | None]:
    """What bounds computation, by the ops with a place: compute, memory, or slow kernels.

    An op is near a roof where it attains half of what its eager bytes allow, as a run is.
    """
    if trace.used is None:
        return None, None
    roof = trace.used.roof
    times_s: defaultdict[str, float] = defaultdict(float)
    slow_s: defaultdict[str, float] = defaultdict(float)
    for op in trace.ops.placed:
        intensity, rate = cast(float, op.intensity_min), cast(float, op.least_flops_per_s)
        near = rate >= ROOF_SHARE * roof.attainable_flops_per_s(intensity)
        bound = "compute" if intensity >= roof.ridge_flop_per_byte else "memory"
        times_s[bound if near else "slow kernels"] += op.time.time_s
        if not near:
            slow_s[" ".join(filter(None, (op.time.label, op.time.phase)))] += op.time.time_s
    total_s = sum(times_s.values())
    if not total_s:
        return None, None
    longest = sorted(times_s, key=lambda bound: -times_s[bound])
    shares = ", ".join(f"{percent(times_s[bound] / total_s)} {bound}" for bound in longest)
    sentence = f"of the time of ops with a place under the roof: {shares}"
    worst = sorted(slow_s, key=lambda label: -slow_s[label])[:3]
    if named := [label for label in worst if slow_s[label] >= _NAMED_SHARE * total_s]:
        sentence += f"; slowest against what their bytes allow: {'; '.join(named)}"
    return longest[0], sentence


def _of_model(placed: PlacedTrace) -> str | None:
    """What the whole step attains, where the model is known."""
    record = placed.record
    if record.arch is None:
        return None
    unit = rate_unit(record.sample)
    if record.step_flops is None or record.throughput_samples_per_s is None:
        return f"no {unit}: {record.missing[THROUGHPUT]}"
    rate = record.step_flops / record.step_time_s
    sentence = (
        f"a step of {record.arch} at batch {record.batch_size} in {record.precision} has "
        f"{record.step_flops / 1e9:.4g} GFLOP: {record.throughput_samples_per_s:.3g} {unit}, "
        f"{flops_rate(rate)} attained"
    )
    if placed.used is not None:
        share = rate / placed.used.roof.peak_flops_per_s
        sentence += f", {percent(share)} of the {placed.used.ceiling.math_mode} roof"
    if record.step_eager_bytes and record.step_fused_bytes:
        low = record.step_flops / record.step_eager_bytes
        high = record.step_flops / record.step_fused_bytes
        sentence += f", at {interval(low, high)} FLOP/byte"
    return sentence


def _of_devices(trace: ProfilerTrace, steps: Sequence[StepSpans]) -> str | None:
    """Say that figures are means over several devices, and which is busy more or less than most."""
    if len(trace.computing) < 2:
        return None
    busy_us: dict[int | str | None, float] = {}
    for device in trace.computing:
        of_steps = ([run for run in step.device if run.device == device] for step in steps)
        busy_us[device] = statistics.fmean(by_kind(runs)[0].length for runs in of_steps)
    mean_us = statistics.fmean(busy_us.values())
    other = max(busy_us, key=lambda device: abs(busy_us[device] - mean_us))
    mean = f"Every figure is the mean over {len(busy_us)} devices"
    if abs(busy_us[other] - mean_us) <= _ALIKE * mean_us:
        return mean
    others_us = (mean_us * len(busy_us) - busy_us[other]) / (len(busy_us) - 1)
    busy_ms, others_ms = (three_digits(time_us / 1e3) for time_us in (busy_us[other], others_us))
    return f"{mean}; device {other} is busy {busy_ms} ms of a step, the others {others_ms} ms"


def left_out(trace: ProfilerTrace, steps: Sequence[StepSpans]) -> Iterator[str]:
    """Say which marks of torch and which threads' ops are in none of the steps of `trace`."""
    marks = marks_of(trace.host, STEP_MARK) if steps[-1].name.startswith(STEP_MARK) else []
    if early := [span.name for span in marks if span.end_us <= steps[0].begin_us]:
        yield f"Left out, as the training began later: {', '.join(early[:8])}"
    if late := [span.name for span in marks if span.begin_us >= steps[-1].end_us]:
        yield f"Left out, as the training had ended before: {', '.join(late[:8])}"
    of_steps = {span.thread for step in steps for span in step.host}
    others = {span.thread for span in trace.host if span.kind == "op"} - of_steps
    if others and not trace.device:
        yield f"Left out: ops of {counted(len(others), 'other thread')}, which ran beside the step"
