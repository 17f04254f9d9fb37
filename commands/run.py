"""`mlproject run`: one configuration; per repeat a fresh worker, a record and a tracked run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from bench.config import RunConfig, rate_unit, spelled
from bench.config.parsing import node_rank
from bench.errors import UserError
from bench.launcher.device_lock import device_names, exclusive
from bench.launcher.measurement import launch_measurement, take_part
from bench.records import RunRecord
from bench.records.folders import RecordFolder
from bench.records.journal import OnEvent
from bench.records.metrics import rate_name, summary
from commands import INTERRUPTED, OUTCOME_CODES
from commands.console.options import Configured, Count, option
from commands.console.output import Formatted, Result
from commands.console.recorded import Measuring, import_upload, timed_record, verdict_fact

_SHOWN = ("throughput_tokens_per_s", "iteration_time_ms_p50", "attained_gflops")


class Run(Configured, Measuring):
    """Measure one configuration as one tracked run, or several.

    The record is on disk before anything is uploaded. The exit code is that of the first repeat
    whose code is not 0; an interrupt ends them all. With nodes above 1, the machine whose NODE_RANK
    is 0 keeps the record; the others take part and write none; no machine then waits for its
    device.
    """

    like: str | None = option(
        "the configuration of this record, in --records or by its run's id in MLflow, but for the "
        "options that are given beside it",
        metavar="RECORD",
    )
    repeats: Count = option(
        "tracked runs of it, each in a fresh process; from two on, their mean has an interval", 1
    )

    def run(self) -> int:
        """Measure each repeat, and show it when it is done."""
        config = self._asked()
        if self.repeats > 1 and config.nodes > 1:
            raise UserError(
                f"repeats={self.repeats}: with nodes above 1 start each repeat on every machine"
            )
        if node_rank(config) > 0:
            return _take_part(config)
        devices = device_names(config.backend, config.devices)
        done: list[RunRecord] = []

        def launch(folder: RecordFolder, on_event: OnEvent) -> RunRecord:
            upload = import_upload if self.tracked else None
            repeat = config.model_copy(update={"repeat": config.repeat + len(done)})
            done.append(launch_measurement(repeat, folder, on_event, while_preparing=upload))
            return done[-1]

        shown: list[Result] = []
        codes: list[int] = []
        while len(done) < self.repeats and INTERRUPTED not in codes:
            repeat = f", repeat {len(done) + 1} of {self.repeats}" if self.repeats > 1 else ""
            title = f"{config.arch} {config.precision}{repeat}"
            shown.append(self.measured(title, launch, run_facts, devices, wait=config.nodes == 1))
            codes.append(Formatted.show(self, shown[-1]))
            # The run that `mlflow run` made holds the first repeat; the others get their own.
            os.environ.pop("MLFLOW_RUN_ID", None)
        if self.repeats > 1:
            mean = _mean(done)
            Formatted.show(self, mean)
            facts = mean.facts | {"runs": [each.facts for each in shown]}
            shown = [Result([line for each in (*shown, mean) for line in each.parts], facts)]
        self.write(shown[0])
        return next(filter(None, codes), 0)

    def _asked(self) -> RunConfig:
        """The configuration; a label of another machine is not taken over."""
        if self.like is not None:
            record = timed_record(self.like, self.records, "like")
            if record.script:
                name = record.config.arch.removeprefix("script:")
                again = f"mlproject watch -- python {name} {record.script.get('arguments', '')}"
                raise UserError(f"like={self.like!r}: is of a script; {again.strip()}")
            asked = record.config.model_dump(exclude={"env", "repeat"}).items()
            vars(self).update((n, spelled(value)) for n, value in asked if n not in self.given)
        return self.config()


def _mean(records: Sequence[RunRecord]) -> Result:
    """The mean rate of the repeats that were measured to their end."""
    from analysis.statistics.repeats import repeats_of

    whole = [record for record in records if record.outcome == "ok"]
    resolved = whole[0].resolved if whole else None
    if resolved is None:
        return Result(facts={"repeats": len(whole)})
    name = rate_name(whole[0].config, resolved)
    mean = repeats_of([summary(record)[name] for record in whole])
    low, high = mean.interval or (None, None)
    facts = {
        "repeats": len(whole),
        f"{name}_mean": mean.centre,
        f"{name}_low": low,
        f"{name}_high": high,
    }
    interval = f", 95 % interval {low:.4g} to {high:.4g}" if mean.interval else ""
    line = f"  {len(whole)} repeats: {mean.centre:.4g} {rate_unit(resolved.sample)}{interval}"
    return Result([line], facts)


def _take_part(config: RunConfig) -> int:
    # the other machines do not wait for long
    with exclusive(device_names(config.backend, config.devices), wait=False):
        outcome, reason = take_part(config)
    click.echo(f"took part: {outcome}" + (f" ({reason})" if reason else ""))
    return OUTCOME_CODES[outcome]


def run_facts(record: RunRecord) -> dict[str, Any]:
    """Return what a run shows in a few numbers."""
    known, resolved = summary(record), record.resolved
    names = ([] if resolved is None else [rate_name(record.config, resolved)]) + [*_SHOWN]
    facts: dict[str, Any] = {name: round(known[name], 4) for name in names if name in known}
    if record.measurement is not None and record.measurement.ended_early is not None:
        facts["ended_early"] = record.measurement.ended_early
    return facts | verdict_fact(record.verdict)
