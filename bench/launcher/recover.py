"""Records whose launching process died: what the worker left is made whole, never lost."""

from __future__ import annotations

import json
from datetime import datetime, timezone

from bench.config import recorded_config
from bench.errors import UserError
from bench.launcher.measurement import finish, unmeasured
from bench.launcher.profile import recover_profile
from bench.records import CeilingsRecord, RunRecord
from bench.records.folders import AnyRecord, RecordFolder


def recover(folder: RecordFolder) -> AnyRecord | None:
    """Return the folder's record, made from the worker's account if the launcher died.

    Where neither process got to write, the record says that the attempt was interrupted. None
    while the processes still run. Raises `UserError` for what this version cannot read.
    """
    record = folder.read_record()
    if record is not None or folder.in_use():
        return record
    record = folder.read_record()
    if record is not None:  # written, and the folder left, since the first look
        return record
    try:
        return _recovered(folder)
    except (ValueError, RecursionError) as error:  # pydantic's and json's are ValueErrors
        line = str(error).splitlines()[-1].strip() if str(error) else type(error).__name__
        raise UserError(
            f"{folder.path}: what its processes left is not of this version ({line[:200]}); "
            "move the folder away, or recover it with the version that wrote it"
        ) from None


def _recovered(folder: RecordFolder) -> AnyRecord | None:
    asked_at = datetime.fromtimestamp(folder.config.stat().st_mtime, timezone.utc)
    asked = json.loads(folder.config.read_text(encoding="utf-8"))
    if not isinstance(asked, dict):
        raise ValueError("config.json holds no configuration")
    if asked.get("kind") == "profile":
        return recover_profile(folder, recorded_config(asked["config"]), asked_at)
    account = folder.read_worker()
    if isinstance(account, CeilingsRecord):
        return finish(folder, account, "the worker did not get that far", telemetry=None)
    if asked.get("kind") == "ceilings":
        return None  # nothing measured, nothing asked for that could be named
    reason = "the launching process ended before the measurement did"
    if not isinstance(account, RunRecord):
        config = recorded_config(asked)
        account = unmeasured(config, folder, "interrupted", reason, asked_at)
    return finish(folder, account, reason, process=None, telemetry=None)
