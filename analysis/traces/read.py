"""From a trace's steps, times and ops to its record: what is kept, tracked and reported."""

from __future__ import annotations

import hashlib
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import cast

from analysis.roofs.ceilings import choose_ceiling
from analysis.roofs.peaks import Peaks
from analysis.roofs.roof import Roof
from analysis.runs.bounds import ROOF_SHARE
from analysis.runs.quantities import flops_rate, interval, percent
from analysis.traces.explain import explain
from analysis.traces.ops import OpRow
from analysis.traces.placed import PlacedTrace, place_traces
from analysis.traces.steps import StepSpans
from analysis.traces.timeline import StepTime, device_windows
from bench.config import THROUGHPUT, Sample, rate_unit
from bench.errors import UserError
from bench.profilers.traces import Trace, read_counters
from bench.records import (
    CeilingsRecord,
    Counters,
    IdleTime,
    MathMode,
    ProfileRecord,
    TracedOp,
    TracedStep,
    TraceRecord,
)
from bench.records.base import ratio
from bench.records.complexity import CallWork
from bench.records.profile import COMMUNICATION

_OF_A_STEP = ("step_flops", "step_eager_bytes", "step_fused_bytes")
_MODES: dict[str, MathMode] = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32"}
#: Libraries name kernels that round fp32 to TF32.
_TF32 = re.compile(r"tf32", re.IGNORECASE)
#: Ops with less of the ops' time are not worth a name.
_NAMED_SHARE = 0.05
#: FLOP of a step's ops over the model's. Activations computed again make it 4/3 at most, layers
#: that are not trained 1/3; a second batch, or twice the batch size, makes it 2.
_MOST_FLOPS, _LEAST_FLOPS = 1.5, 0.75
#: The ops' FLOP are all there where the work of no more of their time is unknown.
_UNKNOWN_SHARE = 0.1


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


def _why_not_a_step(rows: Sequence[OpRow], model: TracedModel) -> str | None:
    """Why the traced step is not one batch of `model`, by its ops' FLOP; None where it may be."""
    seen, expected = sum(row.flops or 0.0 for row in rows), model.total("flops")
    computing = [row for row in rows if row.label != COMMUNICATION]
    time_s = sum(row.time_s for row in computing)
    unknown_s = sum(row.time_s for row in computing if row.flops is None)
    all_seen = time_s > 0 and unknown_s <= _UNKNOWN_SHARE * time_s
    if seen <= _MOST_FLOPS * expected and not (all_seen and seen < _LEAST_FLOPS * expected):
        return None
    return (
        f"a traced step has {seen / 1e9:.4g} GFLOP, and one of {model.arch} at batch "
        f"{model.batch_size} {expected / 1e9:.4g}: another batch size or model, several batches "
        "a step (--steps names other marks), or layers that are not trained"
    )


def trace_record(
    trace: Trace,
    steps: Sequence[StepSpans],
    times: Sequence[StepTime],
    rows: Sequence[OpRow],
    *,
    name: str,
    campaign: str,
    model: TracedModel | None = None,
    profile: ProfileRecord | None = None,
) -> TraceRecord:
    """Return the record of `trace`, cut into `steps`; what holds them back is found later.

    `name` is what the trace is called. Of one that `profile` was recorded with, the profile knows
    the device and the arithmetic.
    """
    digest = _sha256(Path(trace.path))
    mode, no_mode = _math_mode(rows)
    device, cores = trace.device_name, trace.device_cores
    if profile is not None and profile.environment is not None:
        device, cores = profile.environment.device.name, profile.environment.device.cores
    if profile is not None and profile.resolved is not None:
        mode = profile.resolved.math_mode
    step_s = step_time_s(trace, steps)
    counters, no_counters = _counters(trace)
    no_model = "no --arch and --batch-size say which model it is"
    not_a_step = no_model if model is None else _why_not_a_step(rows, model)
    whole = model if not_a_step is None else None
    return TraceRecord.of(
        "the trace does not say",
        {
            **dict.fromkeys(("arch", "batch_size", "precision"), no_model),
            **dict.fromkeys(_OF_A_STEP, not_a_step or ""),
            "throughput_samples_per_s": not_a_step or "the steps take no time",
            "math_mode": no_mode,
            "counters": no_counters,
        },
        record_id=f"trace-{digest[:16]}",  # until it is explained
        created=datetime.now(timezone.utc),
        source_file=name,
        source_sha256=digest,
        campaign=campaign,
        device=device,
        device_cores=cores,
        rank=trace.rank,
        world_size=trace.facts.get("world_size"),
        math_mode=mode,
        arch=model and model.arch,
        batch_size=model and model.batch_size,
        precision=model and model.precision,
        sample=model.sample if model else "image",
        throughput_samples_per_s=whole and ratio(whole.batch_size, step_s),
        step_time_s=step_s,
        step_flops=whole and whole.total("flops"),
        step_eager_bytes=whole and whole.total("eager_bytes"),
        step_fused_bytes=whole and whole.total("fused_bytes"),
        bound="not known",
        findings=(),
        advice=(),
        counters=counters,
        steps=tuple(map(_step, times)),
        ops=tuple(map(_op, rows)),
    )


