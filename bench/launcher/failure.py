"""Why a measurement on several devices failed, from the accounts that its ranks left."""

from __future__ import annotations

from bench.records import Outcome, RankAccount, RunRecord
from bench.records.folders import RecordFolder


def failure_cause(folder: RecordFolder, record: RunRecord) -> tuple[Outcome, str | None]:
    """Return the outcome and the reason of the rank that failed first.

    When one rank ends, the others lose their connection to it, and rank 0 reports only that. A
    measurement on one device, or one that went well, keeps the outcome and reason of `record`.
    """
    failed = [account for account in folder.read_ranks() if account.outcome != "ok"]
    if record.outcome == "ok" or not failed:
        return record.outcome, record.reason
    first = min(failed, key=_precedence)
    alike = all(account.reason == first.reason for account in failed)
    together = alike and len(failed) == record.config.world_size
    return first.outcome, first.reason if together else f"rank {first.rank}: {first.reason}"


def _precedence(account: RankAccount) -> tuple[int, float]:
    """Ranks that failed by themselves, then those killed, and last those that lost the others.

    A killed rank comes second, since a rank may abort over the loss of another. An interrupt is
    how the elastic launcher ends the ranks that have not failed.
    """
    if account.outcome == "interrupted":
        return 2, account.ended_unix_s
    return {"own": 0, "killed": 1, "lost": 3}[account.cause], account.ended_unix_s
