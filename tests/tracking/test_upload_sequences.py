"""Uploads in any order, cut and met by others: every record once, whole, and equal.

MLflow is in memory here: what a client may ask it, with faults at any of its answers.
"""

import re
import shutil
import tempfile
from itertools import count
from pathlib import Path
from unittest.mock import patch

import samples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from mlflow.entities import (
    Experiment,
    ExperimentTag,
    FileInfo,
    Param,
    Run,
    RunData,
    RunInfo,
    RunTag,
)
from mlflow.exceptions import MlflowException
from mlflow.store.entities import PagedList
from stored_runs import filed

from bench.records.folders import RecordFolder, record_folders
from commands.console.recorded import upload_all
from tracking import connection, schema
from tracking.connection import Server, TrackingError
from tracking.content import content_of
from tracking.upload.upload import DeletedRunError, differences, upload


class KilledError(BaseException):
    """The process is gone: nothing of it runs any more."""


class Memory:
    """What a server holds, and the next fault: at which answer, and what happens there."""

    def __init__(self):
        self.runs, self.files, self.tags, self.ids = {}, {}, {}, count()
        self.left, self.fault = None, None

    def answer(self, method, *args, **kwargs):
        """The answer of one request, unless the fault comes now."""
        if self.left is None:
            return method(*args, **kwargs)
        self.left -= 1
        if self.left >= 0:
            return method(*args, **kwargs)
        fault, self.left = self.fault, None
        if fault == "refuse":
            raise ConnectionError("reset")
        if callable(fault):
            fault()
            return method(*args, **kwargs)
        method(*args, **kwargs)
        raise KilledError if fault == "kill" else ConnectionError("reset")

    def active(self, record_id):
        """The runs of a record that are not deleted."""
        found = [run for run in self.runs.values() if run.info.lifecycle_stage == "active"]
        return [run for run in found if run.data.tags.get(schema.RECORD_ID) == record_id]

    def deleted(self, record_id):
        """The whole runs of a record that were deleted."""
        found = [run for run in self.runs.values() if run.info.lifecycle_stage == "deleted"]
        whole = [run for run in found if run.data.tags.get(schema.UPLOADED) == "true"]
        return [run for run in whole if run.data.tags.get(schema.RECORD_ID) == record_id]

    def search_experiments(self, **_):
        tags = [ExperimentTag(*each) for each in self.tags.items()]
        return PagedList([Experiment("0", "Default", "", "active", tags)], None)

    def set_experiment_tag(self, _, key, text):
        self.tags[key] = text

    def search_runs(self, _, wanted, **__):
        begin = re.fullmatch(rf"tags\.`{schema.RECORD_ID}` LIKE '(.*)%'", wanted)[1]
        there = [
            run
            for run in self.runs.values()
            if run.data.tags.get(schema.RECORD_ID, "").startswith(begin)
        ]
        return PagedList(there, None)

    def get_run(self, run_id):
        return self.runs[run_id]

    def create_run(self, experiment, *, start_time, tags, run_name):
        run_id = f"{next(self.ids) * 7919 % 1000:032}"  # ids do not sort as they were made
        self.files[run_id] = {}
        tags = [RunTag(*tag) for tag in tags.items()]
        info = RunInfo(
            run_id, experiment, "u", "RUNNING", start_time, None, "active", run_id, run_name
        )
        self.runs[run_id] = Run(info, RunData(tags=tags))
        return self.runs[run_id]

    def _change(self, run_id, *, data=None, **info):
        old = self.runs[run_id]
        if old.info.lifecycle_stage != "active":
            raise MlflowException("it must be in the 'active' state", 1000)
        known = {key.lstrip("_"): value for key, value in vars(old.info).items()}
        facts = known | {"user_id": "u"} | info
        self.runs[run_id] = Run(RunInfo(**facts), data or old.data)

    def delete_run(self, run_id):
        self._change(run_id, lifecycle_stage="deleted")

    def set_terminated(self, run_id, status, end_time):
        self._change(run_id, status=status, end_time=end_time)

    def delete_tag(self, run_id, name):
        self._data(run_id, {**self.runs[run_id].data.tags, name: None}, {}, [])

    def log_batch(self, run_id, metrics=(), params=(), tags=()):
        new = {tag.key: tag.value for tag in tags}
        self._data(run_id, new, {one.key: one.value for one in params}, metrics)

    def _data(self, run_id, tags, params, metrics):
        old = self.runs[run_id].data
        tags = {key: value for key, value in (old.tags | tags).items() if value is not None}
        last = {one.key: one for one in (*old._metric_objs, *metrics)}
        data = RunData(
            list(last.values()),
            [Param(*each) for each in (params | old.params).items()],
            [RunTag(*each) for each in tags.items()],
        )
        self._change(run_id, data=data)


