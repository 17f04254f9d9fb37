"""Which knob to turn next: those of a step's bound that are not on and did not fail when measured.

A knob is left out where it is on already, where this device cannot have it, and where a run of this
machine and model with it was not surely faster. What such a run gained stands beside the knob.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from analysis.findings.batches import why_no_larger_batch
from analysis.findings.report_finding import ReportFinding, names_of, rate_of
from analysis.findings.waiting import MIN_GAIN, faster, loader_keeps_up, synthetic_pairs
from analysis.runs.bounds import Bound
from analysis.runs.groups import Group, beside, fastest, group_runs, settings_key
from analysis.runs.points import RooflinePoint
from analysis.runs.quantities import percent, three_digits, times, whole_number
from analysis.runs.run import Run
from analysis.runs.what_ran import OF_PRECISION
from bench.config import FAKEDATA, SYNTHETIC

#: Loader processes beside a step on a CPU take their cores from it.
_CPU_CORES_PER_WORKER = 4


@dataclass(frozen=True)
class Knob:
    """A setting that may be worth changing; `words` name it for people.

    `open` returns whether a group could use it: it is not on yet, and the device has it. `turned`
    returns whether the second of two values has the knob turned further.
    """

    setting: str
    words: str
    open: Callable[[Group, Sequence[Run]], bool]
    turned: Callable[[str, str], bool]
    follows: tuple[str, ...] = ()  # settings that go with it


def _is(value: str) -> Callable[[str, str], bool]:
    return lambda now, other: now != value and other == value


def _more(now: str, other: str) -> bool:
    return (whole_number(other) or 0) > (whole_number(now) or 0)


def _switched_off(setting: str) -> Callable[[Group, Sequence[Run]], bool]:
    """Whether it was switched off by choice: `auto` leaves off what does not help the device."""
    return lambda group, runs: set(group.asked_for(setting)) == {"false"}


def _contiguous_images(group: Group, runs: Sequence[Run]) -> bool:
    return "image_size" in group.first.settings and _switched_off("channels_last")(group, runs)


def _cores(group: Group) -> int | None:
    """Cores of each process of the group, of its device or else of the host; None if not known."""
    environment = group.first.record.environment if group.first.record else None
    if environment is None:
        return None
    of_device = environment.device.cores if environment.device.backend == "cpu" else None
    processes = whole_number(group.first.settings.get("devices")) or 1
    return (of_device or environment.cpu_cores_usable) // processes


def _idle_cores(group: Group, runs: Sequence[Run]) -> bool:
    cores, threads = _cores(group), whole_number(group.first.settings.get("threads"))
    return cores is not None and threads is not None and threads < cores


def _cores_for_workers(group: Group, runs: Sequence[Run]) -> bool:
    if group.first.settings.get("data", SYNTHETIC) == SYNTHETIC or loader_keeps_up(group, runs):
        return False
    cores, workers = _cores(group), whole_number(group.first.settings.get("workers"))
    if cores is None or workers is None:
        return True
    return workers < (cores // _CPU_CORES_PER_WORKER if group.backend == "cpu" else cores - 1)


def _reads_images(group: Group, runs: Sequence[Run]) -> bool:
    """Smaller images help wherever decoding does not keep up, or takes the step's own cores."""
    of_files = group.first.settings.get("data", SYNTHETIC) not in (SYNTHETIC, FAKEDATA)
    return of_files and (group.backend == "cpu" or not loader_keeps_up(group, runs))


def _uncompiled(group: Group, runs: Sequence[Run]) -> bool:
    settings = group.first.settings
    return settings.get("compile") == "none" and settings.get("cuda_graphs") != "true"


def _graphs(group: Group, runs: Sequence[Run]) -> bool:
    settings = group.first.settings
    once = ("devices", "nodes", "grad_accum_steps")
    needed = {"compile": "none", "phases": "false", **dict.fromkeys(once, "1")}
    return (
        group.backend == "cuda"
        and settings.get("cuda_graphs") == "false"
        and all(settings.get(name, value) == value for name, value in needed.items())
    )


def _system_allocator(group: Group, runs: Sequence[Run]) -> bool:
    """Whether it was chosen on Linux, where `auto` takes `retain`."""
    environment = group.first.record.environment if group.first.record else None
    on_linux = environment is not None and not environment.os.startswith(("macOS", "Windows"))
    return on_linux and set(group.asked_for("allocator")) == {"system"}


