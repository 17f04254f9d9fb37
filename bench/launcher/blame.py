"""Which of several ranks a measurement failed by, from the accounts that they left."""

from __future__ import annotations

from bench.records import RankAccount, RunRecord
from bench.records.folders import RecordFolder


def blamed(folder: RecordFolder, record: RunRecord) -> RunRecord:
    """Return `record` with the outcome and the reason of the rank that failed first.

    When one rank ends, the others lose their connection to it, and rank 0 tells of nothing else.
    A measurement on one device, or one that went well, is returned as it is.
    """
    failed = [account for account in folder.read_ranks() if account.outcome != "ok"]
    if record.outcome == "ok" or not failed:
        return record
    first = min(failed, key=_weight)
    alike = all(account.reason == first.reason for account in failed)
    together = alike and len(failed) == record.config.world_size
    reason = first.reason if together else f"rank {first.rank}: {first.reason}"
    told = {name: getattr(record, name) for name in RunRecord.model_fields}
    return RunRecord(**{**told, "outcome": first.outcome, "reason": reason})


def _weight(account: RankAccount) -> tuple[int, float]:
    """First who failed by itself, then who was killed, and last who only lost the others.

    Who was killed comes second, since a rank may abort over the loss of another. An interrupt is
    how the elastic launcher ends the ranks that have not failed.
    """
    if account.outcome == "interrupted":
        return 2, account.ended_unix_s
    return {"own": 0, "killed": 1, "lost": 3}[account.cause], account.ended_unix_s
