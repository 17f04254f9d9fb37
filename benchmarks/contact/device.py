"""A device that is met for the first time: what is measured on it, into one folder of records."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT))

from bench import RunConfig, UserError, measure, measure_roofs  # noqa: E402
from bench.launcher.profile import launch_profile  # noqa: E402
from bench.records import CeilingsRecord, ProfileRecord, RunRecord  # noqa: E402
from bench.records.folders import RecordFolder  # noqa: E402


class CannotTellError(Exception):
    """Why this machine cannot answer a check."""


class Contact:
    """Measures on one device into one folder of records."""

    def __init__(self, backend: str, out: Path) -> None:
        self.backend = backend
        self.records = out / "records"
        on_gpu = backend == "cuda"
        self._usual: dict[str, Any] = {
            "backend": backend,
            "campaign": "first-contact",
            "arch": "resnet50" if on_gpu else "resnet18",
            "batch_size": 256 if on_gpu else 4,
            "image_size": 224 if on_gpu else 64,
            "iters": 50 if on_gpu else 10,
            "warmup_iters": 5 if on_gpu else 2,
            "max_seconds": 10,
        }
        self._known: dict[RunConfig, RunRecord] = {}

    def config(self, **settings: Any) -> RunConfig:
        """Return the usual configuration with these settings."""
        return RunConfig(**{**self._usual, **settings})

    def run(self, **settings: Any) -> RunRecord:
        """Measure, once for equal settings; raise `UserError` for what is refused."""
        config = self.config(**settings)
        if config not in self._known:
            self._known[config] = measure(config, records=self.records)
        return self._known[config]

    @cached_property
    def roofs(self) -> CeilingsRecord:
        """The device's roofs, measured when they are first asked for."""
        return measure_roofs(self.backend, records=self.records)

    def refusal(self, **settings: Any) -> str:
        """Return why these settings are refused, or how their run ended."""
        try:
            record = self.run(**settings)
        except UserError as error:
            return f"refused: {error}"
        return f"{record.outcome}: {record.reason}"

    def profile(self, tool: Any, **settings: Any) -> ProfileRecord:
        """Look into a step of what `run` measured."""
        timed = self.run(**settings)
        return launch_profile(timed.config, RecordFolder.create(self.records), (tool,), timed)

    def only_on_cuda(self) -> None:
        """Raise `CannotTellError` on another backend."""
        if self.backend != "cuda":
            raise CannotTellError("needs an NVIDIA GPU")


def printed_by(code: str, *arguments: str) -> Any:
    """Return the JSON that Python code prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return json.loads(done.stdout)
