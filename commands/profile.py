"""`mlproject profile`: what one step of a configuration did inside, beside its timed run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from bench.config import RunConfig
from bench.errors import UserError
from bench.launcher.device_lock import crowding, device_names
from bench.launcher.profile import launch_profile
from bench.records import CeilingsRecord, ProfileRecord, RunRecord, ToolName
from bench.records.folders import RecordFolder, readable_records
from bench.records.journal import OnEvent
from commands.console.options import Configured, note, option
from commands.console.output import Answering, Result
from commands.console.recorded import Measuring, profile_facts, timed_record

if TYPE_CHECKING:
    from analysis.account import Account


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
        return self.measured(title, launch, facts, devices, account=self._account)

    def _account(self, profile: ProfileRecord) -> Account | None:
        """Where the time of the profiled step goes, under the roofs and beside its timed run."""
        from analysis.account import Account, account_of
        from analysis.runs.place import place_profiles, place_runs

        known = [record for _, record in readable_records(self.records)]
        ceilings = [one for one in known if isinstance(one, CeilingsRecord)]
        timed = [one for one in known if one.record_id == profile.timed_record_id]
        runs = place_runs([one for one in timed if isinstance(one, RunRecord)], ceilings)
        found = account_of(place_profiles([profile], runs, ceilings)[0])
        if isinstance(found, Account):
            return found
        if profile.ops is not None:  # else it is said that there are no times
            note(f"no account of the step's time: {found.reason}")
        return None

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
