"""`mlproject sync`: what a dead server, or a dead process, left on disk goes to the server."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import click

from bench.errors import UserError, fault_line, printable
from commands import NOT_TRACKED
from commands.console.options import CopiedRuns, WithRecords, note, option
from commands.console.output import Formatted, Output
from commands.console.recorded import upload_all
from tracking.schema import runs_filter

#: Longer than a measurement takes.
_OLD = "24h"
_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86400.0}


class Sync(WithRecords, CopiedRuns, Formatted):
    """Upload records that are not tracked yet; copy runs between servers.

    Without options: the records on disk, each once. A run there that differs from its record is put
    right. With --to, also this project's tracked runs of the store that MLflow's settings name.
    With --from, --campaign or --filter: tracked runs alone. With --verify nothing is changed, and a
    difference ends with 1. Where the server is away run the command again later.
    """

    target: str | None = option(
        "server to fill; default: MLflow's settings", None, "--to", metavar="URI"
    )
    source: str | None = option(
        "copy this project's runs of this store", None, "--from", metavar="URI"
    )
    verify: bool = option("only say where runs differ from their records")
    reap: bool = option("end this project's runs that stayed RUNNING")
    older_than: str | None = option(
        f"with --reap, how long ago such a run began at least: 90m, 24h, 7d; default: {_OLD}",
        metavar="AGE",
    )

    def run(self) -> int:
        """Upload, copy and end runs as far as the options ask for it."""
        age_s = _seconds(self.older_than or _OLD)
        if self.older_than is not None and not self.reap:
            raise UserError(f"older-than={self.older_than!r}: give it with --reap")
        wanted = runs_filter(self.filter_string, self.campaign)
        if self.verify and (wanted or self.source or self.reap):
            raise UserError(
                "verify: it looks at records on disk; give it with --records and --to alone"
            )
        if wanted and self.target is None and self.source is None:
            raise UserError(
                "campaign, filter: they choose runs to copy; give --to or --from with them"
            )
        from tracking.connection import TrackingError

        code = 0
        self._facts: dict[str, Any] = {}
        # not in a default folder that does not exist, where there is something else to do
        asked = "records" in self.given or not (self.target or self.reap) or self.records.is_dir()
        try:
            if asked and not (self.source or wanted):
                code = self._upload_records()
            if (self.source or self.target) and not self.verify:
                code = max(code, self._copy_runs(wanted))
            if self.reap:
                self._reap(age_s)
        except TrackingError as error:
            when = "later" if error.away and not error.denied else "then"
            note(f"{error}; sync again {when}, nothing is lost")
            code = NOT_TRACKED
            self._facts["problem"] = str(error)
        return self.show(Output(facts=self._facts, exit_code=code))

    def _upload_records(self) -> int:
        from bench.records.folders import record_folders

        folders = list(record_folders(self.records))
        from tracking.store import public_uri

        counts = upload_all(folders, self.target, verify=self.verify, say=self.say)
        counted = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
        self.say(f"{counted or 'no records'} ({public_uri(self.target)})")
        self._facts |= {fate.replace(" ", "_"): number for fate, number in counts.items()}
        wrong = counts["failed"] or counts["not as their records"] or counts["not uploaded"]
        return 1 if wrong else 0

    def _copy_runs(self, wanted: str) -> int:
        """Copy tracked runs; none where no option names the usual store and it is missing."""
        from tracking.connection import TrackingError
        from tracking.store import public_uri, settings_uri
        from tracking.upload.copy_runs import Copier, source_uri

        try:
            source = source_uri(self.source, self.target)
        except UserError:
            if self.source or wanted:
                raise
            return 0
        copier = Copier(source, self.target or settings_uri())
        counts: Counter[str] = Counter()

        def counted() -> str:
            states = ", ".join(f"{number} {state}" for state, number in counts.items())
            return f"runs of {public_uri(source)}: {states or 'none'}"

        for run in copier.runs(wanted):
            try:
                state: str = copier.copy(run)
            except Exception as error:  # no run stops the others, whatever is in it
                if isinstance(error, TrackingError) and error.away:
                    click.echo(counted(), err=True)
                    raise
                state = "failed"
                ours = isinstance(error, UserError | TrackingError | OSError)
                note(f"{_named(run)}: {error if ours else fault_line(error)}")
            counts[state] += 1
            if state == "copied":
                self.say(f"  {_named(run)}")
        self._facts |= {f"runs_{state.replace(' ', '_')}": n for state, n in counts.items()}
        self.say(f"{counted()} (to {public_uri(self.target)})")
        return 1 if counts["failed"] else 0

    def _reap(self, age_s: float) -> None:
        from tracking.upload.delivery import reap

        ended, left = reap(age_s, self.target)
        self._facts |= {"runs_ended": len(ended), "runs_left_running": len(left)}
        for run in ended:
            self.say(f"  {_named(run)} ended")
        self.say(f"{len(ended)} ended, {len(left)} left running: begun less than the age ago")


def _named(run: Any) -> str:
    return f"{printable(run.info.run_name or '')} ({run.info.run_id})"


def _seconds(age: str) -> float:
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([mhd])", age)
    if match is None:
        raise UserError(f"older-than={age!r}: give a number and a unit, such as 90m, 24h or 7d")
    return float(match[1]) * _UNITS_S[match[2]]
