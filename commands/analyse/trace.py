"""`mlproject trace`: steps of anyone's profiler trace, under a roof, and why they wait."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.config import RunConfig, parse_config
from bench.errors import UserError
from commands.views.options import mlflow_is_here, peaks_option, records_option
from commands.views.recorded import NOT_TRACKED, say_not_uploaded, upload_all, write_record

if TYPE_CHECKING:
    from analysis.traces.placed import PlacedTrace
    from analysis.traces.read import TracedModel
    from bench.records import Backend
    from bench.records.folders import RecordFolder

#: A larger one stays where it is; its record is tracked.
_MOST_BYTES = 256_000_000


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--steps",
    "mark",
    metavar="NAME",
    help="steps are the marks whose names begin so; default: ProfilerStep, else the whole trace",
)
@click.option("--whole", is_flag=True, help="the whole trace is one step")
@click.option("--arch", help="the model that was trained: torchvision's name or module:callable")
@click.option("--batch-size", type=click.IntRange(min=1), help="its samples per step and device")
@click.option(
    "--precision", default="fp32", show_default=True, help="as of mlproject run, with --arch"
)
@click.option("--image-size", type=click.IntRange(min=1), help="default: the model's own")
@click.option("--seq-len", type=click.IntRange(min=1), help="default: as of mlproject run")
@click.option("--top", default=25, show_default=True, type=click.IntRange(min=1), help="ops shown")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="folder of a page like report's, with the tables as CSV and the roofline",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "csv"]),
    default="text",
    show_default=True,
    help="csv: the ops, a row per op and shape",
)
@click.option("--campaign", default="traces", show_default=True, help="label of tracked traces")
@click.option(
    "--track/--no-track",
    "tracked",
    default=False,
    show_default=True,
    help="keep a record of each trace, and make it a tracked run with the trace as an artifact",
)
@records_option
@peaks_option
def command(
    files: tuple[Path, ...],
    mark: str | None,
    whole: bool,
    arch: str | None,
    batch_size: int | None,
    precision: str,
    image_size: int | None,
    seq_len: int | None,
    top: int,
    out: Path | None,
    form: str,
    campaign: str,
    tracked: bool,
    records: Path,
    peaks_file: Path | None,
) -> int:
    """Read traces of PyTorch's profiler or of Nsight Systems, and say what holds their steps back.

    FILE is a Kineto trace (.json or .json.gz) or an nsys export (.sqlite). Ops stand under the
    roofs measured on a device of that name (in --records), else under its datasheet's. Two FILEs
    that are not ranks of one job are compared: what of the difference each op explains. Exit codes:
    0 printed; 2 a file that is no trace, or a wrong value; 3 not uploaded.
    """
    parse_config({"campaign": campaign})
    if whole and mark is not None:
        raise UserError(f"steps={mark!r}: --whole makes the trace one step; give one of them")
    if form == "csv" and len(files) > 1:
        raise UserError("--format csv: a table of one FILE; --out writes one for each")
    if tracked and not mlflow_is_here():
        raise UserError("--track: this environment has no MLflow; track where it is installed")
    config = _config(arch, batch_size, precision, {"image_size": image_size, "seq_len": seq_len})
    traces = _placed(files, mark, whole, config, campaign, records, peaks_file)
    if out is not None:
        from analysis.report import write_report

        path = write_report([], out, traces=traces)
        click.echo(f"mlproject: {path}", err=True)
    _print(traces, top, form)
    return _keep(traces, files, records) if tracked else 0


def _config(
    arch: str | None, batch_size: int | None, precision: str, sizes: Mapping[str, int | None]
) -> RunConfig | None:
    """What was trained, checked as `mlproject run` does; None where it is not said."""
    if arch is None:
        return None
    if batch_size is None:
        raise UserError(
            f"arch={arch!r}: --batch-size is needed with it, samples per step and device"
        )
    given = {"arch": arch, "precision": precision, "batch_size": str(batch_size)}
    known = {name: str(size) for name, size in sizes.items() if size is not None}
    return parse_config(given | known)


def _model(config: RunConfig, backend: Backend) -> TracedModel:
    from analysis.traces.read import TracedModel
    from bench.cost import StepSpec, op_work
    from bench.training.workloads import find_workload

    batch_size = int(config.batch_size)
    image_size, seq_len = (
        None if size == "auto" else int(size) for size in (config.image_size, config.seq_len)
    )
    spec = StepSpec(
        config.arch, batch_size, config.precision, image_size, seq_len=seq_len, backend=backend
    )
    workload = find_workload(config.arch, image_size=image_size, seq_len=seq_len)
    return TracedModel(config.arch, batch_size, config.precision, op_work(spec), workload.sample)


def _placed(
    files: Sequence[Path],
    mark: str | None,
    whole: bool,
    config: RunConfig | None,
    campaign: str,
    records: Path,
    peaks_file: Path | None,
) -> list[PlacedTrace]:
    """Read every trace and place it under its roof."""
    from analysis.roofs.peaks import read_peaks
    from analysis.traces.ops import OpTable
    from analysis.traces.read import explained, trace_record
    from analysis.traces.steps import WHOLE, cut_steps
    from analysis.traces.timeline import timeline
    from bench.cost.called import work_of
    from bench.profilers.traces import read_trace
    from bench.records import CeilingsRecord, ProfileRecord
    from bench.records.folders import RecordFolder, readable_records

    ceilings = [one for _, one in readable_records(records) if isinstance(one, CeilingsRecord)]
    peaks = read_peaks(peaks_file) if peaks_file else ()
    found: list[PlacedTrace] = []
    for number, path in enumerate(files, 1):
        trace = read_trace(path)
        steps = cut_steps(trace, WHOLE if whole else mark)
        times, table = timeline(trace, steps), OpTable(steps, trace)
        model = _model(config, "cuda" if trace.device else "cpu") if config else None
        work = work_of(table.ops)
        rows = table.rows(work) if model is None else table.rows_of_model(model.calls, work)
        beside = RecordFolder(path.absolute().parent).readable_record()
        profile = beside if isinstance(beside, ProfileRecord) else None
        name = path.name
        if profile is not None or [other.name for other in files].count(name) > 1:
            name = f"{path.absolute().parent.name}/{name}"
        record = trace_record(
            trace, steps, times, rows, name=name, campaign=campaign, model=model, profile=profile
        )
        found.append(explained(record, times, ceilings, peaks, number, profile))
    return found


def _print(traces: Sequence[PlacedTrace], top: int, form: str) -> None:
    from analysis.report.tables.trace_tables import trace_ops_table
    from analysis.traces.compare import compare_two
    from commands.views.trace_view import (
        as_json,
        comparison_as_json,
        print_comparison,
        print_trace,
    )

    if form == "csv":
        for trace in traces:
            click.echo(trace_ops_table(trace, "ops").csv(), nl=False)
        return
    compared = compare_two([trace.record for trace in traces])
    if form == "json":
        facts: Any = [as_json(trace) for trace in traces]
        if isinstance(compared, str):
            facts = {"traces": facts, "comparison": None, "not_compared": compared}
        elif compared is not None:
            facts = {"traces": facts, "comparison": comparison_as_json(compared)}
        click.echo(json.dumps(facts if len(traces) > 1 else facts[0], indent=1))
        return
    if isinstance(compared, str):
        click.echo(f"Not compared: {compared}.")
    elif compared is not None:
        print_comparison(compared, top)
    for trace in traces:
        print_trace(trace, top)


def _keep(traces: Sequence[PlacedTrace], files: Sequence[Path], records: Path) -> int:
    """Write a record of each trace with the trace beside it, and upload them."""
    from bench.records.folders import RecordFolder
    from tracking.store import TrackingError

    folders: list[RecordFolder] = []
    for trace, path in zip(traces, files, strict=True):
        folder = RecordFolder(records / trace.record.record_id)
        if folder.readable_record() is None:  # read alike before: the record may be tracked
            write_record(folder, trace.record, records)
        try:
            _copy(path, folder)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be kept in {folder.path} ({error.strerror or error}); "
                "choose another folder with --records"
            ) from None
        folders.append(folder)
    try:
        counts = upload_all(folders, None)
    except TrackingError as error:
        say_not_uploaded(error)
        return NOT_TRACKED
    return NOT_TRACKED if counts["failed"] else 0


def _copy(path: Path, folder: RecordFolder) -> None:
    """Put the trace beside its record, whole or not at all, compressed if it is JSON."""
    with path.open("rb") as file:
        head = file.read(16)
    is_database = head.startswith(b"SQLite format 3")
    kept = folder.path / ("trace.sqlite" if is_database else "trace.json.gz")
    if path.stat().st_size > _MOST_BYTES:
        click.echo(f"mlproject: {path}: over {_MOST_BYTES / 1e6:.0f} MB, not kept", err=True)
        return
    if kept.exists():
        return
    partial = kept.with_name(f"{kept.name}.partial")
    if is_database or head.startswith(b"\x1f\x8b"):
        shutil.copyfile(path, partial)
    else:
        with path.open("rb") as source, gzip.open(partial, "wb") as target:
            shutil.copyfileobj(source, target)
    partial.replace(kept)
