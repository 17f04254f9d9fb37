"""`mlproject profile`: what one step of a configuration did inside, beside its timed run."""

from __future__ import annotations

from typing import Any, Literal, cast

from bench.config import RunConfig
from bench.errors import UserError
from bench.launcher.device_lock import crowding, device_names
from bench.launcher.profile import launch_profile
from bench.records import ProfileRecord, RunRecord, ToolName
from bench.records.folders import RecordFolder
from bench.records.journal import OnEvent
from commands.console.options import Configured, option
from commands.console.output import Answering, Result
from commands.console.recorded import Measuring, profile_facts, timed_record


class Profile(Configured, Measuring, Answering):
    """Look inside one step: time per op, and the device's counters.

    The profile of a configuration is a tracked run linked to the timed one.
    Each tool examines a fresh worker after its warm-up: one step for ncu, a few for PyTorch's
    profiler, the whole window for perf. A tool that was asked for by name and cannot work here ends
    with 2.
    """

    tool: tuple[Literal["auto", "torch", "ncu", "perf"], ...] = option(
        "torch: time per op; ncu: an NVIDIA GPU's counters; perf: a Linux CPU's; auto: torch, and "
        "the counters that this machine has",
        ("auto",),
    )
    of: str | None = option(
        "profile the configuration of this record, and explain that run: its name in --records, "
        "its folder, or its run's id in MLflow",
        metavar="RECORD",
    )

    def _result(self) -> Result:
        config, timed = self._asked()
        if config.nodes > 1:
            raise UserError(f"nodes={config.nodes}: a profile is of one machine; use nodes=1")
        if config.data_only:
            raise UserError(
                "data_only=true: a profile looks at a training step; use data_only=false"
            )
        if crowded := crowding(config):
            raise UserError(crowded)
        names = None if "auto" in self.tool else cast(tuple[ToolName, ...], self.tool)

        def launch(folder: RecordFolder, on_event: OnEvent) -> ProfileRecord:
            return launch_profile(config, folder, names, timed, on_event)

        def facts(record: ProfileRecord) -> dict[str, Any]:
            ops = str(self.records / record.record_id / "ops.csv")
            return profile_facts(record) | ({} if record.ops is None else {"ops": ops})

        title = f"{config.arch} {config.precision}"
        devices = device_names(config.backend, config.devices)
        return self.measured(title, launch, facts, devices)

    def _asked(self) -> tuple[RunConfig, RunRecord | None]:
        if self.of is None:
            return self.config(), None
        if given := [name for name in self.settings if name in self.given]:
            raise UserError(
                f"{given[0]}={self.settings[given[0]]!r}: --of takes the configuration from the "
                "record; give one or the other"
            )
        timed = timed_record(self.of, self.records, "of")
        return timed.config, timed
