"""`mlproject tune`: the fastest setting of the knobs in bounded time, and what each knob gave."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from click.core import ParameterSource

from bench.config import WINDOW_FIELDS, RunConfig, arch_label, parse_config
from bench.errors import UserError
from bench.records import CeilingsRecord, RunRecord
from commands.views.options import (
    checked_config,
    one_option_per_field,
    records_option,
    track_option,
)
from commands.views.recorded import EXIT_CODES, NOT_TRACKED, open_delivery, say_not_uploaded

if TYPE_CHECKING:
    from bench.records import Environment
    from campaigns.tune.result import Trial, TuneResult
    from commands.views.recorded import AnyDelivery

Record = TypeVar("Record", RunRecord, CeilingsRecord)

_LABEL_LETTERS = 64
#: A window ends by its time; this is more than fits into it.
_MANY_ITERATIONS = 10_000


@click.command()
@click.option(
    "--budget",
    "budget_s",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="time for everything; it is overrun by one trial at most",
)
@click.option(
    "--fixed-batch",
    type=click.Choice(["true", "false"]),
    is_flag=False,
    flag_value="true",
    default="false",
    help="keep the batch size; by default it is doubled and halved as long as that pays",
)
@click.option("--max-batch", type=click.IntRange(min=1), help="the largest batch size to try")
@click.option("--retry-failed", is_flag=True, help="try what failed before again")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="folder of the tables and the figure  [default: reports/CAMPAIGN]",
)
@one_option_per_field
@records_option
@track_option
@click.pass_context
def command(
    context: click.Context,
    /,
    budget_s: float,
    fixed_batch: str,
    max_batch: int | None,
    retry_failed: bool,
    out: Path | None,
    records: Path,
    tracked: bool,
    **values: str,
) -> int:
    """Find the fastest setting of a model's knobs and batch size on this device.

    The options of `mlproject run` say where to start. Every trial is a tracked run of one campaign
    (by default tune-ARCH-PRECISION); the same command continues from the campaign's earlier trials.
    The quoted speed-up comes from fresh runs after the search. Exit codes: 0 tuned and tracked; 1
    the start gave no whole measurement; 2 a wrong value; 3 tuned, but not all uploaded; 130
    interrupted, all trials kept.
    """
    began_s = time.monotonic()
    config = _start(context, values, max_batch)
    from campaigns.sweep.local_devices import identify_machine
    from campaigns.sweep.past import take_over
    from campaigns.tune.trials import LocalMeasure
    from campaigns.tune.tuner import Limits, StartFailedError, tune
    from commands.views.tune_view import TuneProgress

    environment = _environment(config, identify_machine(config.env))
    config = _with_short_window(context, config, environment)
    take_over(records, lambda record: click.echo(f"waiting for the worker of {record}", err=True))
    delivery = open_delivery(config.campaign, "tune", tracked=tracked)
    delivery.begin({"arch": config.arch, "budget": f"{budget_s:g}"})
    delivery.catch_up(records)
    known = _known_trials(records, config.campaign, environment, tracked=tracked)
    if retry_failed:
        known = [record for record in known if record.outcome in ("ok", "interrupted")]
    limits = Limits(budget_s, fixed_batch=fixed_batch == "true", max_batch=max_batch)
    with TuneProgress(config, budget_s, began_s) as progress:
        measure = LocalMeasure(records, delivery.deliver, progress.on_event)
        try:
            result = tune(
                *(config, environment, measure, limits),
                known=known,
                watch=progress,
                began_s=began_s,
            )
        except StartFailedError as error:
            return _say_no_start(error.trial, delivery)
        except KeyboardInterrupt:
            delivery.end("interrupted before the start was measured", interrupted=True)
            raise
    return _close(result, out or Path("reports") / config.campaign, records, delivery, tracked)


def _start(context: click.Context, values: dict[str, str], max_batch: int | None) -> RunConfig:
    """The configuration to start from, filed under a campaign; all that is wrong in one message."""
    config = checked_config(values)
    if config.world_size > 1:
        raise UserError(
            f"devices={config.devices}, nodes={config.nodes}: a tuning is of one device's step; "
            "use devices=1 and nodes=1"
        )
    if config.data_only:
        raise UserError("data_only=true: a tuning is of a training step; use data_only=false")
    if max_batch is not None and config.batch_size != "auto" and config.batch_size > max_batch:
        raise UserError(f"max_batch={max_batch}: below batch_size={config.batch_size}; raise it")
    if context.get_parameter_source("campaign") is ParameterSource.DEFAULT:
        name = f"tune-{arch_label(config.arch)}-{config.precision}"
        return parse_config({**values, "campaign": name[:_LABEL_LETTERS]})
    return config


def _known_trials(
    records: Path, campaign: str, environment: Environment, *, tracked: bool
) -> list[RunRecord]:
    """Return the campaign's runs on this environment, from the folder and from the server."""
    from bench.records.environment import environment_id
    from campaigns.tune.trials import campaign_records

    known = campaign_records(records, campaign, environment)
    if tracked:
        from tracking import schema

        where = f"tags.`{schema.ENVIRONMENT_ID}` = '{environment_id(environment)}'"
        whole = f"tags.`{schema.UPLOADED}` = 'true'"
        wanted = schema.runs_filter(f"{whole} and {where}", campaign, kind="measurement")
        known += _from_server(wanted, known, RunRecord)
    return known


