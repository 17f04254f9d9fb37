"""This machine's devices and their roofs, for the launcher, which never imports torch."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from bench.errors import UnsupportedError
from bench.machine import read_environment
from bench.records import Backend, CeilingsRecord, Environment, Machine
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.training.devices import Device, open_device
from bench.worker.outcome import attempt

_BACKENDS: tuple[Backend, ...] = ("cuda", "mps", "cpu")


def identify(folder: RecordFolder, journal: JournalWriter) -> None:
    """Write the environment of every device that can be opened to `worker.json`."""
    label = json.loads(folder.config.read_text(encoding="utf-8"))["env"]
    found: list[Environment] = []
    for backend in _BACKENDS:
        try:
            device = open_device(backend)
        except UnsupportedError:
            continue
        found.append(read_environment(device.info(), folder.path, label))
    folder.write(folder.worker, Machine(environments=tuple(found)))


def measure_roofs(folder: RecordFolder, journal: JournalWriter) -> None:
    """Measure the roofs of the device named in `folder` and write `worker.json`."""
    from bench.roofs import measure_cache_roofs, measure_ceilings  # `identify` needs none of it

    backend = json.loads(folder.config.read_text(encoding="utf-8"))["backend"]
    created = datetime.now(timezone.utc)
    device: Device | None = None
    roofs: dict[str, tuple[Any, ...]] = dict.fromkeys(("ceilings", "samples", "cache_roofs"), ())

    def progress(probe: str) -> None:
        journal.note("probe", probe=probe)

    def work() -> None:
        nonlocal device
        device = open_device(backend)
        journal.note("device", backend=device.backend, uuid=device.info().uuid)
        roofs["ceilings"], roofs["samples"] = measure_ceilings(device, progress=progress)
        roofs["cache_roofs"] = measure_cache_roofs(device, progress=progress)

    outcome, reason = attempt(work)
    journal.note("ended", outcome=outcome)
    record = CeilingsRecord.of(
        "the outcome is ok" if reason is None else "no device was opened",
        dict.fromkeys(("telemetry", "verdict"), "known to the launching process"),
        record_id=folder.record_id,
        created=created,
        outcome=outcome,
        reason=reason,
        environment=read_environment(device.info(), folder.path, "auto") if device else None,
        **roofs,
    )
    folder.release_reserve()
    folder.write(folder.worker, record)
