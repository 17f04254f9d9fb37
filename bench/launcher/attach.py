"""Counters that were collected by hand, kept as a profile of the measurement that they explain."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from bench.errors import UserError
from bench.launcher.exports import write_exports
from bench.profilers.files.ncu_read import read_counters, read_counters_of
from bench.records import ProfileRecord, RunRecord
from bench.records.folders import RecordFolder
from bench.records.verdict.profile_verdict import judge_profile, kernel_set

_BY_HAND = "the counters were collected by hand"


def attach_counters(files: Sequence[Path], timed: RunRecord, records: Path) -> RecordFolder:
    """Keep the counters in `files` of Nsight Compute as a profile of `timed`; return its folder.

    Several files are passes over the same launches. The launches are held against those of the
    timed step, as a profile's are. Raises `UserError` for a file that cannot be read, or a
    measurement that ran on no CUDA device.
    """
    backend = timed.resolved.backend if timed.resolved is not None else None
    if backend != "cuda":
        raise UserError(
            f"attach={timed.record_id!r}: ncu counts on NVIDIA GPUs, and this step ran on "
            f"{backend or 'no device'}"
        )
    counters = read_counters(files[0]) if len(files) == 1 else read_counters_of(files)
    folder = RecordFolder.create(records)
    kept = folder.path / "ncu"
    kept.mkdir()
    names = [f"{n}-{file.name}" if len(files) > 1 else file.name for n, file in enumerate(files, 1)]
    for file, name in zip(files, names, strict=True):
        shutil.copyfile(file, kept / name)
    record = ProfileRecord.of(
        _BY_HAND,
        {"reason": "the outcome is ok", "verdict": "not judged yet"},
        record_id=folder.record_id,
        created=datetime.now(timezone.utc),
        config=timed.config,
        config_id=timed.config_id,
        outcome="ok",
        timed_record_id=timed.record_id,
        environment=timed.environment,
        resolved=timed.resolved,
        complexity=timed.complexity,
        work=kernel_set(counters),
        counters=counters.replaced(files=tuple(f"ncu/{name}" for name in names)),
    )
    whole = record.replaced(verdict=judge_profile(record, timed))
    folder.close(whole)
    write_exports(folder, whole)
    return folder
