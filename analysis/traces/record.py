"""From a trace's steps and ops to its record: what is kept, and what holds the steps back.

Shares are of what a step costs its device (`TracedStep.device_time_s`): computation, communication
and copies that nothing hides, and idle time by cause. Time that is no computation is lost. The
bound is decided on the medians over the steps, by the thresholds that bounds of runs have
(`analysis.runs.bounds`):

1. input, if the device idles for it over 5 % of the step, and no less than all else that is lost;
2. computation, if it fills half of the step; a roof says whether that is arithmetic, memory traffic
   or slow kernels;
3. else the largest cause of lost time; it is not known where that is unexplained.

A trace without a device (a processor's) shows no idle time. Its bound is input if marked loaders
take half of the step, so that nothing else can cost more.

Every cause of over 5 % gets its sentence and its advice, whatever the bound.
"""

from __future__ import annotations

import hashlib
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple, cast

from analysis.roofs.ceilings import choose_ceiling
from analysis.roofs.roof import Peaks
from analysis.runs.bounds import INPUT_SHARE, ROOF_SHARE
from analysis.traces.placed import PlacedTrace, place_traces
from analysis.traces.timeline import (
    REMEDIES,
    StepSpans,
    left_out,
    loader_share,
    step_time_s,
    timeline,
    words_of_devices,
)
from analysis.words import flops_rate, interval, percent, three_digits
from bench.config import THROUGHPUT, Sample, rate_unit
from bench.errors import UserError
from bench.profilers.traces import ProfilerTrace, read_counters
from bench.records import (
    CeilingsRecord,
    MathMode,
    ProfileRecord,
    TracedOp,
    TracedStep,
    TraceRecord,
)
from bench.records.base import ratio
from bench.records.complexity import CalledOp, CallWork
from bench.records.profile import COMMUNICATION, LOADER

#: Each op of the trace with what it took and bought (`OpTable.rows`).
OpRows = Sequence[tuple[CalledOp, TracedOp]]

_MODES: dict[str, MathMode] = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32"}
#: What each tool must be told, to record more.
_TOOLS = {
    "torch": {
        "types": "no convolution or product with the types of its inputs: record_shapes=True",
        "stack": "with_stack=True in the profiler",
    },
    "nsys": {
        "types": "Nsight Systems records no types of inputs, PyTorch's profiler does",
        "stack": "nsys profile --python-sampling=true",
    },
}
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


def explained_trace(
    trace: ProfilerTrace,
    steps: Sequence[StepSpans],
    rows: OpRows,
    *,
    number: int,
    name: str,
    campaign: str,
    hidden: str | None = None,
    ceilings: Sequence[CeilingsRecord] = (),
    peaks: Sequence[Peaks] = (),
    model: TracedModel | None = None,
    profile: ProfileRecord | None = None,
) -> PlacedTrace:
    """Return the record of `trace`, cut into `steps`, under its roof, with what holds it back.

    `number` is the trace's in a report. `hidden` says why times of the ops are not the device's
    (`why_hidden`): then there is no rate and no bound. Of a trace that `profile` was recorded with,
    the profile knows the device, the arithmetic and the roof. The record is named by the trace and
    by what was read of it, so that none replaces another.
    """
    digest = hashlib.sha256()
    with Path(trace.path).open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    ran = trace.device or trace.counters or not hidden
    device, cores = (
        trace.of_the_device(fact) if ran else None for fact in ("name", "multiprocessors")
    )
    mode = _math_mode(rows)
    if profile is not None and profile.environment is not None:
        device, cores = profile.environment.device.name, profile.environment.device.cores
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
            "math_mode": hidden or _TOOLS[trace.tool]["types"],
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
    found = explain(record.steps, kernels, in_loader=loader, compiled=compiled, tool=tool)
    others = (words_of_devices(trace, steps), trace.left_out, of_kernels, _of_model(placed))
    findings = (*found.findings, *filter(None, others))
    findings += tuple(left_out(trace, steps))
    record = record.replaced(
        bound=found.bound if not hidden else NOT_KNOWN, findings=findings, advice=found.advice
    )
    # Another cut, model or roof makes another record of the same trace.
    read = record.model_dump_json(exclude={"record_id", "created"}).encode()
    identity = f"{record.record_id}-{hashlib.sha256(read).hexdigest()[:8]}"
    return PlacedTrace(number, record.replaced(record_id=identity), placed.ceiling)


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


# What holds the steps back

