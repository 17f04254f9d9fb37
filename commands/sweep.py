"""`mlproject sweep`: a whole matrix, one tracked run per configuration and repeat."""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from analysis.presentation.words import counted
from bench.config import (
    FILING_FIELDS,
    WINDOW_FIELDS,
    RunConfig,
    Sample,
    common_sample,
    parse_config,
    rate_metric,
    rate_unit,
    spelled,
)
from bench.cost import cached_complexity
from bench.errors import UserError
from bench.launcher.profile import TOOLS, obstacle_to
from bench.records import Environment, ProfileRecord, RunRecord, StepSpec
from bench.records.folders import readable_records
from bench.records.journal import Event
from bench.records.metrics import summary
from campaigns.local import (
    Durations,
    LocalExecutor,
    environment_of,
    identify_machine,
    in_precisions,
    measure_roofs,
)
from campaigns.matrix import MATRICES, OURS, Matrix, read_matrix
from campaigns.plan import (
    Executor,
    Plan,
    SweepOrder,
    SweepWatch,
    Turn,
    plan_runs,
    remote_executor,
)
from commands import INTERRUPTED, NOT_TRACKED
from commands.console.options import Count, Seconds, Tracked, argument, note, option, set_values
from commands.console.output import (
    Answering,
    Bar,
    Output,
    Shown,
    WorkerProgress,
    duration_text,
    table_of,
)
from commands.console.recorded import (
    AnyDelivery,
    open_delivery,
    say_not_uploaded,
    wait_for_others,
)

#: What a block asks for, by the name of its backend.
_NEEDS = {
    "auto": "any device",
    "cpu": "a CPU (cpu)",
    "cuda": "an NVIDIA GPU (cuda)",
    "mps": "an Apple GPU (mps)",
}
_IN_LABEL = {"arch", "precision", "batch_size", "backend"}
#: A worker's end (its record, the grace it is given) must fit before the time limit.
_CLOSING_S = 25.0


