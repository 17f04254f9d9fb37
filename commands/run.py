"""What measures: `run`, `watch`, `ceilings` and `profile`; each a record and a tracked run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, cast

import click

from analysis.presentation.words import counted
from bench.config import RunConfig, parse_config, rate_unit, spelled
from bench.config.run_config import node_rank
from bench.errors import UserError
from bench.launcher.device_lock import crowding, device_names, exclusive
from bench.launcher.measurement import (
    find_ceilings,
    launch_ceilings,
    launch_measurement,
    launch_script,
    script_of,
    take_part,
)
from bench.launcher.profile import launch_profile
from bench.records import CeilingsRecord, ProfileRecord, RunRecord, ToolName
from bench.records.folders import RecordFolder
from bench.records.journal import OnEvent
from bench.records.measurement import link_words
from bench.records.metrics import claimed_work, rate_name, summary
from commands import INTERRUPTED, OUTCOME_CODES
from commands.console.options import (
    Above,
    Configured,
    Count,
    Share,
    argument,
    field_option,
    note,
    option,
    words_of,
)
from commands.console.output import Answering, Formatted, Output
from commands.console.recorded import (
    Measuring,
    finish,
    import_upload,
    profile_facts,
    timed_record,
    verdict_fact,
)

_SHOWN = ("throughput_tokens_per_s", "iteration_time_ms_p50", "attained_gflops")


class _Removing:
    without: tuple[str, ...] = option(
        "after the measurement take this out of the steps, by turns, and measure the gain: "
        "input (batches come from memory), sync (ranks keep their gradients), host (no garbage "
        "collection), several by commas, or auto: those that take 5 % of a step",
        (),
        metavar="WHAT",
        callback=words_of("input", "sync", "host", "auto"),
    )


class Run(Configured, _Removing, Measuring):
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
            # the other machines do not wait for long
            with exclusive(device_names(config.backend, config.devices), wait=False):
                outcome, reason = take_part(config)
            click.echo(f"took part: {outcome}" + (f" ({reason})" if reason else ""))
            return OUTCOME_CODES[outcome]
        devices = device_names(config.backend, config.devices)
        done: list[RunRecord] = []
        folders: list[RecordFolder] = []

        def launch(folder: RecordFolder, on_event: OnEvent) -> RunRecord:
            upload = import_upload if self.tracked else None
            repeat = config.model_copy(update={"repeat": config.repeat + len(done)})
            folders.append(folder)
            how: dict[str, Any] = {"while_preparing": upload, "without": ",".join(self.without)}
            done.append(launch_measurement(repeat, folder, on_event, **how))
            return done[-1]

        shown: list[Output] = []
        codes: list[int] = []
        while len(done) < self.repeats and INTERRUPTED not in codes:
            repeat = f", repeat {len(done) + 1} of {self.repeats}" if self.repeats > 1 else ""
            title = f"{config.arch} {config.precision}{repeat}"
            shown.append(self.measured(title, launch, run_facts, devices, wait=config.nodes == 1))
            codes.append(Formatted.show(self, shown[-1]))
            if folders[-1].is_interrupted and len(done) < self.repeats:
                codes.append(INTERRUPTED)  # it was measured, and the others are not to be
            # The run that `mlflow run` made holds the first repeat; the others get their own.
            os.environ.pop("MLFLOW_RUN_ID", None)
        if self.repeats > 1:
            mean = _mean(done)
            Formatted.show(self, mean)
            facts = mean.facts | {"runs": [each.facts for each in shown]}
            shown = [Output([line for each in (*shown, mean) for line in each.parts], facts)]
        self.write(shown[0])
        return next(filter(None, codes), 0)

    def _asked(self) -> RunConfig:
        """The configuration; a label of another machine is not taken over."""
        if self.like is not None:
            record = timed_record(self.like, self.records, "like")
            if record.script:
                again = record.script.get("command", "watch it with mlproject watch")
                raise UserError(f"like={self.like!r}: is of a script; {again}")
            asked = record.config.model_dump(exclude={"env", "repeat"}).items()
            vars(self).update((n, spelled(value)) for n, value in asked if n not in self.given)
        return self.config()


def _mean(records: Sequence[RunRecord]) -> Output:
    """The mean rate of the repeats that were measured to their end."""
    from bench.statistics.ratios import repeats_of

    whole = [record for record in records if record.outcome == "ok"]
    resolved = whole[0].resolved if whole else None
    if resolved is None:
        return Output(facts={"repeats": len(whole)})
    name = rate_name(whole[0].config, resolved)
    mean = repeats_of([summary(record)[name] for record in whole])
    low, high = mean.interval or (None, None)
    facts: dict[str, Any] = {"repeats": len(whole), f"{name}_mean": mean.centre}
    facts |= {f"{name}_low": low, f"{name}_high": high}
    interval = f", 95 % interval {low:.4g} to {high:.4g}" if mean.interval else ""
    rate = f"{mean.centre:.4g} {rate_unit(resolved.sample)}"
    line = f"  {counted(len(whole), 'repeat')}: {rate}{interval}"
    return Output([line], facts)


def run_facts(record: RunRecord) -> dict[str, Any]:
    """Return what a run shows in a few numbers."""
    known, resolved = summary(record), record.resolved
    names = ([] if resolved is None else [rate_name(record.config, resolved)]) + [*_SHOWN]
    facts: dict[str, Any] = {name: round(known[name], 4) for name in names if name in known}
    if record.measurement is not None and record.measurement.ended_early is not None:
        facts["ended_early"] = record.measurement.ended_early
    return facts | verdict_fact(record.verdict)


class Ceilings(Measuring, Answering):
    """Measure this machine's roofs.

    They are the matrix product per precision, the bandwidth of memory and caches, and with
    --devices all-reduces over several devices, 1 KiB to 256 MiB.
    """

    backend: Literal["auto", "cpu", "cuda", "mps"] = option("device to measure", "auto")
    devices: Count = option("of several all-reduces over them too, a process for each", 1)
    if_missing: bool = option(
        "do nothing where --records holds roofs of this device and this torch already"
    )

    def _result(self) -> Output:
        config = parse_config({"backend": self.backend, "devices": f"{self.devices}"})
        if crowded := crowding(config):
            raise UserError(crowded)
        asked = config.backend, config.devices
        known = find_ceilings(self.records, *asked) if self.if_missing else None
        if known is not None:
            folder = RecordFolder(self.records / known.record_id)
            return finish(self, folder, known, roof_facts(known))
        launch = partial(launch_ceilings, config.backend, devices=config.devices)
        return self.measured("ceilings", launch, roof_facts, device_names(*asked))


def roof_facts(record: CeilingsRecord) -> dict[str, str]:
    """Return the device and each of its roofs, or why there is none."""
    facts = {"device": record.environment.device.name} if record.environment else {}
    for ceiling in record.ceilings:
        if ceiling.peak_flops_per_s is not None:
            facts[f"roof {ceiling.math_mode}"] = f"{ceiling.peak_flops_per_s / 1e9:.4g} GFLOP/s"
        if ceiling.peak_bytes_per_s is not None:
            facts["roof memory"] = f"{ceiling.peak_bytes_per_s / 1e9:.4g} GB/s"
        if ceiling.one_way_bytes_per_s is not None:
            facts["reading or writing alone"] = f"{ceiling.one_way_bytes_per_s / 1e9:.4g} GB/s"
    for roof in record.cache_roofs:
        if roof.peak_bytes_per_s is not None:
            facts[f"roof {roof.level}"] = f"{roof.peak_bytes_per_s / 1e9:.4g} GB/s"
        else:
            facts[f"no roof {roof.level}"] = roof.missing["peak_bytes_per_s"]
    if link := record.all_reduces:
        facts[f"all-reduce of {link[0].devices} by {link[0].communication}"] = link_words(link)
    facts |= {f"known {one.work}": one.sentence for one in record.counter_checks}
    return facts | verdict_fact(record.verdict)


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

    def _result(self) -> Output:
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


class Watch(_Removing, Measuring):
    """Measure a training script as it is, and end it after that.

    COMMAND is what you type to train: mlproject watch -- python train.py --lr 0.1; or torchrun,
    accelerate launch, python -m package. A step is from one optimizer.step() to the next, of
    torch.optim. After the window some steps are profiled and counted. The exit code is the
    script's own where it ends by itself with an error.
    """

    script: tuple[str, ...] = argument(
        required=True, metavar="[--] COMMAND...", type=click.UNPROCESSED
    )
    seconds: Above = option("end the measurement, and the script, after this time", 120.0)
    keep_going: bool = option("let the script run to its end after the measurement")
    samples_per_step: Count | None = option(
        "samples of a step and rank [default: the model's first input says it]"
    )
    step_of: str | None = option(
        "a function of the script that is called once a step, where optimizers do not show it; "
        "__main__:train_step for one of the script's own file",
        metavar="MODULE:FUNCTION",
    )
    claims_mfu: Share | None = option(
        "the MFU that the script prints, such as 0.41: what it counts is said [with --peak]"
    )
    peak: float | None = option("FLOP/s that the script divides by", metavar="FLOPS")
    env: str = field_option("env")
    campaign: str = field_option("campaign")

    @classmethod
    def command(cls) -> click.Command:
        """Leave the options of the script to the script."""
        made = super().command()
        made.allow_interspersed_args = False
        return made

    def run(self) -> int:
        """Run the script, and show what was measured when it has ended."""
        if (self.claims_mfu is None) is not (self.peak is None) or (self.peak or 1) <= 0:
            raise UserError(f"claims_mfu={self.claims_mfu} peak={self.peak}: give both, such as "
                            "--claims-mfu 0.41 --peak 989e12")  # fmt: skip
        config = parse_config({"env": self.env, "campaign": self.campaign})
        (title, _), codes = script_of(self.script), []
        without = ",".join(self.without)
        names = ("seconds", "keep_going", "samples_per_step", "step_of")
        how = {name: vars(self)[name] for name in names} | {"without": without}

        def launch(folder: RecordFolder, on_event: OnEvent) -> RunRecord:
            record, code = launch_script(self.script, config, folder, on_event, **how)
            codes.append(code)
            return record

        def facts(record: RunRecord) -> dict[str, Any]:
            if self.claims_mfu is None or self.peak is None:
                return run_facts(record)
            claim = claimed_work(record, self.claims_mfu, self.peak).items()
            short = {n: float(f"{v:.4g}") if isinstance(v, float) else v for n, v in claim}
            return run_facts(record) | short

        end = "runs to its end" if self.keep_going else "is ended after it"
        note(f"{title} is measured for {self.seconds:g} s at most, and {end}")
        if without:
            note(f"then {without} is taken out by turns: use no losses or weights of this run")
        result = self.measured(title, launch, facts, device_names("auto"), drawn=False)
        shown = self.show(result)
        return codes[0] or shown
