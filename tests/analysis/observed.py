"""Observations with arithmetic for the head, and those of two published reports."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from factories import NOON

from analysis.runs.place import place
from analysis.runs.run import Run
from analysis.server.frame import tracked_frame
from bench.config import FILING_FIELDS, WINDOW_FIELDS, RunConfig
from bench.records import Finding
from mlproject import cli
from tracking.importing import read_results
from tracking.tracked_runs import TrackedRun, as_tracked, runs_table
from tracking.upload.delivery import Added

#: A variant that `make test` leaves out.
LONG = partial(pytest.param, marks=pytest.mark.long)
PUBLISHED = Path(__file__).with_name("data") / "published_runs.csv"

_DEFAULTS = {
    name: f"{value}"
    for name, value in RunConfig(arch="resnet18", batch_size=10).model_dump().items()
    if name not in FILING_FIELDS | WINDOW_FIELDS
} | {"env": "lab", "device": "Example GPU"}


def observation(name="r1", images_per_s=100.0, *, times_s=(), metrics=None, **changes):
    """A run that ended well; settings by name, other fields of `Run` too."""
    fields = {
        key: changes.pop(key)
        for key in (
            *("outcome", "reason", "campaign", "software", "count", "deviations", "findings"),
            *("asked", "distinction", "machine", "started"),
        )
        if key in changes
    }
    settings = _DEFAULTS | {key: f"{value}" for key, value in changes.items()}
    metrics = {"throughput_images_per_s": images_per_s} if metrics is None else metrics
    times_s = tuple(times_s)
    return Run(name=name, settings=settings, metrics=metrics, iteration_times_s=times_s, **fields)


#: What the verdict of a window that was not in steady state says.
DRIFT = Finding(code="drift", level="suspect", message="the last third ran slower")


def repeated(name, rates, **changes):
    """One observation per rate: name-1, name-2, ..."""
    return [
        observation(f"{name}-{number}", rate, **changes) for number, rate in enumerate(rates, 1)
    ]


def curve(rates, **settings):
    """One observation per batch size, of its rate: b8, b16, ..."""
    return [
        observation(f"b{batch}", rate, batch_size=batch, **settings)
        for batch, rate in rates.items()
    ]


def tracked(record, run_id="r1"):
    """Return the record as the tracking package would log it."""
    return replace(as_tracked(record, run_id), name=f"name-{run_id}")


def frame_of(*runs, profiles=(), placed=None):
    """The table of these tracked runs."""
    return tracked_frame(runs_table(runs), runs_table(profiles), placed)


class Server:
    """Stands for tracking; what it was asked for, what was fetched, and the reports it got.

    `runs` are records, or what reading a record raises, by run id; `records` get ids of their own.
    """

    def __init__(self, monkeypatch, runs=None, *, records=(), error=None, log_error=None):
        self.asked, self.fetched, self.logged = [], [], []
        runs = {**(runs or {}), **{f"id-of-{record.record_id}": record for record in records}}

        def search(server, query, experiments=None, *, refresh=False):
            self.asked.append((query, experiments, server.uri, refresh))
            if error is not None:
                raise error
            others = ("ceilings", "profile", "imported", "trace")
            kinds = [kind for kind in others if f"'{kind}'" in query]
            return [
                _found(run_id, run)
                for run_id, run in runs.items()
                if _kind(run) == (kinds[0] if kinds else "measurement")
            ]

        def download(run_id, *_):
            self.fetched.append(run_id)
            if isinstance(runs[run_id], Exception):
                raise runs[run_id]
            return runs[run_id]

        def log_report(folder, *, name, tags, run_id=None):
            if log_error is not None:
                raise log_error
            self.logged.append((folder, name, tags))
            return "report-run"

        def add_to_runs(additions):
            self.added = additions
            return Added(new=len(additions))

        self.added = {}
        monkeypatch.setattr("tracking.upload.delivery.add_to_runs", add_to_runs)

        def search_table(*asked, **how):
            return runs_table(search(*asked, **how))

        monkeypatch.setattr("tracking.tracked_runs.search_table", search_table)
        monkeypatch.setattr("tracking.tracked_runs.download_record", download)
        monkeypatch.setattr("tracking.tracked_runs.download_any", download)
        monkeypatch.setattr("tracking.tracked_runs._record", lambda server, *run: download(*run))
        monkeypatch.setattr("tracking.upload.upload.log_report", log_report)


def _kind(run):
    return getattr(run, "kind", "measurement")


def _found(run_id, run):
    if isinstance(run, Exception):
        return TrackedRun(run_id, f"name-{run_id}", "FINISHED", NOON, {}, {}, {}, "")
    return tracked(run, run_id)


def published_records():
    """The 48 configurations of two published reports by run id; their work is not counted."""
    found = read_results(PUBLISHED, campaign="none", given={})
    assert found.problems == []
    return {f"line-{record.source_line}": record for record in found.records}


def published():
    records = published_records().items()
    return [
        replace(place(record, run_id=name), number=number)
        for number, (name, record) in enumerate(records, 1)
    ]


def records_on_disk(folder, *records):
    for record in records:
        path = folder / record.record_id
        path.mkdir(parents=True)
        (path / "record.json").write_text(record.model_dump_json(), encoding="utf-8")
    return str(folder)


def invoke(module, *arguments):
    """Run the command of a module, or of this name; what it raises is raised here."""
    name = getattr(module, "__name__", module).rpartition(".")[2]
    return CliRunner().invoke(
        cli.get_command(None, name),
        [str(a) for a in arguments],
        standalone_mode=False,
        catch_exceptions=False,
    )
