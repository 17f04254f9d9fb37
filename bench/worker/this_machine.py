"""This machine's devices and their roofs, for the launcher, which never imports torch."""

from __future__ import annotations

import json
from datetime import datetime, timezone

from bench.errors import UnsupportedError
from bench.machine import read_environment
from bench.records import (
    Backend,
    CacheRoof,
    Ceiling,
    CeilingSample,
    CeilingsRecord,
    Environment,
    Machine,
)
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.training.devices import Device, open_device
from bench.worker.outcome import attempt

_BACKENDS: tuple[Backend, ...] = ("cuda", "mps", "cpu")


def identify(folder: RecordFolder, journal: JournalWriter) -> None:
    """Write the environment of every device that can be opened to `worker.json`."""
    label = json.loads(folder.config.read_text(encoding="utf-8"))["env"]
    folder.write(folder.worker, Machine(environments=tuple(_found(folder, label))))


def _found(folder: RecordFolder, label: str) -> list[Environment]:
    found = []
    for backend in _BACKENDS:
        try:
            device = open_device(backend)
        except UnsupportedError:
            continue
        found.append(read_environment(device.info(), folder.path, label))
    return found


def measure_roofs(folder: RecordFolder, journal: JournalWriter) -> None:
    """Measure the roofs of the device named in `folder` and write `worker.json`."""
    from bench.roofs import measure_cache_roofs, measure_ceilings  # `identify` needs none of it

    backend = json.loads(folder.config.read_text(encoding="utf-8"))["backend"]
    created = datetime.now(timezone.utc)
    device: Device | None = None
    ceilings: tuple[Ceiling, ...] = ()
    samples: tuple[CeilingSample, ...] = ()
    cache_roofs: tuple[CacheRoof, ...] = ()

    def progress(probe: str) -> None:
        journal.note("probe", probe=probe)

    def work() -> None:
        nonlocal device, ceilings, samples, cache_roofs
        device = open_device(backend)
        journal.note("device", backend=device.backend, uuid=device.info().uuid)
        ceilings, samples = measure_ceilings(device, progress=progress)
        cache_roofs = measure_cache_roofs(device, progress=progress)

    outcome, reason = attempt(work)
    journal.note("ended", outcome=outcome)
    environment = read_environment(device.info(), folder.path, "auto") if device else None
    missing = dict.fromkeys(("telemetry", "verdict"), "known to the launching process")
    if reason is None:
        missing["reason"] = "the outcome is ok"
    if environment is None:
        missing["environment"] = "no device was opened"
    folder.release_reserve()
    folder.write(
        folder.worker,
        CeilingsRecord(
            record_id=folder.record_id,
            created=created,
            outcome=outcome,
            reason=reason,
            environment=environment,
            ceilings=ceilings,
            samples=samples,
            cache_roofs=cache_roofs,
            telemetry=None,
            verdict=None,
            missing=missing,
        ),
    )
