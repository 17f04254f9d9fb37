"""Settings that are worth a try, and what was measured of them.

A knob is left out where it is on already, where this device cannot have it, and where a run of this
machine and model with it was not surely faster. What such a run gained stands beside the knob.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from analysis.findings.batches import beside, why_no_larger_batch
from analysis.runs.groups import Group, group_runs
from analysis.runs.run import Run
from analysis.runs.settings import OF_PRECISION
from analysis.statistics import estimate_ratio
from analysis.words import times, whole_number
from bench.config import SYNTHETIC
from bench.records.step_settings import OF_DATA

#: A gain below which there is nothing worth changing.
MIN_GAIN = 1.05
#: In the words of a knob that was tried.
MEASURED = "measured:"
#: Loader processes beside a step on a CPU take their cores from it.
_CPU_CORES_PER_WORKER = 4


def faster(one: Group, other: Group) -> bool:
    """Whether a group was measured to be faster by 5 %, beyond the noise of repeats if known."""
    estimate = estimate_ratio(one.repeats(), other.repeats())
    return estimate.ratio >= MIN_GAIN and (not estimate.interval or estimate.interval.low > 1)


# Data


def synthetic_pairs(groups: Sequence[Group]) -> list[tuple[Group, Group]]:
    """Return each group of other data with the one that differs in synthetic data alone."""
    synthetic = {
        group.identity.key(OF_DATA): group
        for group in groups
        if group.first.settings.get("data") == SYNTHETIC
    }
    others = [group for group in groups if _loads(group)]
    keyed = ((group, synthetic.get(group.identity.key(OF_DATA))) for group in others)
    return [(group, same) for group, same in keyed if same is not None]


def _loads(group: Group) -> bool:
    return group.first.settings.get("data", SYNTHETIC) != SYNTHETIC


def loader_rate(group: Group, runs: Sequence[Run]) -> float | None:
    """Return the most images/s of the group's loader alone, by runs with `data_only`.

    Of the same machine, with the same data, image size and settings of the loader.
    """
    alike = ("env", "device", "image_size", *OF_DATA)
    rates = [
        rate
        for run in runs
        if run.settings.get("data_only") == "true"
        and (rate := run.usable("loader_images_per_s")) is not None
        and all(run.settings.get(name) == group.first.settings.get(name) for name in alike)
    ]
    return max(rates, default=None)


def loader_keeps_up(group: Group, runs: Sequence[Run]) -> bool:
    """Whether the loader alone delivers more than the step would take if it never waited."""
    rate = loader_rate(group, runs)
    shares = [run.metrics.get("data_wait_share", 0.0) for run in group.runs]
    return rate is not None and rate * (1 - min(max(shares), 1.0)) > group.samples_per_s


# The knobs


def _has(group: Group, **values: str) -> bool:
    return values.items() <= group.first.settings.items()


def _off(group: Group, name: str) -> bool:
    """Whether by choice: `auto` leaves off what does not help the device."""
    return set(group.identity.asked_for(name)) == {"false"}


def _number(group: Group, name: str) -> int | None:
    return whole_number(group.first.settings.get(name))


def _cores(group: Group) -> int:
    """Cores of each process, of its device or else of the host; 0 if not known."""
    environment = group.first.record.environment if group.first.record else None
    if environment is None:
        return 0
    of_device = environment.device.cores if environment.device.backend == "cpu" else None
    return (of_device or environment.cpu_cores_usable) // (_number(group, "devices") or 1)


def _room_for_workers(group: Group, runs: Sequence[Run]) -> bool:
    """Whether more loader workers have cores, and the loader needs them."""
    cores, workers = _cores(group), _number(group, "workers")
    most = cores // _CPU_CORES_PER_WORKER if group.backend == "cpu" else cores - 1
    has_cores = not cores or workers is None or workers < most
    return has_cores and _loads(group) and not loader_keeps_up(group, runs)


def _native_amp(group: Group, runs: Sequence[Run]) -> bool:
    """Whether the device computes a lower precision natively than the group's.

    By its runs that asked for amp; without any, a GPU does and a processor may not.
    """
    shown = [
        run.precision.startswith("amp") and run.record.resolved.native_math
        for run in runs
        if run.record and run.record.resolved and (run.asked_for("precision") or "")[:3] == "amp"
        if (run.env, run.device) == (group.env, group.first.device)
    ]
    native = any(shown) if shown else group.backend != "cpu"
    return native and group.precision in ("fp32", "tf32")


_MORE = "more"


class _Knob(NamedTuple):
    """A setting; `words` name it for people.

    `could` tells whether a group among runs could use it: it is not on yet, and the device has it.
    `to` is what it is turned to: a pattern of the value, or a larger number. `with_it` are settings
    that follow.
    """

    words: str
    to: str
    could: Callable[[Group, Sequence[Run]], bool]
    with_it: tuple[str, ...] = ()


_KNOBS: Mapping[str, _Knob] = {
    "threads": _Knob("threads for its idle cores", _MORE, lambda group, _: (
        (_number(group, "threads") or _cores(group)) < _cores(group))),
    "channels_last": _Knob("channels-last", "true", lambda group, _: (
        "image_size" in group.first.settings and _off(group, "channels_last"))),
    "fused_optimizer": _Knob("the fused optimizer", "true", lambda group, _: (
        _off(group, "fused_optimizer"))),
    "batch_size": _Knob("a larger batch", _MORE, lambda group, runs: (
        why_no_larger_batch(group, runs) is None)),
    "cuda_graphs": _Knob("CUDA graphs", "true", lambda group, _: (
        group.backend == "cuda" and _has(group, cuda_graphs="false", compile="none", phases="false",
                                         devices="1", nodes="1", grad_accum_steps="1"))),
    "compile": _Knob("torch.compile", "(?!none).*", lambda group, _: (
        _has(group, compile="none") and not _has(group, cuda_graphs="true"))),
    "precision": _Knob("a lower precision, which has a roof of its own", "amp.*", _native_amp,
                       OF_PRECISION),
    "workers": _Knob("more loader workers", _MORE, _room_for_workers,
                     ("prefetch_factor", "persistent_workers")),
}  # fmt: skip


def knobs_for(group: Group, names: Iterable[str], runs: Sequence[Run]) -> dict[str, str]:
    """Return the knobs of these names that are worth turning for `group`, in words by name.

    `runs` are searched for what was measured of them on that machine and model.
    """
    groups, found = group_runs(beside(group, runs)), {}
    for name in names:
        knob, now = _KNOBS[name], group.first.settings.get(name)
        if not knob.could(group, runs):
            continue
        tried = _tried(name, now, groups)
        if all(faster(turned, base) for base, turned in tried):
            own = [pair for pair in tried if pair[0].first.settings.get(name) == now]
            gains = [turned.samples_per_s / base.samples_per_s for base, turned in own]
            found[name] = knob.words + (f" ({MEASURED} {times(max(gains))})" if gains else "")
    return found


def _tried(name: str, now: str | None, groups: Sequence[Group]) -> list[tuple[Group, Group]]:
    """Pairs that differ in the knob alone, the second turned further, one of them as it is `now`.

    Either may be: where turning it this far gained nothing, turning it further is no advice.
    """
    knob, found = _KNOBS[name], []
    for base, turned in permutations(groups, 2):
        old, new = (one.first.settings.get(name, "") for one in (base, turned))
        if knob.to == _MORE:
            further = (whole_number(new) or 0) > (whole_number(old) or 0)
        else:
            further = new != old and re.fullmatch(knob.to, new) is not None
        keys = (one.identity.key((name, *knob.with_it)) for one in (base, turned))
        if further and now in (old, new) and len(set(keys)) == 1:
            found.append((base, turned))
    return found
