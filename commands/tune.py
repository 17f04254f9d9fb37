"""`mlproject tune`: the fastest setting of the knobs in bounded time, and what each knob gave."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.progress import TextColumn

from bench.config import RunConfig, arch_label, parse_config, rate_unit
from bench.errors import UserError
from bench.records import CeilingsRecord, Environment, RunRecord
from bench.records.environment import environment_id
from bench.records.folders import MeasuredRecord, RecordFolder, ceilings_in
from bench.records.journal import Event
from campaigns.knobs import WINDOW_S, changes
from campaigns.local import environment_of, identify_machine
from campaigns.plan import campaign_records
from campaigns.search import FEWEST_ROUNDS, Limits, tune
from campaigns.trials import (
    PairedComparison,
    StartFailedError,
    Trial,
    TuneResult,
    TuneWatch,
    measure_here,
)
from commands import INTERRUPTED, NOT_TRACKED, OUTCOME_CODES
from commands.console.options import Above, Configured, Count, Folder, Tracked, Truth, note, option
from commands.console.output import Answering, Bar, Output
from commands.console.recorded import (
    AnyDelivery,
    log_folder,
    open_delivery,
    say_not_uploaded,
    wait_for_others,
)
from tracking import schema

if TYPE_CHECKING:
    from analysis.tuning import Place

Record = TypeVar("Record", RunRecord, CeilingsRecord)

_LABEL_LETTERS = 64
#: The start and its repeats, a comparison, and the fewest rounds that confirm it.
_FEWEST_RUNS = 3 + 2 + 2 * FEWEST_ROUNDS
#: About what a small model's start and warm-up take on two cores, without the window.
_AROUND_WINDOW_S = 5.0


class Tune(Configured, Tracked, Answering):
    """Find the fastest setting of a model's knobs and batch size on this device.

    The options of `mlproject run` say where to start. Every trial is a tracked run of one campaign
    (by default tune-ARCH-PRECISION); the same command continues from the campaign's earlier trials.
    The quoted speed-up comes from fresh runs after the search. An interrupted tuning keeps all
    trials. It ends with 1 where a trial's record could not be written.
    """

    budget: Above = option(
        "time for everything; it is overrun by one trial at most", 600.0, metavar="SECONDS"
    )
    fixed_batch: Truth = option(
        "keep the batch size; by default it is doubled and halved as long as that pays",
        "false",
        is_flag=False,
        flag_value="true",
        show_default=False,
        metavar="[true|false]",
    )
    max_batch: Count | None = option("the largest batch size to try")
    retry_failed: bool = option("try what failed before again")
    out: Folder | None = option("folder of the tables and the figure [default: reports/CAMPAIGN]")

    def _result(self) -> Output:
        began_s = time.monotonic()
        config = self._start()
        here = identify_machine(config.env)
        backends = [environment.device.backend for environment in here]
        if config.backend not in ("auto", *backends):
            asked = f"backend={config.backend!r}"
            raise UserError(f"{asked}: not on this machine; use {' or '.join(backends)}")
        environment = environment_of(config, here)
        config = self._with_short_window(config, environment)
        self._warn_of_a_small_budget(config)
        wait_for_others(self.records)
        delivery = open_delivery(config.campaign, "tune", tracked=self.tracked)
        delivery.begin({"arch": config.arch, "budget": f"{self.budget:g}"})
        delivery.catch_up(self.records)
        where = f"tags.`{schema.ENVIRONMENT_ID}` = '{environment_id(environment)}'"
        whole = f"tags.`{schema.UPLOADED}` = 'true' and {where}"
        of_campaign = campaign_records(self.records, config.campaign, environment)
        past = self._with_servers(
            RunRecord,
            [record for record in of_campaign if isinstance(record, RunRecord)],
            schema.runs_filter(whole, config.campaign, kind="measurement"),
        )
        if self.retry_failed:
            past = [record for record in past if record.outcome in ("ok", "interrupted")]
        limits = Limits(self.budget, fixed_batch=self.fixed_batch, max_batch=self.max_batch)
        lost = False

        def deliver(folder: RecordFolder, record: MeasuredRecord) -> None:
            nonlocal lost
            lost |= folder.problem is not None
            delivery.deliver(folder, record)

        with TuneProgress(config, self.budget, began_s) as progress:
            measure = partial(measure_here, self.records, deliver, progress.on_event)
            try:
                tuned = tune(
                    *(config, environment, measure, limits),
                    known=past,
                    watch=progress,
                    began_s=began_s,
                )
            except StartFailedError as error:
                return _no_start(error.trial, delivery)
            except KeyboardInterrupt:
                delivery.end("interrupted before the start was measured", interrupted=True)
                raise
        return self._close(tuned, delivery, lost=lost)

    def _start(self) -> RunConfig:
        """The configuration to start from, filed under a campaign; all that is wrong at once."""
        config = self.config()
        if config.world_size > 1:
            raise UserError(
                f"devices={config.devices}, nodes={config.nodes}: a tuning is of one device's "
                "step; use devices=1 and nodes=1"
            )
        if config.data_only:
            raise UserError("data_only=true: a tuning is of a training step; use data_only=false")
        size, most = config.batch_size, self.max_batch
        if most is not None and size != "auto" and size > most:
            raise UserError(f"max_batch={most}: below batch_size={size}; raise it")
        if "campaign" in self.given:
            return config
        name = f"tune-{arch_label(config.arch)}-{config.precision}"
        return parse_config({**self.settings, "campaign": name[:_LABEL_LETTERS]})

    def _with_short_window(self, config: RunConfig, environment: Environment) -> RunConfig:
        """Where no window is asked for by name, that of the device's backend is used."""
        changes: dict[str, object] = {"explain": False}  # a search has better use for the time
        if not {"iters", "max_seconds"} & self.given:  # so many iterations, however long they take
            changes["max_seconds"] = WINDOW_S[environment.device.backend]
        return config.model_copy(update=changes)

    def _warn_of_a_small_budget(self, config: RunConfig) -> None:
        """Say before anything is measured that the time may hold no comparison."""
        if isinstance(config.max_seconds, int | float):
            least_s = _FEWEST_RUNS * (config.max_seconds + _AROUND_WINDOW_S)
            if self.budget < least_s:
                note(
                    f"budget={self.budget:g}: may hold the start and no comparison, which take "
                    f"{_FEWEST_RUNS} runs of up to {config.max_seconds + _AROUND_WINDOW_S:g} s; "
                    f"give {2 * least_s:.0f}"
                )

    def _with_servers(self, kind: type[Record], here: list[Record], wanted: str) -> list[Record]:
        """Records of this folder, and others on the server if it answers."""
        if not self.tracked:
            return here
        from tracking.connection import TrackingError
        from tracking.tracked_runs import tracked_records

        records = list(here)
        try:
            for record in tracked_records(wanted, {record.record_id for record in here}):
                records += [record] if isinstance(record, kind) else []
        except TrackingError as error:
            note(f"the server was not asked ({error})")
        return records

    def _close(self, tuned: TuneResult, delivery: AnyDelivery, *, lost: bool) -> Output:
        """Write what was found to the folder and to the server; 1 where a record was `lost`."""
        from analysis.runs.points import roofline_point
        from analysis.tuning import best_command, best_record, roof_line, verdict_line

        campaign = tuned.start.campaign
        out = self.out or Path("reports") / campaign
        here = ceilings_in(self.records)
        roofs = self._with_servers(CeilingsRecord, here, schema.CEILINGS_FILTER)
        place = roofline_point(best_record(tuned), roofs)
        result = tune_result(tuned, place)
        remedy = "choose another folder: no trial is lost, the same command goes on from here"
        result.write(out, "tuning", remedy)
        delivery.end(result.text("markdown"), interrupted=tuned.interrupted)
        problem = delivery.problem
        if self.tracked and not tuned.interrupted:
            lines = (f"`{best_command(tuned)}`", verdict_line(tuned), roof_line(place))
            tags = {schema.KIND: "tune", schema.CAMPAIGN: campaign, schema.NOTE: "\n\n".join(lines)}
            _, unlogged = log_folder(out, f"{campaign}_tune", tags, delivery.project_run)
            problem = unlogged or problem
        if problem is not None:
            say_not_uploaded(problem)
        code = 1 if lost else NOT_TRACKED if problem else 0
        if tuned.interrupted:
            note("interrupted; the same command goes on from here")
            code = INTERRUPTED
        return replace(result, parts=[*result.parts, f"written to {out}"], exit_code=code)