def _room_for_batch(group: Group, runs: Sequence[Run]) -> bool:
    return why_no_larger_batch(group, runs) is None


def _native_amp(group: Group, runs: Sequence[Run]) -> bool:
    """Whether the group could use a lower precision that its device computes natively.

    By the runs of this device that asked for amp; without any, a GPU does and a processor may not.
    """
    if group.precision not in ("fp32", "tf32"):
        return False
    shown = [
        run.precision.startswith("amp") and run.record.resolved.native_math
        for run in runs
        if run.record is not None
        and run.record.resolved is not None
        and (run.env, run.device) == (group.env, group.first.device)
        and (run.asked_for("precision") or "").startswith("amp")
    ]
    return any(shown) if shown else group.backend != "cpu"


KNOBS: Mapping[str, Knob] = {
    "threads": Knob("threads", "threads for its idle cores", _idle_cores, _more),
    "channels_last": Knob("channels_last", "channels-last", _contiguous_images, _is("true")),
    "fused_optimizer": Knob("fused_optimizer", "the fused optimizer",
                            _switched_off("fused_optimizer"), _is("true")),
    "allocator": Knob("allocator", "allocator=retain", _system_allocator, _is("retain")),
    "batch_size": Knob("batch_size", "a larger batch", _room_for_batch, _more),
    "cuda_graphs": Knob("cuda_graphs", "CUDA graphs", _graphs, _is("true")),
    "compile": Knob("compile", "torch.compile", _uncompiled,
                    lambda now, other: now == "none" and other != "none"),
    "precision": Knob("precision", "a lower precision, which has a roof of its own", _native_amp,
                      lambda now, other: other.startswith("amp"), OF_PRECISION),
    "workers": Knob("workers", "more loader workers", _cores_for_workers, _more,
                    ("prefetch_factor", "persistent_workers")),
    "images": Knob("data", "smaller or already decoded images", _reads_images,
                   lambda now, other: False),
}  # fmt: skip
_OF_BOUND: Mapping[Bound, tuple[str, ...]] = {
    "input": ("workers", "images"),
    "memory": ("precision", "channels_last", "fused_optimizer", "compile"),
    "overhead": ("batch_size", "cuda_graphs", "compile", "fused_optimizer"),
    "compute": ("channels_last", "batch_size", "compile", "precision"),
}
#: The knobs help against launches; only the step's intervals show whether it is these.
_WHICH_OVERHEAD = (
    " Whether launches, slow kernels, copies or the host take the time, a trace says: mlproject "
    "profile, then mlproject trace on its trace.json.gz."
)
#: A processor launches nothing; its overhead is of small kernels and idle cores.
_CPU_OVERHEAD = ("threads", "channels_last", "allocator", "fused_optimizer", "batch_size",
                 "compile")  # fmt: skip


_MEASURED = "measured:"


def advice(group: Group, names: Iterable[str], runs: Sequence[Run]) -> dict[str, str]:
    """Return the knobs of these names that are worth turning for `group`, in words by name.

    `runs` are searched for what was measured of them on that machine and model.
    """
    groups = group_runs(beside(group, runs))
    found = {}
    for name in names:
        knob = KNOBS[name]
        if not knob.open(group, runs):
            continue
        measured = list(_measured(knob, group, groups))
        if all(faster(turned, base) for base, turned in measured):
            gains = [
                turned.samples_per_s / base.samples_per_s
                for base, turned in measured
                if base.first.settings.get(knob.setting) == group.first.settings[knob.setting]
            ]
            known = f" ({_MEASURED} {times(max(gains))})" if gains else ""
            found[name] = f"{knob.words}{known}"
    return found


def _measured(knob: Knob, group: Group, groups: Sequence[Group]) -> Iterator[tuple[Group, Group]]:
    """Pairs that differ in the knob alone, the second turned further, one of them as in `group`.

    Either may be: where turning it this far gained nothing, turning it further is no advice.
    """
    own = (knob.setting, *knob.follows)
    now = group.first.settings.get(knob.setting)
    alike: dict[object, list[Group]] = {}
    for one in groups:
        alike.setdefault(settings_key(one.first, own), []).append(one)
    for base, turned in (pair for members in alike.values() for pair in permutations(members, 2)):
        values = [one.first.settings.get(knob.setting, "") for one in (base, turned)]
        if now in values and knob.turned(*values):
            yield base, turned