class Sweep(Tracked, Shown, Answering):
    """Measure every configuration of a matrix, each repeat as one tracked run.

    MATRIX is a YAML file, or the name of one that the project contains. Runs that the campaign has
    measured on this machine are skipped, so the same command continues an interrupted sweep. It
    ends with 1 where a run of the plan has no measurement: it failed or ran out of memory, recorded
    with its reason, was skipped as larger than what ran out of memory, found no node, did not fit
    into --minutes, or its record could not be written. A matrix with `roofs: true` has the device's
    roofs measured first.
    """

    matrix: str | None = argument(required=False)
    matrix_named: str | None = option(
        f"the same, as `mlflow run -e sweep` gives it; the project contains {OURS}",
        None,
        "--matrix",
    )
    campaign: str | None = option("label of all its runs; default: the matrix's name")
    env: str = option("label of this machine", "auto")
    overrides: tuple[str, ...] = option(
        "one value for every configuration, such as iters=10; repeatable",
        (),
        "--set",
        metavar="FIELD=VALUE",
    )
    backend: Literal["cpu", "cuda", "mps"] | None = option(
        "only the blocks that name this backend; default: all that fit"
    )
    limit: Count | None = option("only the first N configurations")
    shard: str | None = option("only part I of N of them, all repeats", metavar="I/N")
    minutes: Annotated[float, click.FloatRange(min=1)] | None = option("time limit for everything")
    yes: bool = option("allow a matrix of thousands of runs")
    retry_failed: bool = option("measure runs that failed before again")
    settle: Seconds = option(
        "before each run wait, at most this long, until the device is idle and cool",
        0.0,
        metavar="SECONDS",
    )
    executor: Literal["local", "ray"] = option(
        "measure here, or on the nodes of a Ray cluster", "local"
    )
    address: str | None = option("of the Ray cluster, HOST:PORT; default: the one on this machine")
    node_wait: Seconds = option(
        "with ray: how long a run waits for a node with its device; then it is not measured",
        900.0,
        metavar="SECONDS",
    )
    dry_run: bool = option(
        "print the runs, also those of devices that are not here, and an estimate of their time"
    )
    profile: tuple[Literal["auto", "torch", "ncu", "perf"], ...] = option(
        "also profile each configuration with this tool, after its first run without a doubt; "
        "auto: torch, and the counters that the device has"
    )

    def _result(self) -> Output:
        deadline_s = time.perf_counter() + 60 * (self.minutes or math.inf) - _CLOSING_S
        name = self.matrix or self.matrix_named
        if name is None:
            raise UserError(f"matrix: give a YAML file, or one that the project contains: {OURS}")
        self._check_executor()
        own = MATRICES / f"{name}.yaml"
        path = own if own.is_file() and not Path(name).is_file() else Path(name)
        asked = read_matrix(path, self._overridden(), many=self.yes)
        filed = parse_config({"campaign": self.campaign or asked.name, "env": self.env})
        campaign = filed.campaign
        with self._opened(campaign, filed.env) as where:
            plan = plan_runs(
                asked,
                campaign=campaign,
                env=filed.env,
                backends=where.backends,
                only=self.backend,
                limit=self.limit,
                shard=self._part(),
            )
            if not plan.blocks:
                raise UserError(f"backend={self.backend!r}: no block of matrix={name!r} names it")
            if self.dry_run:
                return plan_result(plan, where, self.records)
            if not plan.runs and any(block.runs_here for block in plan.blocks):
                raise UserError(f"shard={self.shard}: more parts than configurations; give fewer")
            if not plan.runs:
                needed = "; ".join(map(str, plan.left_out))
                raise UserError(
                    f"matrix={name!r}: none of its blocks fits {where.place}, which has "
                    f"{' and '.join(sorted(where.backends))} ({needed}); --dry-run shows its runs"
                )
            if self.profile:  # on this machine alone: nodes of a cluster may join later
                self._check_tools(plan.runs, where.environments)
            for block in plan.left_out:
                click.echo(f"left out: {block}", err=True)
            delivery = open_delivery(campaign, "sweep", tracked=self.tracked)
            delivery.begin({"matrix": name, "seed": str(asked.seed)})
            order = SweepOrder(
                *(plan, campaign, self.records, self.retry_failed, self.settle),
                profile=self.profile,
                deadline_s=deadline_s,
            )
            return _sweep(asked, where, order, delivery)

    def _check_executor(self) -> None:
        if self.executor == "local" and self.address is not None:
            raise UserError(f"address={self.address!r}: give --executor ray with it")
        for name in {"profile", "minutes"} & self.given if self.executor == "ray" else ():
            value = vars(self)[name]
            shown = value[0] if isinstance(value, tuple) else f"{value:g}"
            raise UserError(f"{name}={shown}: of this machine; use --executor local")

    def _part(self) -> tuple[int, int]:
        match = re.fullmatch(r"([0-9]+)/([0-9]+)", self.shard or "1/1")
        part, parts = map(int, match.groups()) if match else (0, 0)
        if not 1 <= part <= parts:
            raise UserError(f"shard={self.shard!r}: give a part and their number, such as 2/4")
        return part, parts

    def _overridden(self) -> dict[str, str]:
        names = RunConfig.model_fields.keys() - FILING_FIELDS
        values = set_values(self.overrides, names, "FIELD=VALUE, such as iters=10")
        parse_config(values)
        return values

    def _check_tools(
        self, runs: Sequence[RunConfig], environments: tuple[Environment, ...]
    ) -> None:
        """Refuse a tool that can examine none of the runs before the first of them is measured."""
        devices = ((environment_of(run, environments).device.backend, run) for run in runs)
        kinds = {(backend, run.world_size > 1): run for backend, run in devices}
        for name in self.profile:
            if name == "auto":
                continue
            reasons = [
                obstacle_to(TOOLS[name](), run, backend) for (backend, _), run in kinds.items()
            ]
            if all(reasons):
                raise UserError(f"profile={name}: {reasons[0]}")

    @contextmanager
    def _opened(self, campaign: str, env: str) -> Iterator[Executor]:
        if self.executor == "local":
            yield LocalExecutor(identify_machine(env))
            return
        remote = remote_executor(self.executor)(
            self.address or "auto", node_wait_s=self.node_wait, note=note
        )
        with remote.connected(campaign):
            yield remote