def _known_ceilings(records: Path, *, tracked: bool) -> list[CeilingsRecord]:
    """Return every measured roof of the records folder and of the server."""
    from bench.records.folders import readable_records

    found = (record for _, record in readable_records(records))
    known = [record for record in found if isinstance(record, CeilingsRecord)]
    if tracked:
        from tracking.schema import CEILINGS_FILTER

        known += _from_server(CEILINGS_FILTER, known, CeilingsRecord)
    return known


def _from_server(wanted: str, known: list[Record], kind: type[Record]) -> list[Record]:
    """What the server has besides; a tuning goes on without the rest where it does not answer."""
    from tracking.reading.tracked_runs import tracked_records
    from tracking.store import TrackingError

    found: list[Record] = []
    try:
        for record in tracked_records(wanted, {each.record_id for each in known}):
            if isinstance(record, kind):
                found.append(record)
    except TrackingError as error:
        click.echo(f"mlproject: the server was not asked ({error})", err=True)
    return found


def _environment(config: RunConfig, environments: tuple[Environment, ...]) -> Environment:
    from campaigns.sweep.local_devices import environment_of

    here = [each.device.backend for each in environments]
    if config.backend not in ("auto", *here):
        raise UserError(f"backend={config.backend!r}: not on this machine; use {' or '.join(here)}")
    return environment_of(config, environments)


def _with_short_window(
    context: click.Context, config: RunConfig, environment: Environment
) -> RunConfig:
    """Where no window is asked for by name, that of the device's backend is used."""
    from campaigns.tune.knobs import WINDOWS

    short = {"iters": _MANY_ITERATIONS, **WINDOWS[environment.device.backend]}
    asked = {
        name
        for name in WINDOW_FIELDS
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    if "iters" in asked:  # a window of so many iterations, however long they take
        asked.add("max_seconds")
    return config.model_copy(update={n: v for n, v in short.items() if n not in asked})


def _say_no_start(trial: Trial, delivery: AnyDelivery) -> int:
    """The start gave no whole measurement: say why, and end as a run of it would."""
    why = f"the start was not measured: {trial.failure}"
    delivery.end(why, interrupted=False)
    again = "" if trial.fresh else " (in an earlier session: --retry-failed measures it again)"
    click.echo(f"mlproject: {why}{again}", err=True)
    if trial.record.outcome == "interrupted":
        click.echo("mlproject: give a larger --budget", err=True)
        return 1
    return EXIT_CODES[trial.record.outcome]


def _close(
    result: TuneResult, out: Path, records: Path, delivery: AnyDelivery, tracked: bool
) -> int:
    """Print what was found, write it to `out` and to the server, and return the exit code."""
    from analysis.runs.points import roofline_point
    from analysis.tuning.account import best_record, tuning_markdown
    from commands.views.tune_view import log_files, print_result, write_files

    place = roofline_point(best_record(result), _known_ceilings(records, tracked=tracked))
    print_result(result, place)
    write_files(result, place, out)
    delivery.end(tuning_markdown(result, place), interrupted=result.interrupted)
    problem = delivery.problem
    if tracked and not result.interrupted:
        problem = log_files(result, place, out, delivery.project_run) or problem
    click.echo(f"written to {out}")
    if problem is not None:
        say_not_uploaded(problem)
    if result.interrupted:
        click.echo("mlproject: interrupted; the same command goes on from here", err=True)
        return EXIT_CODES["interrupted"]
    return NOT_TRACKED if problem else 0
