"""What a test's MLflow server really holds, read from its database and its artifact folder."""

import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path

import samples

from bench.config import RunConfig
from bench.launcher.measurement import write_exports
from bench.records import Job, Verdict
from bench.records.folders import RecordFolder
from tracking import schema
from tracking.content import content_of
from tracking.upload.upload import ARTIFACTS


def filed(records, record=None):
    """Write a record as `mlproject run` would, under an id of its own."""
    folder = RecordFolder.create(records)
    record = record or samples.run_record(telemetry=samples.telemetry())
    record = type(record).model_validate({**record.model_dump(), "record_id": folder.record_id})
    if record.kind == "measurement":
        folder.write(folder.config, Job(config=record.config))
        write_exports(folder, record)
    folder.close(record)
    return folder, record


PROJECT = Path(__file__).resolve().parent.parent


def project_run(client, folder=PROJECT):
    """The id of a run as `mlflow run` makes it of the project in `folder`."""
    source = {"mlflow.source.type": "PROJECT", "mlflow.source.name": str(folder)}
    return client.create_run("0", tags=source).info.run_id


class Store:
    """The store of `servers.mlflow_server(folder)`."""

    def __init__(self, folder):
        self._database = folder / "server.db"
        self.artifact_folder = folder / "artifacts"

    def query(self, sql, *values):
        with closing(sqlite3.connect(self._database, timeout=120)) as connection:
            return connection.execute(sql, values).fetchall()

    @contextmanager
    def locked(self):
        """The server can neither read nor write its database."""
        with closing(sqlite3.connect(self._database, timeout=120)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            try:
                yield
            finally:
                connection.rollback()

    def runs_of(self, record_id, tag=schema.RECORD_ID):
        """Ids of all runs of a record, deleted ones too."""
        sql = "SELECT run_uuid FROM tags WHERE key = ? AND value = ?"
        return [run_id for (run_id,) in self.query(sql, tag, record_id)]

    def active(self, run_ids):
        sql = "SELECT lifecycle_stage FROM runs WHERE run_uuid = ?"
        return [run_id for run_id in run_ids if self.query(sql, run_id) == [("active",)]]

    def metrics(self, run_id):
        sql = "SELECT key, step, timestamp, value FROM metrics WHERE run_uuid = ?"
        return sorted(self.query(sql, run_id))

    def params(self, run_id):
        return dict(self.query("SELECT key, value FROM params WHERE run_uuid = ?", run_id))

    def tags(self, run_id):
        return dict(self.query("SELECT key, value FROM tags WHERE run_uuid = ?", run_id))

    def info(self, run_id):
        sql = "SELECT status, start_time, end_time, name FROM runs WHERE run_uuid = ?"
        return self.query(sql, run_id)[0]

    def artifacts(self, run_id):
        """The bytes of each artifact by its path within the run."""
        [root] = self.artifact_folder.glob(f"*/{run_id}/artifacts")
        return {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }


def assert_equals_record(store, run_id, folder, record):
    """The run holds exactly what the record says, with its times, and has ended as it did."""
    content = content_of(record)
    assert store.params(run_id) == content.params
    expected = [
        (schema.logged_name(p.key), p.step, int(p.unix_s * 1000), p.value) for p in content.metrics
    ]
    assert store.metrics(run_id) == sorted(expected)
    tags = store.tags(run_id)
    assert {**tags, **content.tags} == tags
    assert tags[schema.UPLOADED] == "true"
    started_ms = int(record.created.timestamp() * 1000)
    real_s = record.process.real_s if getattr(record, "process", None) else 0.0
    ended_ms = int((record.created.timestamp() + real_s) * 1000)
    name = content.tags[schema.RUN_NAME]
    assert store.info(run_id) == (content.status, started_ms, ended_ms, name)
    paths = {name: folder.path / name for name in ARTIFACTS}
    names = [name for name, path in paths.items() if path.is_file() and path.stat().st_size]
    assert store.artifacts(run_id) == {name: (folder.path / name).read_bytes() for name in names}


def assert_one_run(store, folder, record):
    """The server holds the record once, whole and ended; return the run."""
    [run_id] = store.runs_of(record.record_id)
    assert_equals_record(store, run_id, folder, record)
    return run_id


def night(campaign="night-1"):
    """Roofs, and resnet18 in fp32 and amp at four batch sizes, twice each: no two alike."""
    peaks = {"fp32": 4e11, "bf16": 8e11}
    ceilings = [samples.ceiling(mode, peak_flops_per_s=peak) for mode, peak in peaks.items()]
    roofs = samples.ceilings_record(ceilings=tuple(ceilings))
    return [roofs] + [
        _swept(RunConfig(arch="resnet18", campaign=campaign, **settings))
        for precision in ("fp32", "amp")
        for batch in (8, 16, 32, 64)
        for repeat in (1, 2)
        for settings in [{"precision": precision, "batch_size": batch, "repeat": repeat}]
    ]


def _swept(config):
    amp, batch = config.precision == "amp", config.batch_size
    step_s = (0.02 + 0.03 * batch / 8) * (0.5 if amp else 1) * (1 + config.repeat / 100)
    mode = {"math_mode": "bf16", "autocast_dtype": "bf16"} if amp else {}
    work = {"eager_bytes": batch * 10**8, "fused_bytes": batch * 5 * 10**7}
    return samples.run_record(
        config,
        resolved=samples.resolved(batch_size=batch, **mode),
        measurement=samples.measurement((step_s,) * 6, batch),
        complexity=samples.complexity(
            batch_size=batch,
            step_flops=batch * 10**9,
            **work,
            ops=(samples.CONVOLUTION.model_copy(update={"flops": batch * 10**9, **work}),),
        ),
        verdict=Verdict(level="clean", findings=()),
    )
