"""Which devices this machine has, told by a fresh process: the launcher never imports torch."""

from __future__ import annotations

import json

from bench.errors import UnsupportedError
from bench.machine import read_environment
from bench.records import Backend, Environment, Machine
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.training.devices import open_device

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
