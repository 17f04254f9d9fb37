"""`mlproject baseline`: runs under a name, kept on the tracking server."""

from __future__ import annotations

from dataclasses import asdict

from analysis.presentation.words import counted
from bench.errors import UserError
from commands.console.options import Command, argument, say_unreadable, server_needed
from commands.console.output import Answering, Output, Shown, table_of


class Set(Shown, Answering):
    """Let NAME mean the runs of SIDE as they are now; a side is what mlproject compare takes."""

    name: str = argument()
    side: str = argument()

    def _result(self) -> Output:
        from analysis import group_runs
        from analysis.comparison import read_side
        from tracking.baselines import set_baseline

        with server_needed():
            runs = read_side(self.side, say_unreadable)
            if on_disk := [run for run in runs if run.name == run.record_id]:
                raise UserError(
                    f"{self.side!r}: record {on_disk[0].name} is on disk; a baseline is of tracked "
                    "runs, so upload it with mlproject sync"
                )
            groups = group_runs(runs)
            if not groups:
                raise UserError(f"{self.side!r}: none of {counted(len(runs), 'run')} has a result")
            found = set_baseline(self.name, self.side, [run.name for run in runs])
        of = f"{counted(len(runs), 'run')} of {counted(len(groups), 'configuration')}"
        return Output([f"baseline {self.name}: {of} ({self.side})"], asdict(found))


class List(Shown, Answering):
    """List the baselines."""

    def _result(self) -> Output:
        from analysis.presentation.table import RunList
        from tracking.baselines import all_baselines

        with server_needed():
            found = [asdict(one) for one in all_baselines()]
        columns = {
            "name": "name",
            "side": "set to",
            "set_at": ("at (UTC)", lambda at: at[:16].replace("T", " ")),
            "run_ids": ("runs", lambda runs: f"{len(runs.names)}"),
        }
        rows = [one | {"run_ids": RunList(one["run_ids"])} for one in found]
        return Output([table_of("baselines", rows, columns)], found)


class Remove(Shown, Answering):
    """Forget NAME; its runs stay."""

    name: str = argument()

    def _result(self) -> Output:
        from tracking.baselines import remove_baseline

        with server_needed():
            found = remove_baseline(self.name)
        line = f"baseline {self.name}: removed; its {counted(len(found.run_ids), 'run')} stay"
        return Output([line], asdict(found))


class Baseline(Command):
    """Keep runs under a name on the server, for mlproject compare.

    It takes baseline=NAME. A name means the runs that it was set to, and never moves by itself. It
    is kept on the tracking server, in the experiment that MLflow's variables name.
    """

    parts = (Set, List, Remove)