COMPUTATION = "computation"
NOT_KNOWN = "not known"
#: Below this share of the step a cause is not worth acting on.
LEAST_SHARE = INPUT_SHARE
#: A call is named if so much of the time lost to a cause was spent in it.
_CALL_SHARE = 0.1

#: Each cause of lost time for people, and what to do about it; another's remedy does not help.
_CAUSES = {
    COMPUTATION: (COMPUTATION, ""),  # which is not lost
    "communication": (
        "communication that no computation hides",
        "Hide or save communication: larger buckets (bucket_cap_mb), no_sync with gradient "
        "accumulation, a larger batch for each device, gradients in 16 bits; and see in the other "
        "ranks' traces whether one of them is late.",
    ),
    "copies": (
        "copies, and waiting for them",
        "Hide copies: pinned memory (pin_memory=True in the loader) and non_blocking=True for "
        "those from the host{names}, fewer conversions of layout and type.",
    ),
    "input": (
        "waiting for the data loader",
        "Have batches ready earlier: more loader processes (num_workers; with 0 the step's own "
        "process loads), a larger prefetch_factor, smaller images on disk, a faster disk.",
    ),
    "allocator": (
        "the memory allocator",
        "Let PyTorch keep its memory: no torch.cuda.empty_cache() in the loop, "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, shapes that stay the same; if memory is "
        "full, a smaller batch.",
    ),
    "synchronisation": (
        "calls that wait for the device",
        "Take out of the step what waits for the device{names}: .item(), print, .cpu(), "
        "nonzero, if on a tensor; read losses every so many steps.",
    ),
    "host": (
        "a host that launches nothing",
        "Take out of the step what the host computes between launches{names}; "
        "{stack} names the Python code.",
    ),
    "launches": (
        "launching one by one",
        "Fewer launches for the work: a larger batch, CUDA graphs{compiling}.",
    ),
    "queued": (
        "the device's own time between two kernels",
        "Fewer and larger kernels: a larger batch{compiling}. The work was launched in time.",
    ),
    "graph": (
        "the device's own time between the kernels of a CUDA graph",
        "Fewer and larger kernels in the CUDA graph: a larger batch, ops fused by hand. It saves "
        "all launches already.",
    ),
    "unexplained": (
        "launched work that began late, for a reason that the trace does not hold",
        "Find what the launched work waits for: another process on the device, another device's "
        "event, a host function in the stream, kernels that the profiler leaves out. Nsight "
        "Systems shows them: nsys profile --cuda-graph-trace=node, over all processes.",
    ),
    "not seen": (
        "idle time whose cause is not in the trace",
        "Read each rank's own file, and have the host in it: {record}. In one file of several "
        "ranks it is not known which call launched what.",
    ),
}

_KnownStep = tuple[TracedStep, Mapping[str, float]]  # with its seconds by cause
_Call = tuple[float, str | None, str | None]  # seconds of a mean step in it, call, op


class Explanation(NamedTuple):
    """The bound of a trace's steps, and the sentences that say why and what to do."""

    bound: str
    findings: tuple[str, ...]
    advice: tuple[str, ...]


def explain(
    steps: Sequence[TracedStep],
    computation: str | None = None,
    *,
    in_loader: float = 0.0,
    compiled: bool = False,
    tool: str = "torch",
) -> Explanation:
    """Return what bounds the steps of one trace.

    `computation` is what bounds the computation itself, as a roof says: compute, memory, slow
    kernels. `in_loader` is the share of a step in which the host was in the data loader; it decides
    where the trace has no device. Of a step that is `compiled` already, compiling is no remedy.
    """
    known = [(step, times_s) for step in steps if any((times_s := device_times_s(step)).values())]
    if not known:  # of what a processor's steps lose, only the time in marked loaders is known
        why = steps[0].missing.get("idle_s", "no step has any") if steps else "there is no step"
        said, advice = [f"No idle time is known: {why}"], []
        if in_loader > LEAST_SHARE:
            said.append(f"The host is in the data loader for {percent(in_loader)} of the step")
            advice.append(_CAUSES["input"][1])
        bound = "input" if in_loader >= ROOF_SHARE else computation or NOT_KNOWN
        return Explanation(bound, tuple(said), tuple(advice))
    of_steps = [(times_s, sum(times_s.values())) for _, times_s in known]
    causes = dict.fromkeys(cause for times_s, _ in of_steps for cause in times_s)
    for average in (statistics.median, statistics.fmean):  # where steps differ, medians may be 0
        shares = {
            cause: average([times_s.get(cause, 0) / total_s for times_s, total_s in of_steps])
            for cause in causes
        }
        shares = dict(sorted(shares.items(), key=lambda item: -item[1]))
        costly = [cause for cause, share in shares.items() if share > LEAST_SHARE]
        if costly:
            break
    calls = {cause: _calls(known, cause) for cause in costly}
    bound = _bound(shares)
    return Explanation(
        (computation or bound) if bound == COMPUTATION else bound,
        tuple(_findings(steps, known, {cause: shares[cause] for cause in costly}, calls)),
        tuple(_remedy(lost, calls[lost], compiled, tool) for lost in costly if lost != COMPUTATION),
    )


