"""This machine's devices, asked of a fresh process before a sweep starts."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from bench.config import RunConfig
from bench.errors import UserError
from bench.launcher.watch import WorkerWatch
from bench.records import Environment, Machine
from bench.records.folders import RecordFolder, write_atomically
from bench.records.journal import ignore


def identify_machine(env: str = "auto") -> tuple[Environment, ...]:
    """Return the environment of every device here, the one that `auto` takes first.

    Takes the few seconds of an import of torch. Raises `UserError` where that fails.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = RecordFolder.create(Path(temporary), "machine")
        write_atomically(folder.config, json.dumps({"env": env}))
        watch = WorkerWatch("identify", folder, ignore)
        watch.wait()
        account = folder.read_worker()
        if isinstance(account, Machine):
            return account.environments
        outcome, reason = watch.death()
    if outcome == "interrupted":
        raise KeyboardInterrupt
    raise UserError(f"no worker can start here: {reason}; mlproject doctor says more")


def environment_of(config: RunConfig, environments: tuple[Environment, ...]) -> Environment:
    """Return the environment that `config` is measured on."""
    if config.backend == "auto":
        return environments[0]
    return next(each for each in environments if each.device.backend == config.backend)