def tune_result(tuned: TuneResult, place: Place) -> Output:
    """Return the best command line, what each knob gave, and what to know besides."""
    from analysis import tuning
    from analysis.figures.rows import tuning_chart

    facts = tuning.tuning_facts(tuned, place)
    tables = list(tuning.tuning_tables(tuned, facts))
    return Output(
        [
            tuning.best_command(tuned),
            *(f"  {line}" for line in tuning.tuning_lines(tuned, place)),
            *(table for table in tables if table.name == "knobs"),
        ],
        facts,
        tables,
        lambda: {"tuning": tuning_chart(tuned)},
    )


class TuneProgress(Bar, TuneWatch):
    """A bar over the budget, and a line per comparison; the bar only on a terminal."""

    def __init__(self, start: RunConfig, budget_s: float, began_s: float) -> None:
        self._start = start
        self._began_s = began_s
        self._trial = 0
        self._unit = rate_unit("sample")  # until a trial says what its samples are
        super().__init__(
            TextColumn("{task.completed:.0f} of {task.total:.0f} s"),
            total=budget_s,
            redirect_stdout=False,
        )

    def starting(self, config: RunConfig) -> None:
        """Name the trial."""
        self._show(f"trial {self._trial + 1}: {config.arch} {changes(self._start, config)}")

    def on_event(self, event: Event) -> None:
        """Take one event of the trial's worker, or the launcher's tick."""
        if event.name == "waiting":
            self.say(f"waiting for {event.facts['holder']}")
        elif event.name == "tick":
            self._show(None)

    def ended(self, trial: Trial) -> None:
        """Count the trial; one of the start gets a line of its own."""
        self._trial = trial.number
        if trial.record.resolved is not None:
            self._unit = rate_unit(trial.record.resolved.sample)
        if trial.stage == "start":
            self.say(f"start: {trial.rate_words}")

    def ruled(self, comparison: PairedComparison) -> None:
        """Say what became of a value."""
        line = f"{comparison.name}: {comparison.decision}"
        if comparison.estimate is not None:
            pairs = f"{len(comparison.ratios)} pair{'s' * (len(comparison.ratios) > 1)}"
            line += f", {comparison.estimate.ratio:.3f} times the {self._unit} in {pairs}"
        self.say(line + (f" ({comparison.reason})" if comparison.reason else ""))

    def _show(self, text: str | None) -> None:
        self.show(text, completed=time.monotonic() - self._began_s)


def _no_start(trial: Trial, delivery: AnyDelivery) -> Output:
    """The start gave no whole measurement: say why, and end as a run of it would."""
    why = f"the start was not measured: {trial.failure}"
    delivery.end(why, interrupted=False)
    again = "" if trial.fresh else " (in an earlier session: --retry-failed measures it again)"
    note(f"{why}{again}")
    code = OUTCOME_CODES[trial.record.outcome]
    if trial.record.outcome == "interrupted":
        note("give a larger --budget")
        code = 1
    return Output(facts={"not_measured": why}, exit_code=code)