class Client:
    """MLflow's client and file store of one run, each request by way of `Memory.answer`."""

    def __init__(self, memory, run_id=None):
        self._memory, self._run_id = memory, run_id

    def __getattr__(self, name):
        return lambda *args, **kwargs: self._memory.answer(
            getattr(self._memory, name), *args, **kwargs
        )

    def log_artifact(self, path, place=None):
        name = f"{place}/{Path(path).name}" if place else Path(path).name
        write = self._memory.files[self._run_id].__setitem__
        self._memory.answer(write, name, Path(path).read_bytes())

    def list_artifacts(self, _=None):
        files = self._memory.files[self._run_id]
        return self._memory.answer(
            lambda: [FileInfo(name, False, len(text)) for name, text in files.items()]
        )


def server_of(memory, patience_s):
    """A server that holds `memory`, as every command would open it."""

    class InMemory(Server):
        client = Client(memory)

        def __init__(self, *_, **__):
            super().__init__("http://memory", patience_s)

        def files(self, artifact_uri):
            return Client(memory, artifact_uri)

    return InMemory


MACHINES = ("one", "two")
FAULTS = st.tuples(st.integers(0, 20), st.sampled_from(("refuse", "lose", "kill", "meet")))
NUMBERS = st.integers(0, 1)


class Uploads(RuleBasedStateMachine):
    """Two machines with copies of two records, and a server between them."""

    def __init__(self):
        super().__init__()
        self.memory, self.folder = Memory(), tempfile.TemporaryDirectory()
        place = Path(self.folder.name)
        made = [samples.run_record(telemetry=samples.telemetry()), samples.failed_record()]
        self.records = [filed(place / "one", record)[1] for record in made]
        shutil.copytree(place / "one", place / "two")
        self.sleeping = patch("tracking.connection.time.sleep")
        self.sleeping.start()

    def teardown(self):
        try:
            for machine in MACHINES:
                self.sync(machine, None, 5.0)
            for record in self.records:
                [run] = self.memory.active(record.record_id) or self.memory.deleted(
                    record.record_id
                )
                assert run.data.tags[schema.UPLOADED] == "true"
        finally:
            self.sleeping.stop()
            self.folder.cleanup()

    def folder_of(self, machine, number):
        return RecordFolder(Path(self.folder.name, machine, self.records[number].record_id))

    def with_fault(self, call, fault, machine, number, patience_s):
        """Do it on a server where the fault comes; what a dead server does is told, no more."""
        if fault is not None:
            other = next(one for one in MACHINES if one != machine)

            def meet():
                server = server_of(self.memory, 5.0)()
                upload(self.folder_of(other, number), self.records[number], server)

            self.memory.left = fault[0]
            self.memory.fault = meet if fault[1] == "meet" else fault[1]
        try:
            call(server_of(self.memory, patience_s))
        except DeletedRunError:
            assert any(self.memory.deleted(record.record_id) for record in self.records)
        except (TrackingError, KilledError):
            assert fault is not None
        finally:
            self.memory.left = None

    @rule(
        machine=st.sampled_from(MACHINES),
        number=NUMBERS,
        fault=st.none() | FAULTS,
        patience_s=st.sampled_from((0.0, 5.0)),
    )
    def upload(self, machine, number, fault, patience_s):
        folder, record = self.folder_of(machine, number), self.records[number]
        self.with_fault(
            lambda server: upload(folder, record, server()), fault, machine, number, patience_s
        )

    @rule(
        machine=st.sampled_from(MACHINES),
        fault=st.none() | FAULTS,
        patience_s=st.sampled_from((0.0, 5.0)),
    )
    def sync(self, machine, fault, patience_s):
        folders = list(record_folders(Path(self.folder.name, machine)))

        def synced(server):
            with patch.object(connection, "Server", server):
                counts = upload_all(folders, None)
            assert fault is not None or not counts["failed"]

        self.with_fault(synced, fault, machine, 0, patience_s)

    @rule(number=NUMBERS)
    def delete(self, number):
        for run in self.memory.active(self.records[number].record_id):
            self.memory.delete_run(run.info.run_id)

    @rule(number=NUMBERS)
    def tamper(self, number):
        for run in self.memory.active(self.records[number].record_id):
            self.memory.log_batch(run.info.run_id, tags=[RunTag(schema.OUTCOME, "changed")])

    @rule(number=NUMBERS)
    def reap(self, number):
        for run in self.memory.active(self.records[number].record_id):
            if run.info.status == "RUNNING":
                reason = RunTag(schema.REASON, "ended by sync --reap")
                self.memory.log_batch(run.info.run_id, tags=[reason])
                self.memory.set_terminated(run.info.run_id, "KILLED", 0)

    @invariant()
    def a_run_that_says_whole_is_whole_and_the_only_one(self):
        server = server_of(self.memory, 0.0)()
        for number, record in enumerate(self.records):
            runs = self.memory.active(record.record_id)
            whole = [run for run in runs if run.data.tags.get(schema.UPLOADED) == "true"]
            assert len(whole) <= 1
            folder = self.folder_of("one", number)
            for run in whole:
                found = differences(server, run, content_of(record), folder)
                assert found in ([], [schema.OUTCOME])  # or somebody changed it since
                files = self.memory.files[run.info.run_id]
                assert all((folder.path / name).read_bytes() == files[name] for name in files)
                assert "record.json" in files


Uploads.TestCase.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)
TestUploads = Uploads.TestCase