class SweepProgress(Bar, SweepWatch):
    """A bar over the plan on a terminal; a line for each run, with the time left at their pace."""

    _measured = 0

    def __init__(self, plan: Plan) -> None:
        super().__init__(
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            total=len(plan.runs),
            redirect_stdout=False,
            # One run may take minutes: the pace is that of the whole sweep.
            speed_estimate_period=7 * 24 * 3600,
        )

    def starting(self, config: RunConfig, what: str = "") -> None:
        """Name the run."""
        self.show(f"{what}{run_label(config)}")

    def on_event(self, event: Event) -> None:
        """Redraw, so that the time left goes on."""
        if event.name == "tick":
            self.show()

    def waiting(self, holder: str) -> None:
        """Say who has the device, also where no terminal shows the bar."""
        self.say(f"waiting for {holder}")

    def ended(self, turn: Turn) -> None:
        """Count the run, and leave a line for it."""
        self._progress.advance(self._task)
        row = _turn_row(turn)
        rate = f"{row['rate']:.4g} {rate_unit(turn_sample(turn) or 'image')}" if row["rate"] else ""
        doubt = "" if row["verdict"] == "clean" else row["verdict"]
        why = ": ".join(filter(None, (doubt, row["reason"])))
        self._measured += turn.state == "measured"
        bar = self._progress.tasks[0]
        left = ""
        if self._measured and bar.elapsed and bar.remaining:
            left = f"about {duration_text(bar.elapsed / self._measured * bar.remaining)} left"
        self.say("  ".join(filter(None, [row["configuration"], row["outcome"], rate, left, why])))
        self.show()

    def profiled(self, record: ProfileRecord) -> None:
        """Leave a line for the profile."""
        words = [f"profile of {run_label(record.config)}", record.outcome, record.reason]
        self.say("  ".join(filter(None, words)))


def run_label(config: RunConfig) -> str:
    """Return `resnet18 amp bs16 cuda compile=default run2`: what is not the default, by name."""
    backend = [] if config.backend == "auto" else [config.backend]
    words = [config.arch, config.precision, f"bs{config.batch_size}", *backend]
    for name, field in RunConfig.model_fields.items():
        value = getattr(config, name)
        if name not in _IN_LABEL | WINDOW_FIELDS | FILING_FIELDS and value != field.default:
            words.append(f"{name}={spelled(value)}")
    return " ".join([*words, f"run{config.repeat}"])


def plan_result(plan: Plan, where: Executor, records: Path) -> Output:
    """Return what each block needs, its runs here with their time, and those of other devices."""
    blocks = [
        {
            "block": block.name,
            "needs": " or ".join(_NEEDS[backend] for backend in block.needs),
            "packages": " and ".join(block.packages) or None,
            "runs": block.runs,
            "here": block.runs_here,
        }
        for block in plan.blocks
    ]
    lines = _run_lines(plan.runs, f"on {where.place}")
    if plan.runs and where.environments:
        lines += _estimate(plan, where.environments, records)
    for backend, runs in plan.elsewhere.items():
        lines += ["", *_run_lines(runs, f"not here, on a machine with {_NEEDS[backend]}")]
    labels = {backend: list(map(run_label, runs)) for backend, runs in plan.elsewhere.items()}
    facts = {"blocks": blocks, "runs": list(map(run_label, plan.runs)), "elsewhere": labels}
    return Output([table_of("plan", blocks), *lines], facts)


def _run_lines(runs: Sequence[RunConfig], where: str) -> list[str]:
    lines = [f"{number:5d}  {run_label(config)}" for number, config in enumerate(runs, start=1)]
    return [*lines, f"{counted(len(runs), 'run')} {where}"]


def _estimate(plan: Plan, environments: tuple[Environment, ...], records: Path) -> Iterator[str]:
    durations = Durations(
        (record for _, record in readable_records(records) if isinstance(record, RunRecord)),
        lambda config: cached_complexity(StepSpec.of(config, batch_size=1)).step_flops_per_sample,
    )
    known_s, unknown = durations.of_all(plan.runs, environments)
    if known := len(plan.runs) - unknown:
        about = f"about {duration_text(known_s)} for {known} of them"
        yield f"{about}, from what this machine measured before"
    if unknown:
        yield f"unknown for {unknown}: nothing like them was measured here yet"


