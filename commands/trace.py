"""`mlproject trace`: steps of anyone's profiler trace, under a roof, and why they wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from analysis.account import Difference
from analysis.presentation.table import Table
from analysis.report.step_tables import (
    comparison_table,
    rank_table,
    step_sentences,
    trace_ops_table,
    trace_tables,
)
from analysis.traces.placed import PlacedTrace, compare_two
from analysis.traces.record import TracedModel, explained_trace
from bench.config import RunConfig, parse_config
from bench.errors import Unknown, UserError
from bench.profilers.traces import keep_trace, read_trace
from bench.profilers.traces.steps import WHOLE
from bench.records import Backend, ProfileRecord, StepSpec
from bench.records.base import ratio
from bench.records.folders import RecordFolder, ceilings_in
from commands import NOT_TRACKED
from commands.console.options import (
    Count,
    File,
    Folder,
    WithPeaks,
    WithRecords,
    argument,
    note,
    option,
    tracked_here,
)
from commands.console.output import Formatted, Output

#: A larger one stays where it is; its record is tracked.
_MOST_BYTES = 256_000_000


class Trace(WithRecords, WithPeaks, Formatted):
    """Say what holds the steps of a profiler's trace back; compare two traces.

    FILE is a Kineto trace (.json or .json.gz) or an nsys export (.sqlite). Ops stand under the
    roofs measured on a device of that name (in --records), else under its datasheet's. Two FILEs
    are compared: what of the difference each op explains. FILEs of ranks of one job show which
    rank makes the others wait.
    """

    files: tuple[File, ...] = argument(required=True)
    steps: str | None = option(
        "steps are the marks whose names begin so; default: ProfilerStep, else the whole trace",
        metavar="NAME",
    )
    whole: bool = option("the whole trace is one step")
    device: str | None = option(
        "one device alone, by its number in the trace; default: the mean over all", metavar="N"
    )
    arch: str | None = option("the model that was trained: torchvision's name or module:callable")
    batch_size: Count | None = option("its samples per step and device")
    precision: str = option("as of mlproject run, with --arch", "fp32")
    image_size: Count | None = option("default: the model's own")
    seq_len: Count | None = option("default: as of mlproject run")
    top: Count = option("ops shown", 25)
    out: Folder | None = option(
        "folder of a page like report's, with the tables as CSV and the roofline"
    )
    campaign: str = option("label of tracked traces", "traces")
    tracked: bool = option(
        "keep a record of each trace, and make it a tracked run with the trace as an artifact",
        False,
        "--track/--no-track",
        show_default=True,
        callback=tracked_here,
    )

    def run(self) -> int:
        """Read, place and compare the traces; keep them where that is asked for."""
        parse_config({"campaign": self.campaign})
        if self.whole and self.steps is not None:
            raise UserError(
                f"steps={self.steps!r}: --whole makes the trace one step; give one of them"
            )
        if self.form == "csv" and len(self.files) > 1:
            raise UserError("--format csv: a table of one FILE; --out writes one for each")
        traces = list(self._placed(self._config()))
        if self.out is not None:
            from analysis.report.write import write_report

            path = write_report([], self.out, traces=traces)
            note(str(path))
        self.show(self._found(traces))
        return self._keep(traces) if self.tracked else 0

    def _found(self, traces: Sequence[PlacedTrace]) -> Output:
        tables = [trace_ops_table(trace, "ops") for trace in traces]
        parts: list[Table | str] = []
        facts: Any = [_facts(trace) for trace in traces]
        ranks = rank_table(traces)
        if isinstance(ranks, Unknown):
            parts.append(f"Who waits is not known: {ranks.reason}")
        elif ranks is not None:
            parts.append(ranks)
        for number, trace in enumerate(facts if ranks is not None else ()):
            trace["of_ranks"] = ranks.rows[number] if ranks else None
        compared = compare_two([trace.record for trace in traces])
        if isinstance(compared, Unknown):
            parts.append(f"Not compared: {compared.reason}.")
            facts = {"traces": facts, "comparison": None, "not_compared": compared.reason}
        elif compared is not None:
            changes = self._longest(comparison_table(compared), "ops that explain most")
            parts += [compared.summary, changes]
            ops = [asdict(op) for op in compared.changed]
            sides = zip(traces, compared.repetitions, strict=True)
            mean = Difference(*(trace.account.divided(times) for trace, times in sides))
            parts.insert(1, f"mean steps: {mean.words}")
            gains = {"ops": ops, "account_gain_s": mean.gains_s}
            facts = {"traces": facts, "comparison": {**asdict(compared), **gains}}
        for trace, table in zip(traces, tables, strict=True):
            parts += [trace.label, replace(trace_tables([trace])["trace-steps"], title="")]
            parts += trace.account.lines()
            parts += [f"  {sentence}" for sentence in step_sentences(trace)]
            parts.append(self._longest(table, "longest ops, per step"))
        return Output(parts, facts if len(traces) > 1 else facts[0], tables)

    def _longest(self, table: Table, what: str) -> Table:
        """The first rows of the table as `--top` says, the number of all in its title."""
        title = f"{min(self.top, len(table.rows))} of {len(table.rows)}: {what}"
        return replace(table, title=title, shown=self.top)

    def _config(self) -> RunConfig | None:
        """What was trained, checked as `mlproject run` does; None where it is not said."""
        if self.arch is None:
            return None
        if self.batch_size is None:
            raise UserError(
                f"arch={self.arch!r}: --batch-size is needed with it, samples per step and device"
            )
        names = ("arch", "precision", "batch_size", "image_size", "seq_len")
        given = {name: getattr(self, name) for name in names}
        return parse_config({name: str(v) for name, v in given.items() if v is not None})

    def _placed(self, config: RunConfig | None) -> Iterator[PlacedTrace]:
        """Read every trace and place it under its roof."""
        from bench.cost.printed_ops import work_of  # which imports torch

        ceilings, peaks = ceilings_in(self.records), self.peaks()
        for number, path in enumerate(self.files, 1):
            trace = read_trace(path)
            if self.device is not None:
                trace = trace.only(self.device)
            model = _model(config, "cuda" if trace.device else "cpu") if config else None
            beside = RecordFolder(path.absolute().parent).readable_record()
            profile = beside if isinstance(beside, ProfileRecord) else None
            name = path.name
            if profile is not None or [other.name for other in self.files].count(name) > 1:
                name = f"{path.absolute().parent.name}/{name}"
            yield explained_trace(
                *(trace, WHOLE if self.whole else self.steps, work_of),
                number=number,
                name=name,
                campaign=self.campaign,
                ceilings=ceilings,
                peaks=peaks,
                model=model,
                profile=profile,
            )

    def _keep(self, traces: Sequence[PlacedTrace]) -> int:
        """Write a record of each trace with the trace beside it, and upload them."""
        from commands.console.recorded import upload_at_the_end, write_record

        folders = [RecordFolder(self.records / trace.record.record_id) for trace in traces]
        for folder, trace, path in zip(folders, traces, self.files, strict=True):
            if folder.readable_record() is None:  # read alike before: the record may be tracked
                write_record(folder, trace.record, self.records)
            if path.stat().st_size > _MOST_BYTES:
                note(f"{path}: over {_MOST_BYTES / 1e6:.0f} MB, not kept")
                continue
            try:
                keep_trace(path, folder.path)
            except OSError as error:
                raise UserError(
                    f"{path}: cannot be kept in {folder.path} ({error.strerror or error}); "
                    "choose another folder with --records"
                ) from None
        return NOT_TRACKED if upload_at_the_end(folders, self.say) else 0


def _model(config: RunConfig, backend: Backend) -> TracedModel:
    from bench.cost.estimate import op_work
    from bench.training.workloads import find_workload

    spec = StepSpec.of(config.model_copy(update={"backend": backend}))
    workload = find_workload(spec.arch, image_size=spec.image_size, seq_len=spec.seq_len)
    return TracedModel(spec.arch, spec.batch_size, spec.precision, op_work(spec), workload.sample)


def _facts(trace: PlacedTrace) -> dict[str, Any]:
    """A trace's record, with its roof and its ops' places under it."""
    record, used = trace.record.model_dump(mode="json"), trace.used
    record["roof"] = used and {
        "peak_flops_per_s": used.roof.peak_flops_per_s,
        "peak_bytes_per_s": used.roof.peak_bytes_per_s,
        "kind": used.ceiling.kind,
        "source": used.ceiling.source,
    }
    if isinstance(trace.ceiling, Unknown):
        record["missing"]["roof"] = trace.ceiling.reason
    record |= trace.account.facts()
    for op, place in zip(record["ops"], trace.ops, strict=True):
        op["attained_flops_per_s"] = place.flops_per_s
        op["eager_bytes_per_s"] = ratio(op["eager_bytes"], op["time_s"])
    return record
