"""`mlproject sweep`: a whole matrix, one tracked run per configuration and repeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import click

from bench.errors import UserError
from bench.records import ToolName
from commands.views.options import records_option, track_option
from commands.views.recorded import EXIT_CODES, NOT_TRACKED, open_delivery, say_not_uploaded

if TYPE_CHECKING:
    from bench.config import RunConfig
    from bench.records import Environment
    from campaigns.sweep.executor import Executor, SweepOrder, Turn
    from commands.views.recorded import AnyDelivery

_MATRICES = Path(__file__).resolve().parents[2] / "matrices"
_OWN = ", ".join(sorted(path.stem for path in _MATRICES.glob("*.yaml")))


@click.command()
@click.argument("matrix", required=False)
@click.option(
    "--matrix",
    "matrix_named",
    help=f"the same, as `mlflow run -e sweep` gives it; the project contains {_OWN}",
)
@click.option("--campaign", help="label of all its runs; default: the matrix's name")
@click.option("--env", default="auto", show_default=True, help="label of this machine")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FIELD=VALUE",
    help="one value for every configuration, such as iters=10; repeatable",
)
@click.option(
    "--backend",
    type=click.Choice(["cpu", "cuda", "mps"]),
    help="only the blocks that name this backend; default: all that fit",
)
@click.option("--limit", type=click.IntRange(min=1), help="only the first N configurations")
@click.option("--yes", is_flag=True, help="allow a matrix of thousands of runs")
@click.option("--retry-failed", is_flag=True, help="measure runs that failed before again")
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="before each run wait, at most this long, until the device is idle and cool",
)
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="measure here, or on the nodes of a Ray cluster",
)
@click.option("--address", help="of the Ray cluster, HOST:PORT; default: the one on this machine")
@click.option(
    "--node-wait",
    "node_wait_s",
    type=click.FloatRange(min=0),
    default=900.0,
    show_default=True,
    metavar="SECONDS",
    help="with ray: how long a run waits for a node with its device; then it is not measured",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="print the runs, also those of devices that are not here, and an estimate of their time",
)
@click.option(
    "--profile",
    type=click.Choice(["auto", *get_args(ToolName)]),
    multiple=True,
    help="also profile each configuration with this tool, after its first run without a doubt; "
    "auto: torch, and the counters that the device has",
)
@records_option
@track_option
def command(
    matrix: str | None,
    matrix_named: str | None,
    campaign: str | None,
    env: str,
    overrides: tuple[str, ...],
    backend: str | None,
    limit: int | None,
    yes: bool,
    retry_failed: bool,
    settle_s: float,
    executor: str,
    address: str | None,
    node_wait_s: float,
    dry_run: bool,
    profile: tuple[ToolName | Literal["auto"], ...],
    records: Path,
    tracked: bool,
) -> int:
    """Measure every configuration of a matrix, each repeat as one tracked run.

    MATRIX is a YAML file, or the name of one that the project contains. Runs that the campaign has
    measured on this machine are skipped, so the same command continues an interrupted sweep. Exit
    codes: 0 every run of the plan has a measurement, and is tracked; 1 some have none: they failed
    or ran out of memory, each recorded with its reason, were skipped as larger than what ran out of
    memory, or found no node; 2 a wrong value; 3 measured, but not all uploaded; 130 interrupted.
    """
    name = matrix or matrix_named
    if name is None:
        raise UserError(f"matrix: give a YAML file, or one that the project contains: {_OWN}")
    if profile and executor == "ray":
        raise UserError(f"profile={profile[0]}: made on this machine; use --executor local")
    from campaigns.sweep.executor import SweepOrder
    from campaigns.sweep.matrix import read_matrix
    from campaigns.sweep.plan import plan_runs
    from commands.views.sweep_view import print_plan

    asked = read_matrix(_matrix_path(name), _overridden(overrides), many=yes)
    campaign = _checked_label("campaign", campaign or asked.name)
    env = _checked_label("env", env)
    turns: list[Turn] = []
    with _opened(executor, address, env, node_wait_s, campaign, records) as where:
        plan = plan_runs(
            asked,
            campaign=campaign,
            env=env,
            backends=where.backends,
            only=backend,
            limit=limit,
        )
        if not plan.blocks:
            raise UserError(f"backend={backend!r}: no block of matrix={name!r} names it")
        if dry_run:
            print_plan(plan, where, records)
            return 0
        if not plan.runs:
            needed = "; ".join(map(str, plan.left_out))
            raise UserError(
                f"matrix={name!r}: none of its blocks fits {where.place}, which has "
                f"{' and '.join(sorted(where.backends))} ({needed}); --dry-run shows its runs"
            )
        if profile:
            _check_tools(profile, plan.runs, where.environments)
        for block in plan.left_out:
            click.echo(f"left out: {block}", err=True)
        delivery = open_delivery(campaign, "sweep", tracked=tracked)
        delivery.begin({"matrix": name, "seed": str(asked.seed)})
        order = SweepOrder(plan, campaign, records, retry_failed, settle_s, profile=profile)
        interrupted = _sweep(where, order, delivery, turns)
    return _close(turns, len(plan.runs), delivery, interrupted=interrupted)


def _check_tools(
    names: Sequence[ToolName | Literal["auto"]],
    runs: Sequence[RunConfig],
    environments: tuple[Environment, ...],
) -> None:
    """Refuse a tool that can examine none of the runs before the first of them is measured."""
    from bench.launcher.profile import TOOLS, obstacle_to
    from campaigns.sweep.local_devices import environment_of

    kinds = {
        (environment_of(run, environments).device.backend, run.world_size > 1): run for run in runs
    }
    for name in names:
        if name == "auto":
            continue
        reasons = [obstacle_to(TOOLS[name](), run, backend) for (backend, _), run in kinds.items()]
        if all(reasons):
            raise UserError(f"profile={name}: {reasons[0]}")


@contextmanager
def _opened(
    executor: str, address: str | None, env: str, node_wait_s: float, campaign: str, records: Path
) -> Iterator[Executor]:
    if executor == "ray":
        from campaigns.sweep.ray.executor import RayExecutor

        def note(text: str) -> None:
            click.echo(f"mlproject: {text}", err=True)

        cluster = RayExecutor(address or "auto", env, node_wait_s=node_wait_s, note=note)
        with cluster.connected(campaign, records):
            yield cluster
        return
    if address is not None:
        raise UserError(f"address={address!r}: give --executor ray with it")
    from campaigns.sweep.local import LocalExecutor
    from campaigns.sweep.local_devices import identify_machine

    yield LocalExecutor(identify_machine(env))


def _sweep(where: Executor, order: SweepOrder, delivery: AnyDelivery, turns: list[Turn]) -> bool:
    """Measure, after whatever an earlier sweep left unfinished; return whether interrupted."""
    from campaigns.sweep.past import take_over
    from commands.views.sweep_view import SweepProgress

    def waiting(record: str) -> None:
        click.echo(f"waiting for the worker of {record}", err=True)

    try:
        take_over(order.records, waiting)
        delivery.catch_up(order.records)
        order = replace(order, elsewhere=tuple(delivery.runs_elsewhere()))
        with (
            SweepProgress(order.plan) as progress,
            closing(where.sweep(order, delivery.deliver, progress)) as measured,
        ):
            for turn in measured:
                turns.append(turn)
    except KeyboardInterrupt:  # between two workers
        return True
    return any(turn.outcome == "interrupted" and turn.state == "measured" for turn in turns)


def _close(turns: list[Turn], planned: int, delivery: AnyDelivery, *, interrupted: bool) -> int:
    """Print what became of the runs, end the sweep's own run, and return the exit code."""
    from commands.views.sweep_view import print_turns, turns_markdown

    print_turns(turns)
    delivery.end(turns_markdown(turns), interrupted=interrupted)
    if delivery.problem is not None:
        say_not_uploaded(delivery.problem)
    if interrupted:
        left = planned - sum(turn.outcome != "interrupted" for turn in turns)
        click.echo(
            f"mlproject: interrupted, {left} of {planned} runs left: "
            "the same command takes them up",
            err=True,
        )
        return EXIT_CODES["interrupted"]
    if over := sum(turn.state == "left over" for turn in turns):
        click.echo(
            f"mlproject: {over} of {planned} runs left over: the same command takes them up",
            err=True,
        )
        return 1
    if any(turn.outcome != "ok" for turn in turns):
        return 1
    return NOT_TRACKED if delivery.problem else 0


def _matrix_path(name: str) -> Path:
    """A file, or one of the project's own by its name."""
    path, own = Path(name), _MATRICES / f"{name}.yaml"
    return own if own.is_file() and not path.is_file() else path


def _overridden(pairs: tuple[str, ...]) -> dict[str, str]:
    from bench.config import FILING_FIELDS, RunConfig, parse_config

    values = {}
    for pair in pairs:
        field, _, value = pair.partition("=")
        if field not in RunConfig.model_fields or field in FILING_FIELDS:
            raise UserError(f"set={pair!r}: give FIELD=VALUE, such as iters=10")
        values[field] = value
    parse_config(values)
    return values


def _checked_label(field: str, label: str) -> str:
    from bench.config import parse_config

    return str(getattr(parse_config({field: label}), field))