def _sweep(asked: Matrix, where: Executor, order: SweepOrder, delivery: AnyDelivery) -> Output:
    """Measure, after whatever an earlier sweep left unfinished."""
    turns: list[Turn] = []
    interrupted = roofless = False
    try:
        wait_for_others(order.records)
        delivery.catch_up(order.records)
        order = replace(order, elsewhere=tuple(delivery.runs_elsewhere()))
        if asked.roofs and where.environments:
            order, roofless = _after_roofs(order, where.environments, delivery)
        with (
            SweepProgress(order.plan) as progress,
            closing(where.sweep(order, delivery.deliver, progress)) as measured,
        ):
            for turn in measured:
                turns.append(turn)
                progress.ended(turn)
    except KeyboardInterrupt:  # between two workers
        interrupted = True
    interrupted |= any(t.outcome == "interrupted" and t.state == "measured" for t in turns)
    result = sweep_result(turns, len(order.plan.runs), delivery, interrupted=interrupted)
    return replace(result, exit_code=result.exit_code or int(roofless))


def _after_roofs(
    order: SweepOrder, environments: tuple[Environment, ...], delivery: AnyDelivery
) -> tuple[SweepOrder, bool]:
    """The order in the precisions that the roofs show, and whether some could not be measured."""
    backends = {environment_of(run, environments).device.backend for run in order.plan.runs}
    with WorkerProgress("roofs") as bar:
        roofs = measure_roofs(
            sorted(backends),
            order.records,
            delivery.deliver,
            bar.on_event,
            lambda holder: bar.say(f"waiting for {holder}"),
            order.deadline_s,
        )
    for record in roofs.values():
        if record.reason is not None:
            note(f"roofs: {record.outcome}: {record.reason}")
    plan = in_precisions(order.plan, roofs, environments)
    if less := len(order.plan.runs) - len(plan.runs):
        why = "their precision is emulated here, or is what amp is here"
        note(f"runs left out by the roofs: {less}; {why}")
    return replace(order, plan=plan), any(record.outcome != "ok" for record in roofs.values())


def sweep_result(
    turns: Sequence[Turn], planned: int, delivery: AnyDelivery, *, interrupted: bool
) -> Output:
    """Return what became of the runs, after ending the sweep's own run with the same table."""
    sample = common_sample(filter(None, map(turn_sample, turns)))
    rate = rate_metric(sample)
    headings = {
        "configuration": "run",
        "outcome": "outcome",
        rate: rate_unit(sample),
        "iteration_time_ms_p50": "ms, p50",
        "attained_gflops": "GFLOP/s",
        "verdict": "verdict",
        "reason": "",
    }
    rows = sorted((_turn_row(turn, rate) for turn in turns), key=itemgetter("configuration"))
    table = table_of("sweep", rows, headings)
    delivery.end(Output([table]).text("markdown"), interrupted=interrupted)
    if delivery.problem is not None:
        say_not_uploaded(delivery.problem)
    code = NOT_TRACKED if delivery.problem else 0
    if any(turn.outcome != "ok" or turn.problem for turn in turns):
        code = 1
    left = sum(turn.state == "left over" for turn in turns)
    if interrupted:
        left += planned - len(turns) + sum(turn.outcome == "interrupted" for turn in turns)
        code = INTERRUPTED
    if interrupted or left:
        words = f"interrupted, {left}" if interrupted else f"{left}"
        note(f"{words} of {planned} runs left: the same command takes them up")
    campaigns = dict.fromkeys(turn.config.campaign for turn in turns if turn.outcome == "ok")
    after = [f"next: mlproject report --campaign {shlex.quote(name)}" for name in campaigns]
    return Output([table, *after], exit_code=code)


def turn_sample(turn: Turn) -> Sample | None:
    """Return what the run trained on; None where it did not come so far."""
    resolved = turn.record.resolved if turn.record is not None else None
    return None if resolved is None else resolved.sample


def _turn_row(turn: Turn, rate: str = "rate") -> dict[str, Any]:
    """What became of a run; its samples per second have the key `rate`."""
    figures = {} if turn.record is None else summary(turn.record)
    verdict = turn.record.verdict if turn.record else None
    doubts = [
        each.sentence for each in (verdict.findings if verdict else ()) if each.level != "note"
    ]
    return {
        "configuration": run_label(turn.config),
        "outcome": (turn.state == "measured" and turn.outcome) or turn.state,
        rate: figures.get(rate_metric(turn_sample(turn) or "image")),
        "iteration_time_ms_p50": figures.get("iteration_time_ms_p50"),
        "attained_gflops": figures.get("attained_gflops"),
        "verdict": verdict.level if verdict else None,
        "reason": turn.problem or turn.reason or "; ".join(doubts) or None,
    }
