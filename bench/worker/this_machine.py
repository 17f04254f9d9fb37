"""This machine's devices and their roofs, for the launcher, which never imports torch."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from bench.errors import UnsupportedError
from bench.machine import read_environment
from bench.records import Backend, Environment
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.training.devices import Device, open_device
from bench.worker.attempt import Attempt

_BACKENDS: tuple[Backend, ...] = ("cuda", "mps", "cpu")


class MachineAttempt(Attempt):
    """Gives the environment of every device that can be opened."""

    def __init__(self, folder: RecordFolder, journal: JournalWriter) -> None:
        super().__init__(folder, journal)
        self._found: list[Environment] = []

    @override
    def run(self) -> None:
        for backend in _BACKENDS:
            try:
                device = open_device(backend)
            except UnsupportedError:
                continue
            label = self.job.config.env
            self._found.append(read_environment(device.info(), self.folder.path, label))

    @override
    def facts(self) -> dict[str, Any]:
        return {"environments": tuple(self._found)}


class RoofsAttempt(Attempt):
    """Measures the roofs of the job's backend."""

    def __init__(self, folder: RecordFolder, journal: JournalWriter) -> None:
        super().__init__(folder, journal)
        self._device: Device | None = None
        self._roofs: dict[str, tuple[Any, ...]] = {}

    @override
    def run(self) -> None:
        from bench.roofs import measure_cache_roofs, measure_ceilings  # for these roofs alone

        def progress(probe: str) -> None:
            self.journal.note("probe", probe=probe)

        device = self._device = open_device(self.job.config.backend)
        self.journal.note("device", backend=device.backend, uuid=device.info().uuid)
        ceilings, samples = measure_ceilings(device, progress=progress)
        self._roofs = {"ceilings": ceilings, "samples": samples}
        self._roofs["cache_roofs"] = measure_cache_roofs(device, progress=progress)

    @override
    def facts(self) -> dict[str, Any]:
        if self._device is None:
            return {}
        environment = read_environment(self._device.info(), self.folder.path, "auto")
        return {"environment": environment, **self._roofs}
