"""How several devices scale against one, by runs of one configuration."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from analysis.runs.groups import Group, agree
from analysis.runs.run import Run
from bench.records import Environment, RunRecord
from bench.records.environment import same_device, same_power_limit
from bench.records.verdict.step_settings import settings_of


def scaling_efficiency(many: RunRecord, one: RunRecord) -> float:
    """Return the throughput of `many` over that of its devices if each did as well as `one`.

    1 is perfect (weak scaling: the batch of each device is that of `one`). On a CPU the processes
    share the cores that `one` had to itself, so n of them reach about 1/n of it at best. Raises
    `ValueError` where the two are no pair, or one of them has no window.
    """
    if many.config.world_size == 1 or not _alike_but_for_devices(many, one):
        raise ValueError(f"{one.record_id} is not {many.record_id} on one device")
    if many.measurement is None or one.measurement is None:
        raise ValueError("scaling efficiency needs two measured windows")
    alone = one.measurement.throughput_samples_per_s
    return many.measurement.throughput_samples_per_s / (many.config.world_size * alone)


def on_one_device(many: RunRecord, records: Sequence[RunRecord]) -> RunRecord | None:
    """Return the run that `many` is held against, or None where there is none.

    The same configuration on one device of the same kind, measured to its end: the same repeat
    where there is one, else the newest.
    """
    if many.config.world_size == 1 or many.environment is None:
        return None
    environment = many.environment
    pairs = [
        record
        for record in records
        if record.outcome == "ok"
        and _alike_but_for_devices(many, record)
        and record.environment is not None
        and _same_kind(record.environment, environment)
    ]
    repeat = many.config.repeat
    return max(pairs, key=lambda one: (one.config.repeat == repeat, one.created), default=None)


def _alike_but_for_devices(many: RunRecord, one: RunRecord) -> bool:
    """Whether `one` ran on one device what `many` ran on several, but for each device's share.

    A setting that was asked for alike, such as `threads=auto`, may have become another: the
    processes of one machine share its cores. Batch, image size and sequence length are what ran.
    """
    if one.config.world_size != 1:
        return False
    return agree(
        _unplaced(many), _unplaced(one), ("devices", "nodes", "env", "device"), as_asked=True
    )


def _unplaced(record: RunRecord) -> Group:
    settings, asked = settings_of(record)
    return Group((Run(name=record.record_id, settings=settings, asked=asked, metrics={}),))


def _same_kind(theirs: Environment, ours: Environment) -> bool:
    """The same device, or another of a machine whose devices are all of that name."""
    kind = attrgetter("device.backend", "device.name", "cpu_signature", "cpu_model", "machine")
    alike = same_device(theirs, ours) or (
        theirs.device.uuid is not None and kind(theirs) == kind(ours)
    )
    return alike and same_power_limit(theirs.device.power_limit_w, ours.device.power_limit_w)