def device_times_s(step: TracedStep) -> dict[str, float]:
    """Return the seconds of the device's time by cause; empty where the trace has no device."""
    if step.device_time_s is None:
        return {}
    idle_s = step.idle_s_by_cause
    return {
        COMPUTATION: step.computation_s or 0.0,
        "communication": step.exposed_communication_s or 0.0,
        "copies": (step.exposed_copies_s or 0.0) + idle_s.pop("copies", 0.0),
        **idle_s,
    }


def _bound(shares: Mapping[str, float]) -> str:
    computation, waiting = shares[COMPUTATION], shares.get("input", 0.0)
    if waiting > INPUT_SHARE and waiting >= 1 - computation - waiting:
        return "input"
    if computation >= ROOF_SHARE:
        return COMPUTATION
    largest = next(cause for cause in shares if cause != COMPUTATION)
    return NOT_KNOWN if largest == "unexplained" else largest


def _calls(known: Sequence[_KnownStep], cause: str) -> list[_Call]:
    """In which calls and ops a cause's time was spent, longest first, without small parts."""
    sums_s: defaultdict[tuple[str | None, str | None], float] = defaultdict(float)
    for idle in (idle for step, _ in known for idle in step.idle):
        if idle.cause == cause and (idle.call or idle.op):
            sums_s[idle.call, idle.op] += idle.time_s
    least_s = _CALL_SHARE * sum(times_s.get(cause, 0.0) for _, times_s in known)
    longest = sorted(sums_s.items(), key=lambda item: -item[1])
    return [(time_s / len(known), *names) for names, time_s in longest if time_s >= least_s]


def _remedy(cause: str, calls: Sequence[_Call], compiled: bool, tool: str) -> str:
    ops = dict.fromkeys(op or call or "" for _, call, op in calls[:3])
    return _CAUSES[cause][1].format(
        names=f" ({', '.join(ops)})" if ops else "",
        compiling="" if compiled else ", torch.compile",
        record=REMEDIES[tool],
        stack=_TOOLS[tool]["stack"],
    )


def _findings(
    steps: Sequence[TracedStep],
    known: Sequence[_KnownStep],
    costly: Mapping[str, float],
    calls: Mapping[str, Sequence[_Call]],
) -> Iterator[str]:
    """Say where the time goes: the shares of `costly` causes, and their calls."""
    times_s = [sum(times_s.values()) for _, times_s in known]
    median_s = statistics.median(times_s)
    length, limits = "The step takes", ""
    if len(times_s) > 1:
        length = f"The median of {len(times_s)} steps takes"
        limits = f" ({_ms(min(times_s))} to {_ms(max(times_s))})"
    shares = (f"{percent(share)} {_CAUSES[cause][0]}" for cause, share in costly.items())
    if others := len(steps) - len(known):
        lost = dict.fromkeys(step.missing["idle_s"] for step in steps if step.idle_s is None)
        why = "; ".join(lost) or "no time on the device"
        yield f"Not looked at are {others} of {len(steps)} steps: {why}"
    yield f"{length} {_ms(median_s)} on the device{limits}: {', '.join(shares)}"
    for cause, spent in calls.items():
        parts = [f"{_ms(time_s)} in {' of '.join(filter(None, names))}" for time_s, *names in spent]
        if parts:
            yield f"{cause[:1].upper()}{cause[1:]}, mean of a step: {', '.join(parts[:3])}"
    whole_s = sum(step.communication_s or 0.0 for step in steps)
    exposed_s = sum(step.exposed_communication_s or 0.0 for step in steps)
    if whole_s > 0:
        yield (
            f"Communication kernels run {_ms(whole_s / len(known))} of a step, "
            f"{percent(1 - exposed_s / whole_s)} of it beside computation; they also wait for the "
            "slowest rank"
        )


def _ms(seconds: float) -> str:
    return f"{three_digits(1e3 * seconds)} ms"
