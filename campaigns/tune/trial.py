"""One measured run of a tuning, and whoever looks on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bench.config import RunConfig
from bench.records import RunRecord

if TYPE_CHECKING:
    from campaigns.tune.result import Duel

Stage = Literal["start", "search", "confirmation"]


@dataclass(frozen=True)
class Trial:
    """One measured run of a tuning; `number` counts from 1."""

    number: int
    stage: Stage
    record: RunRecord
    took_s: float
    fresh: bool  # measured now, and not by an earlier session

    @property
    def config(self) -> RunConfig:
        """What was measured."""
        return self.record.config

    @property
    def config_id(self) -> str:
        """What was measured, as an identifier."""
        return self.record.config_id

    @property
    def images_per_s(self) -> float | None:
        """Throughput, or None where nothing whole was measured."""
        measured = self.record.measurement
        if self.record.outcome != "ok" or measured is None:
            return None
        return measured.throughput_images_per_s

    @property
    def is_doubtful(self) -> bool:
        """Whether the run was whole and its verdict is not clean."""
        verdict = self.record.verdict
        return self.record.outcome == "ok" and verdict is not None and verdict.level != "clean"

    @property
    def failure(self) -> str | None:
        """Why nothing whole was measured, or None."""
        if self.record.outcome == "ok":
            return None
        if self.record.outcome == "interrupted":
            return f"took longer than the {self.took_s:.0f} s that one trial may"
        return f"{self.record.outcome}: {self.record.reason}"


class TuneWatch:
    """Whoever looks on; the base looks away."""

    def starting(self, config: RunConfig) -> None:
        """A trial is about to be measured."""

    def ended(self, trial: Trial) -> None:
        """A trial is through, or was found in the archive."""

    def ruled(self, duel: Duel) -> None:
        """A value of a knob was compared with the fastest setting so far."""