def find_next_knobs(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding for the fastest batch of each machine, model and precision with a point.

    There is none where every knob of its bound is on or was measured to gain nothing, where fp32
    was measured to be faster, and where waiting for data was measured to cost nothing.
    """
    groups = group_runs(runs)
    no_gain = {real.names for real, same in synthetic_pairs(groups) if not faster(same, real)}
    for group in fastest(group for group in groups if _point(group)).values():
        point = _point(group)
        if group.first.imported_from:
            continue  # what is on already is not known
        if point is None or most_gain(point) < MIN_GAIN or _slower_than_fp32(group, groups):
            continue
        if point.bound == "input" and group.names in no_gain:
            continue
        on_cpu = point.bound == "overhead" and group.backend == "cpu"
        knobs = advice(group, _CPU_OVERHEAD if on_cpu else _OF_BOUND[point.bound], runs)
        if not knobs:
            continue
        if "compile" in knobs and (on_cpu or point.bound == "memory"):
            knobs["compile"] += f" ({_by_fusion(point)})"
        sure = "" if point.bound_sure else ", perhaps"
        yield ReportFinding(
            kind="next knob",
            headline=(
                f"{group.label}: bound by {point.bound}{sure}. "
                + " ".join(_sentences(knobs, _limit(point)))
                + (_WHICH_OVERHEAD if _unexplained(group, point) else "")
            ),
            evidence=(
                f"{rate_of(group)}; {point.bound_because}",
                f"{percent(point.fraction_of_peak)} of the compute roof "
                f"({point.ceiling.kind}: {point.ceiling.source})",
            ),
            runs=names_of([group]),
        )


def _unexplained(group: Group, point: RooflinePoint) -> bool:
    """Whether neither a roof nor a profile says what takes most of a device's step."""
    on_device = group.backend in ("cuda", "mps")
    return point.bound == "overhead" and on_device and point.times.device_busy_s is None


def _sentences(knobs: Mapping[str, str], limit: str) -> Iterator[str]:
    """The knobs under this roof, and where it is; a lower precision has a roof of its own."""
    under = [words for name, words in knobs.items() if name != "precision"]
    if under:
        tried = any(_MEASURED in words for words in under)
        yield f"Next{'' if tried else ', not tried here'}: {', '.join(under)}. {limit}."
    if other := knobs.get("precision"):
        yield f"{'Or' if under else 'Next:'} {other}."


def _slower_than_fp32(group: Group, groups: Sequence[Group]) -> bool:
    """Whether the same configuration did better without autocast."""
    if not group.precision.startswith("amp"):
        return False
    key = settings_key(group.first, OF_PRECISION)
    return any(
        other.precision == "fp32"
        and settings_key(other.first, OF_PRECISION) == key
        and other.samples_per_s > group.samples_per_s
        for other in groups
    )


def most_gain(point: RooflinePoint) -> float:
    """Return how many times faster the step could be at most by its roof and its bound.

    Input: without the wait, but no faster than the roof. All else: as long as the larger of
    arithmetic and fused (or counted) traffic takes at the roof.
    """
    step = point.times
    least_s = max(step.compute_s, step.memory_min_s)
    if point.bound == "input":
        least_s = max(least_s, step.measured_s - (step.data_wait_s or 0.0))
    return max(step.measured_s / least_s, 1.0)


def _limit(point: RooflinePoint) -> str:
    """How far the roof is; no knob promises to reach it."""
    gain = times(most_gain(point))
    if point.bound == "input":
        return f"Without the wait for data at most {gain}"
    by_memory = point.times.memory_min_s > point.times.compute_s
    roof = f"memory roof ({point.times.traffic})" if by_memory else "compute roof of this precision"
    return f"The {roof} is at {gain} this speed; how near a setting comes is not known"


def _by_fusion(point: RooflinePoint) -> str:
    """What a compiler's fusion can save: the modelled bytes between eager and fused traffic."""
    spared_bytes = point.step_flops * (1 / point.intensity_min - 1 / point.intensity_max)
    spared_s = spared_bytes / point.roof.peak_bytes_per_s
    step_s = point.times.measured_s
    return f"fusion saves at most {three_digits(1e3 * spared_s)} of {three_digits(1e3 * step_s)} ms"


def _point(group: Group) -> RooflinePoint | None:
    """The place of its first run that has a possible one."""
    points = (run.point for run in group.runs)
    return next((point for point in points if point and point.level != "invalid"), None)
