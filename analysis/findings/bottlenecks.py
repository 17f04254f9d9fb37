"""What holds a step back, by its account and its data, and what is worth a try.

A knob is left out where it is on already, where this device cannot have it, and where a run of this
machine and model with it was not surely faster. What such a run gained stands beside the knob.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from analysis.account import Kind, largest_loss
from analysis.findings.batches import beside, why_no_larger_batch
from analysis.findings.differences import in_fp32
from analysis.presentation.columns import Row
from analysis.presentation.words import estimated, percent, three_digits, times, whole_number
from analysis.runs.bounds import INPUT_SHARE
from analysis.runs.groups import (
    Group,
    Runs,
    fastest,
    names_of,
    newest_accounts,
)
from analysis.runs.run import Run
from analysis.runs.settings import OF_PRECISION
from bench.config import FAKEDATA, SYNTHETIC
from bench.records.step_settings import OF_DATA
from bench.statistics.ratios import estimate_ratio

#: A gain below which there is nothing worth changing.
MIN_GAIN = 1.05
#: In the words of a knob that was tried.
MEASURED = "measured:"


def faster(one: Group, other: Group) -> bool:
    """Whether a group was measured to be faster by 5 %, beyond the noise of repeats if known."""
    estimate = estimate_ratio(one.repeats(), other.repeats())
    return estimate.ratio >= MIN_GAIN and (not estimate.interval or estimate.interval.low > 1)


# Data


def synthetic_pairs(groups: Sequence[Group]) -> list[tuple[Group, Group]]:
    """Return each group of other data with the one that differs in synthetic data alone."""
    synthetic = {
        group.identity.key(OF_DATA): group for group in groups if _has(group, data=SYNTHETIC)
    }
    return [
        (group, synthetic[key])
        for group in groups
        if _loads(group) and (key := group.identity.key(OF_DATA)) in synthetic
    ]


def _loads(group: Group) -> bool:
    return group.first.settings.get("data", SYNTHETIC) != SYNTHETIC


def loader_rate(group: Group, runs: Runs) -> float | None:
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


def loader_keeps_up(group: Group, runs: Runs) -> bool:
    """Whether the loader alone delivers more than the step would take if it never waited."""
    rate = loader_rate(group, runs)
    shares = [run.metrics.get("data_wait_share", 0.0) for run in group.runs]
    return rate is not None and rate * (1 - min(max(shares), 1.0)) > group.samples_per_s


def input_rows(runs: Runs) -> Iterator[Row]:
    """Yield each configuration that its input holds back.

    Beside it stands what was measured without the wait, the step on synthetic data and the loader
    alone; and what is not on yet and was not measured to fail.
    """
    counterparts = {group.names: other for group, other in synthetic_pairs(runs.groups)}
    for group in runs.groups:
        shares = [run.metrics["data_wait_share"] for run in group.runs if _waits(run)]
        synthetic = counterparts.get(group.names)
        if not shares or (synthetic is not None and not faster(synthetic, group)):
            continue  # where synthetic data is no faster, the wait costs nothing
        share, alone, beside = max(shares), loader_rate(group, runs), ""
        if synthetic is not None:
            ratio = estimate_ratio(synthetic.repeats(), group.repeats())
            beside = f" Synthetic data: {synthetic.rate}, {estimated(ratio)} of {group.rate}."
        if alone is not None:
            beside += f" The loader alone: {three_digits(alone)} images/s."
        advice = knobs_for(group, ("workers",), runs)
        if loader_keeps_up(group, runs):
            advice.append(
                "batches that are ready earlier, as the loader alone is faster than the step: "
                "cores that the step does not take from it, prefetch_factor, non_blocking"
            )
        elif group.first.settings.get("data") != FAKEDATA:
            advice.append("a faster disk")
        without = f", so {three_digits(1 / (1 - share))}x at most without it" if share < 1 else ""
        yield {
            "machine": group.env,
            "label": group.label,
            "share": percent(share),
            "gain": without,
            "beside": beside,
            "advice": f" Try {' or '.join(advice)}." if advice else "",
            "runs": names_of([group, *([synthetic] if synthetic else [])]),
        }


def _waits(run: Run) -> bool:
    """By the bound where the run has a place under the roof, else by the share that waits."""
    if run.point is not None:
        return run.point.bound == "input"
    return run.metrics.get("data_wait_share", 0.0) > INPUT_SHARE


# The knobs


def _has(group: Group, **values: str) -> bool:
    return values.items() <= group.first.settings.items()


def _off(group: Group, name: str) -> bool:
    """Whether by choice: `auto` leaves off what does not help the device."""
    return set(group.identity.asked_for(name)) == {"false"}


def _number(group: Group, name: str) -> int:
    return whole_number(group.first.settings.get(name)) or 0


def _cores(group: Group) -> int:
    """Cores of each process, of its device or else of the host; 0 if not known."""
    environment = group.first.record.environment if group.first.record else None
    if environment is None:
        return 0
    of_device = environment.device.cores if environment.device.backend == "cpu" else None
    return (of_device or environment.cpu_cores_usable) // (_number(group, "devices") or 1)


def _could_run_lower(group: Group) -> bool:
    """Whether a lower precision is new to a GPU; which processors have one is not known."""
    asked = {f"{name}"[:3] for name in group.identity.asked_for("precision")}
    return group.backend != "cpu" and group.precision in ("fp32", "tf32") and "amp" not in asked


_MORE = "more"


class _Knob(NamedTuple):
    """A setting; `words` name it for people.

    `to` is what it is turned to: a pattern of the value, or a larger number. `could` tells whether
    a group among runs could use it: it is not on yet, and the device has it. `with_it` are settings
    that follow.
    """

    words: str
    to: str
    could: Callable[[Group, Runs], bool]
    with_it: tuple[str, ...] = ()


_KNOBS: Mapping[str, _Knob] = {
    "threads": _Knob("threads for its idle cores", _MORE, lambda group, _: (
        group.backend == "cpu" and 0 < _number(group, "threads") < _cores(group))),
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
    "precision": _Knob("a lower precision, which has a roof of its own", "amp.*",
                       lambda group, _: _could_run_lower(group), OF_PRECISION),
    # a core is left to the step
    "workers": _Knob("more loader workers", _MORE, lambda group, runs: (
        _loads(group) and _number(group, "workers") < (_cores(group) or math.inf) - 1
        and not loader_keeps_up(group, runs)), ("prefetch_factor", "persistent_workers")),
}  # fmt: skip


def knobs_for(group: Group, names: Iterable[str], runs: Runs) -> list[str]:
    """Return in words which knobs of these names are worth turning for `group`.

    `runs` are searched for what was measured of them on that machine and model.
    """
    groups, worth = beside(group, runs).groups, []
    for name in names:
        knob, now = _KNOBS[name], group.first.settings.get(name)
        tried = _tried(name, now, groups)
        gains = [
            turned.samples_per_s / base.samples_per_s
            for base, turned in tried
            if base.first.settings.get(name) == now
        ]
        if all(faster(turned, base) for base, turned in tried) and (
            gains or knob.could(group, runs)
        ):
            worth.append(knob.words + (f" ({MEASURED} {times(max(gains))})" if gains else ""))
    return worth


def _tried(name: str, now: str | None, groups: Sequence[Group]) -> list[tuple[Group, Group]]:
    """Pairs that differ in the knob alone, the second turned further, one of them as it is `now`.

    Either may be: where turning it this far gained nothing, turning it further is no advice.
    """
    knob, pairs = _KNOBS[name], []
    for base, turned in permutations(groups, 2):
        old, new = (group.first.settings.get(name, "") for group in (base, turned))
        if knob.to == _MORE:
            further = (whole_number(new) or 0) > (whole_number(old) or 0)
        else:
            further = new != old and re.fullmatch(knob.to, new) is not None
        keys = (group.identity.key((name, *knob.with_it)) for group in (base, turned))
        if further and now in (old, new) and len(set(keys)) == 1:
            pairs.append((base, turned))
    return pairs


#: What may remove a part of a step, by its kind.
_KNOBS_OF: Mapping[Kind, tuple[str, ...]] = {
    "traffic": ("compile", "channels_last", "fused_optimizer", "precision"),
    "ops": ("threads", "channels_last", "precision", "batch_size", "compile"),
    "host": ("threads", "compile", "batch_size", "fused_optimizer"),
    "idle": ("cuda_graphs", "batch_size", "compile", "fused_optimizer"),
    "input": ("workers",),
    "communication": ("batch_size",),
}


def loss_of(group: Group, runs: Runs) -> tuple[str, str] | None:
    """Return the largest part of its step that can be removed, and what may do so, for people.

    By the account of its last run that has one. What was measured of a setting, in `runs`, stands
    beside it; the second is empty where each is on or was measured to gain nothing. None where no
    part is worth a word.
    """
    possible = [run for run in group.runs if run.verdict != "invalid"]
    for _, account in newest_accounts(possible):
        if part := largest_loss(account):
            costs = f"{percent(part.time_s / account.step_time_s)} of its step"
            said = f"{part.name[:1].upper()}{part.name[1:]} takes {costs}"
            if part.of_roof is not None:
                reaches = f"reaches {percent(part.of_roof)} of its roof, which costs {costs}"
                said = f"{part.short[:1].upper()}{part.short[1:]} {reaches}"
            knobs = knobs_for(group, _KNOBS_OF[part.kind], runs)
            untried = "" if any(MEASURED in words for words in knobs) else ", not tried here"
            return said, f"Next{untried}: {', '.join(knobs)}" if knobs else ""
    return None


def next_knob_rows(runs: Runs) -> Iterator[Row]:
    """Yield the fastest batch of each machine, model and precision that loses a part of its step.

    Not where each setting that may remove it is on or was measured to gain nothing, where fp32 was
    measured to be faster, and where waiting for data was measured to cost nothing.
    """
    no_gain = {real.names for real, same in synthetic_pairs(runs.groups) if not faster(same, real)}
    full = in_fp32(runs.groups)
    for group in fastest(group for group in runs.groups if group.points).values():
        in_full, loss = full.get(group.identity.key(OF_PRECISION)), loss_of(group, runs)
        slower = in_full is not None and in_full.samples_per_s > group.samples_per_s
        if loss is None or slower or (group.points[0].bound == "input" and group.names in no_gain):
            continue
        if loss[1]:
            yield {
                "machine": group.env,
                "label": group.label,
                "says": ". ".join(loss),
                "runs": group.names,
            }