def explained(
    record: TraceRecord,
    times: Sequence[StepTime],
    ceilings: Sequence[CeilingsRecord],
    peaks: Sequence[Peaks],
    number: int,
    profile: ProfileRecord | None = None,
) -> PlacedTrace:
    """Return the trace under its roof, its record with what holds its steps back.

    The record is named by the trace and by what was read of it, so that none replaces another.

    `number` is the trace's in a report. The roof of one that `profile` was recorded with is the
    profile's.
    """
    [placed] = place_traces([record], ceilings, peaks)
    if profile is not None:
        placed = replace(placed, ceiling=choose_ceiling(profile, ceilings, peaks))
    kernels, sentence = None, None
    if placed.used is not None:
        kernels, sentence = _bound_of_kernels(placed, placed.used.roof)
    compiled = any(name.startswith("triton_") for op in record.ops for name in op.kernels)
    found = explain(times, kernels, compiled=compiled)
    sentences = (*found.sentences, *([sentence] if sentence else []), *_of_model(placed))
    whole = record.replaced(bound=found.bound, findings=sentences, advice=found.advice)
    identity = f"trace-{record.source_sha256[:16]}-{_reading(whole)}"
    return PlacedTrace(number, whole.replaced(record_id=identity), placed.ceiling)


def step_time_s(trace: Trace, steps: Sequence[StepSpans]) -> float:
    """Return how long a step took: from one step's end on the device to the next, on average.

    The first step's begin stands for the end before it where there is one step alone.
    """
    if trace.device:
        windows = device_windows(trace, steps)
        ends_us = [end for _, end in windows]
        if len(windows) == 1:
            return (ends_us[0] - windows[0][0]) / 1e6
        return (ends_us[-1] - ends_us[0]) / 1e6 / (len(ends_us) - 1)
    return statistics.fmean(step.wall_s for step in steps)


def _counters(trace: Trace) -> tuple[Counters | None, str]:
    if not trace.counters:
        return None, "the trace holds no counters (cuda_profiler_range)"
    try:
        return read_counters(trace), ""
    except UserError as error:
        return None, str(error)


def _reading(record: TraceRecord) -> str:
    """Eight hex digits: another cut, model or roof makes another record of the same trace."""
    text = record.model_dump_json(exclude={"record_id", "created"})
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def _step(time: StepTime) -> TracedStep:
    figures = {name: getattr(time, name) for name in TracedStep.model_fields if name != "missing"}
    idle = tuple(
        IdleTime(cause=one.cause, time_s=one.time_s, call=one.call, op=one.op) for one in time.idle
    )
    return TracedStep.of("not in the trace", time.missing, **{**figures, "idle": idle})


def _op(row: OpRow) -> TracedOp:
    return TracedOp.of(
        "not known",
        row.missing,
        label=row.label,
        op=row.op.name,
        phase=row.op.phase,
        shapes=", ".join(_shapes(row.op.dims)),
        calls=row.calls,
        time_s=row.time_s,
        exclusive_s=row.exclusive_s,
        kernels=tuple(name for name, _ in row.kernels),
        flops=row.flops,
        elementwise_flops=row.elementwise_flops,
        eager_bytes=row.eager_bytes,
        fused_bytes=row.fused_bytes,
        causal_skipped_flops=row.causal_skipped_flops,
    )


def _shapes(dims: object) -> list[str]:
    """The shapes of tensors among an op's arguments, lists of them included."""
    if not isinstance(dims, tuple) or not dims:
        return []
    if all(isinstance(length, int) for length in dims):
        return ["x".join(map(str, dims))]
    return [shape for one in dims for shape in _shapes(one)]


def _math_mode(rows: Sequence[OpRow]) -> tuple[MathMode | None, str]:
    """The arithmetic in which most of the time of convolutions and products went."""
    times_s: defaultdict[MathMode, float] = defaultdict(float)
    for row in rows:
        kind = next((one for one in row.op.types or () if one in _MODES), None)
        if row.flops and kind is not None:
            tf32 = kind == "float" and any(_TF32.search(name) for name, _ in row.kernels)
            times_s["tf32" if tf32 else _MODES[kind]] += row.time_s
    if not times_s:
        return None, "no convolution or product with the types of its inputs: record_shapes=True"
    return max(times_s, key=lambda mode: times_s[mode]), ""


def _bound_of_kernels(trace: PlacedTrace, roof: Roof) -> tuple[str | None, str | None]:
    """What bounds computation, by the ops with a place: compute, memory, or slow kernels.

    An op is near a roof where it attains half of what its eager bytes allow, as a run is.
    """
    times_s: defaultdict[str, float] = defaultdict(float)
    slow: defaultdict[str, float] = defaultdict(float)
    for record, op in trace.placed_ops:
        if op.kind is None:
            continue
        intensity, rate = cast(float, op.intensity_min), cast(float, op.least_flops_per_s)
        near = rate >= ROOF_SHARE * roof.attainable_flops_per_s(intensity)
        bound = "compute" if intensity >= roof.ridge_flop_per_byte else "memory"
        times_s[bound if near else "slow kernels"] += op.time.time_s
        if not near:
            slow[" ".join(filter(None, (record.label, record.phase)))] += op.time.time_s
    total_s = sum(times_s.values())
    if not total_s:
        return None, None
    bound = max(times_s, key=lambda one: times_s[one])
    shares = ", ".join(
        f"{percent(seconds / total_s)} {name}"
        for name, seconds in sorted(times_s.items(), key=lambda one: -one[1])
    )
    sentence = f"of the time of ops with a place under the roof: {shares}"
    worst = sorted(slow, key=lambda label: -slow[label])[:3]
    named = [label for label in worst if slow[label] >= _NAMED_SHARE * total_s]
    if named:
        sentence += f"; slowest against what their bytes allow: {'; '.join(named)}"
    return bound, sentence


def _of_model(placed: PlacedTrace) -> tuple[str, ...]:
    """What the whole step attains, where the model is known."""
    record = placed.record
    if record.arch is None:
        return ()
    unit = rate_unit(record.sample)
    if record.step_flops is None or record.throughput_samples_per_s is None:
        return (f"no {unit}: {record.missing[THROUGHPUT]}",)
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
    return (sentence,)
