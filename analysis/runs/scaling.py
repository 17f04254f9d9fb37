"""How well a measurement on several devices uses them, against the same on one of them."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.roofs.devices import same_device, same_power_limit
from bench.records import Environment, RunRecord


def scaling_efficiency(many: RunRecord, one: RunRecord) -> float:
    """Return the throughput of `many` over that of its devices if each did as well as `one`.

    1 is perfect (weak scaling: the batch of each device is that of `one`). On a CPU the processes
    share the cores that `one` had to itself, so n of them reach about 1/n of it at best. Raises
    `ValueError` where the two are no pair, or one of them has no window.
    """
    if many.config.world_size == 1 or _on_one_device(many) != one.config.config_id:
        raise ValueError(f"{one.record_id} is not {many.record_id} on one device")
    if many.measurement is None or one.measurement is None:
        raise ValueError("scaling efficiency needs two measured windows")
    alone = one.measurement.throughput_images_per_s
    return many.measurement.throughput_images_per_s / (many.config.world_size * alone)


def on_one_device(many: RunRecord, records: Sequence[RunRecord]) -> RunRecord | None:
    """Return the run that `many` is held against, or None where there is none.

    The same configuration on one device of the same kind, measured to its end: the same repeat
    where there is one, else the newest.
    """
    if many.config.world_size == 1 or many.environment is None:
        return None
    wanted, environment = _on_one_device(many), many.environment
    pairs = [
        record
        for record in records
        if record.config.config_id == wanted
        and record.outcome == "ok"
        and record.environment is not None
        and _same_kind(record.environment, environment)
    ]
    repeat = many.config.repeat
    return max(pairs, key=lambda one: (one.config.repeat == repeat, one.created), default=None)


def _on_one_device(many: RunRecord) -> str:
    return many.config.model_copy(update={"devices": 1, "nodes": 1}).config_id


def _same_kind(theirs: Environment, ours: Environment) -> bool:
    """The same device, or another of a machine whose devices are all of that name."""
    alike = same_device(theirs, ours) or (
        theirs.device.uuid is not None
        and (
            theirs.device.backend,
            theirs.device.name,
            theirs.cpu_signature,
            theirs.cpu_model,
            theirs.machine,
        )
        == (ours.device.backend, ours.device.name, ours.cpu_signature, ours.cpu_model, ours.machine)
    )
    return alike and same_power_limit(theirs.device, ours.device)
