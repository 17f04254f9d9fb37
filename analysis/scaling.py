"""What more devices give: the speed-up over one device, and where the rest of their time goes.

Weak scaling keeps the batch of each device, strong scaling that of the whole job. Both are read
from what was measured: a configuration on several devices is held against one device with the batch
that each of them has, and against one with the batch of all, as far as there are such runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import chain
from operator import attrgetter, sub
from typing import Literal, TypeAlias

from analysis.figures.chart import (
    KEY_GREY,
    Axis,
    Chart,
    Marks,
    Panel,
    hover,
    model_key,
    model_legend,
    rule,
)
from analysis.presentation.columns import C, Row
from analysis.presentation.table import RunList, grouped
from analysis.presentation.words import estimated, percent
from analysis.runs.groups import Group, Runs, group_verdict, names_of, ratio_row
from analysis.runs.run import Run
from analysis.runs.settings import same_configuration
from bench.config import rate_column
from bench.errors import Unknown
from bench.records import Environment
from bench.records.environment import same_device, same_power_limit
from bench.records.metrics import data_wait_share
from bench.statistics.ratios import RatioEstimate, estimate_ratio

Share: TypeAlias = "float | Unknown"
#: What a step on several devices loses, in words, by the column of its share of that step.
LOSSES: Mapping[str, str] = {
    "communication_share": "communication",
    "imbalance_share": "imbalance of ranks",
    "input_share": "input",
    "smaller_batches_share": "smaller batches",
    "slower_computing_share": "slower computing",
    "not_explained_share": "what is not explained",
}
#: In which a configuration on several devices may differ from that on one.
_OF_DEVICES = ("devices", "nodes", "env", "device", "batch_size")
_HOVERED = (C.ratio, C.ratio_interval, C.scaling_efficiency, C.communication_share,
            C.imbalance_share, C.input_share, C.smaller_batches_share, C.slower_computing_share,
            C.not_explained_share, C.note)  # fmt: skip
#: A smaller share is not worth words.
_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Scaling:
    """A configuration on several devices, and what it is held against.

    `single` is one device with the batch of each of them (weak scaling) or of all (strong), and
    `alike` is always one with the batch of each: None where that was not measured.
    """

    kind: Literal["weak", "strong"]
    many: Group
    single: Group
    alike: Group | None

    @property
    def devices(self) -> int:
        """The devices of all machines."""
        return self.many.first.config.world_size

    @cached_property
    def speed_up(self) -> RatioEstimate:
        """Samples/s over those of `single`."""
        return estimate_ratio(self.many.repeats(), self.single.repeats())

    @property
    def efficiency(self) -> float:
        """The speed-up over that of perfect devices: the share of the step that those need."""
        return self.speed_up.ratio / self.devices

    @cached_property
    def losses(self) -> dict[str, Share]:
        """What a step loses, by the keys of `LOSSES`: shares of it that the efficiency makes 1.

        n devices with r samples/s would need r / (n r_1) of their step if each was as fast as one
        with r_1. Of `single` that is the efficiency. Of `alike` it is more, by what smaller batches
        cost. The rest is slower computing, of devices that share cores, memory or power; where
        another part is not known it is not explained. Noise can put a part a little below 0.
        """
        base = self.alike or self.single
        needed = self.many.samples_per_s / (self.devices * base.samples_per_s)
        communication, imbalance, waits = _usual(self.many.runs)
        *_, alone = _usual(base.runs)
        smaller: Share = Unknown(f"one device with batch {self.many.batch_size} was not measured")
        if self.alike is not None:
            smaller = 0.0 if self.kind == "weak" else needed - self.efficiency
        if isinstance(waits, float):
            waits = waits - alone * needed if isinstance(alone, float) else alone
        shares = dict(zip(LOSSES, (communication, imbalance, waits, smaller), strict=False))
        known = [share for share in shares.values() if isinstance(share, float)]
        rest = "slower_computing" if len(known) == len(shares) else "not_explained"
        return {**shares, f"{rest}_share": 1 - self.efficiency - sum(known)}

    @property
    def names(self) -> tuple[str, ...]:
        """The ids of all its runs."""
        return names_of((self.many, self.single, self.alike or self.single))

    def row(self, rate: str) -> Row:
        """Return what tables say of it by the names of columns; `note` has why a fact is missing.

        `rate` is the rate's key, which all rows of a table share.
        """
        unknown = {name: of for name, of in self.losses.items() if isinstance(of, Unknown)}
        notes = [f"{LOSSES[name]}: {of.reason}" for name, of in unknown.items()]
        if not (ends := self.speed_up.interval):
            notes.append(f"no interval: {ends.reason}")
        ran, alone = self.many.identity.ran, self.single.identity.ran
        notes += [f"{name} {value}, on one device {alone.get(name)}" for name, value in ran.items()
                  if name not in _OF_DEVICES and value != alone.get(name)]  # fmt: skip
        return {
            **self.losses,
            **dict.fromkeys(unknown),
            **ratio_row(self.speed_up),
            "configuration": self.many.label,
            "scaling": self.kind,
            "devices": self.devices,
            "batch_on_one": self.single.batch_size,
            rate: self.many.samples_per_s,
            f"{rate}_on_one": self.single.samples_per_s,
            "scaling_efficiency": self.efficiency,
            "verdict": group_verdict(Group((*self.many.runs, *self.single.runs))),
            "note": "; ".join(notes) or None,
            "runs": RunList(self.names),
        }


def _usual(runs: Iterable[Run]) -> list[Share]:
    """The medians of what the repeats know of `_shares`; where none does, the first reason."""
    usual = []
    for shares in zip(*map(_shares, runs), strict=True):
        known = [share for share in shares if isinstance(share, float)]
        usual.append(statistics.median(known) if known else shares[0])
    return usual


def _shares(run: Run) -> tuple[Share, Share, Share]:
    """Communication, imbalance of ranks, and the wait for input, as shares of a step.

    The first two from the steps of each rank without the exchange, after the window; of a script,
    whose steps are not repeated, from those of the window and the waits in the exchange.
    """
    measured = run.record.measurement if run.record else None
    if measured is None:
        raise ValueError(f"run {run.name} was not measured here")
    waits, figures = data_wait_share(measured, None), measured.ranks
    known = Unknown(measured.missing["data_wait_s"]) if waits is None else waits
    if figures is None:
        return Unknown(measured.missing["ranks"]), Unknown(measured.missing["ranks"]), known
    ranks = figures.ranks
    if all(rank.data_wait_s and rank.iteration_times_s for rank in ranks):
        loads_s, steps_s = (
            sum(chain.from_iterable(getattr(rank, name) for rank in ranks))
            for name in ("data_wait_s", "iteration_times_s")
        )
        known = loads_s / steps_s
    synced_s, own_s = figures.synced_step_s, [rank.local_step_s or () for rank in ranks]
    if synced_s and all(own_s):
        return *_parted(synced_s, own_s, statistics.median), known
    window_s = ranks[0].iteration_times_s
    own_s = [
        tuple(map(sub, rank.iteration_times_s or (), rank.exchange_wait_s or ())) for rank in ranks
    ]
    if window_s and all(own_s):
        return *_parted(window_s, own_s, statistics.fmean), known
    why = Unknown(ranks[-1].missing.get("exchange_wait_s", "a rank has no steps"))
    communication = figures.communication_share
    return why if communication is None else communication, why, known


def _parted(
    steps_s: Sequence[float],
    own_s: Sequence[Sequence[float]],
    mean: Callable[[Sequence[float]], float],
) -> tuple[float, float]:
    """The shares of a step that its slowest rank does not need, and needs more than the mean."""
    step_s, steps = mean(steps_s), [*zip(*own_s, strict=True)]
    slowest_s = mean([max(step) for step in steps])
    beyond_s = mean([max(step) - statistics.fmean(step) for step in steps])
    return 1 - slowest_s / step_s, beyond_s / step_s


def scalings(runs: Runs) -> list[Scaling]:
    """Return every configuration on several devices that was also measured on one.

    It is the same on one device of the same kind. A setting that was asked for alike, such as
    `threads=auto`, may have become another. Of several the newest of the same machine counts.
    """
    groups = [group for group in runs.groups if all(map(_environment, group.runs))]
    singles = [group for group in groups if group.first.config.world_size == 1]
    found: list[Scaling] = []
    for many in groups:
        devices, batch = many.first.config.world_size, many.batch_size
        if devices == 1 or batch is None:
            continue
        pairs = [pair for single in singles if (pair := _on_one_device(many, single)).runs]
        pairs.sort(key=lambda pair: (pair.env == many.env, *_newest(pair)))
        by_batch = {pair.batch_size: pair for pair in pairs}
        alike, whole = by_batch.get(batch), by_batch.get(devices * batch)
        found += [Scaling("weak", many, alike, alike)] if alike else []
        found += [Scaling("strong", many, whole, alike)] if whole else []
    return sorted(found, key=lambda of: (of.kind == "strong", of.single.label, of.devices))


def _environment(run: Run) -> Environment | None:
    return run.record.environment if run.record else None


def _newest(group: Group) -> list[datetime]:
    return [max(run.record.created for run in group.runs if run.record)]


def _on_one_device(many: Group, single: Group) -> Group:
    """The runs of `single` that `many` can be held against; there may be none."""
    if not same_configuration(many.identity, single.identity, _OF_DEVICES, by="asked"):
        return Group(())
    ours = _environment(many.first)
    return Group(tuple(run for run in single.runs if _same_kind(_environment(run), ours)))


def _same_kind(theirs: Environment | None, ours: Environment | None) -> bool:
    """The same device, or another of a machine whose devices are all of that name."""
    if theirs is None or ours is None:
        return False
    kind = attrgetter("device.backend", "device.name", "cpu_signature", "cpu_model", "machine")
    alike = same_device(theirs, ours) or (
        theirs.device.uuid is not None and kind(theirs) == kind(ours)
    )
    return alike and same_power_limit(theirs.device.power_limit_w, ours.device.power_limit_w)


def scaling_rows(runs: Runs) -> Iterator[Row]:
    """Yield the facts of a sentence for each configuration on several devices."""
    for scaling in scalings(runs):
        known = {LOSSES[k]: v for k, v in scaling.losses.items() if isinstance(v, float)}
        largest = sorted(known, key=lambda name: -known[name])
        lost = [f"{percent(known[name])} to {name}" for name in largest
                if known[name] > _LEAST_SHARE]  # fmt: skip
        yield {
            "machine": scaling.many.env,
            "label": scaling.many.label,
            "unit": scaling.many.first.rate_unit,
            "batch": scaling.single.batch_size,
            "kind": scaling.kind,
            "devices": scaling.devices,
            "speed_up": estimated(scaling.speed_up),
            "efficiency": percent(scaling.efficiency),
            "lost": f" Of its step go {', '.join(lost)}." if lost else "",
            "runs": scaling.names,
        }


def scaling_charts(found: Sequence[Scaling], colours: Mapping[str, str]) -> dict[str, Chart]:
    """Return the speed-up over devices, and the ideal, of weak and of strong scaling by its kind.

    Beside the points stand their efficiencies, and at the end of a line the batch of one device.
    Few repeats can have an interval that ends beyond the axes.
    """
    kinds = grouped(found, lambda scaling: scaling.kind)
    return {kind: _chart(those, colours) for kind, those in kinds.items()}


def _chart(found: Sequence[Scaling], colours: Mapping[str, str]) -> Chart:
    lines = grouped(found, lambda scaling: scaling.single.names).values()
    series = [mark for those in lines for mark in _series(those, colours)]
    counts = sorted({1, *(scaling.devices for scaling in found)})
    most, highest = counts[-1], max(scaling.speed_up.ratio for scaling in found)
    margin, ticks = 0.12 * (most - 1), {float(count): f"{count}" for count in counts}
    panel = Panel(
        x=Axis(label="Devices", limits=(1 - margin, most + margin), ticks=ticks),
        y=Axis(label="Speed-up over one device", limits=(0.0, 1.25 * max(most, highest))),
        series=(rule((1, most), (1, most), KEY_GREY, "ideal", "ideal", dashed=True), *series),
        legend=(*model_legend(series), Marks("ideal", KEY_GREY, line_pt=0.7, dashed=True)),
    )
    return Chart((panel,), 3.6, 2.9)


def _series(found: Sequence[Scaling], colours: Mapping[str, str]) -> Iterator[Marks]:
    """The line from one device on, and the interval of each of its points."""
    names = ["", *(percent(scaling.efficiency) for scaling in found)]
    names[-1] = f"batch {found[0].single.batch_size}: {names[-1]}"
    rate = rate_column(found[0].many.sample)
    line = model_key(
        found[0].many,
        colours,
        xs=(1.0, *(float(scaling.devices) for scaling in found)),
        ys=(1.0, *(scaling.speed_up.ratio for scaling in found)),
        line_pt=1.4,
        names=tuple(names),
        hover=(found[0].single.label,
               *(hover(of.many.label, of.row(rate), _HOVERED) for of in found)),
    )  # fmt: skip
    for scaling in found:
        if ends := scaling.speed_up.interval:
            xs = (float(scaling.devices),) * 2
            yield replace(line, xs=xs, ys=tuple(ends), shape="", names=(), hover=(), line_pt=0.9)
    yield line
