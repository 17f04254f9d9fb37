"""Many machines on one tracking server: `mlproject`'s upload beside the bare MLflow client.

An MLflow server over Postgres, both on this machine and on loopback only; CLIENTS processes at
once, each logging RUNS records by our upload and as many by the bare client, by turns, which does
the same writes and nothing for safety. Afterwards every run that the server holds is compared with
its record on disk. Postgres comes from the system's package.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT), str(PROJECT / "tests")]

import samples  # noqa: E402
from servers import free_port, wait_until_it_answers  # noqa: E402

from bench.config import RunConfig  # noqa: E402
from bench.launcher.exports import write_exports  # noqa: E402
from bench.records import RunRecord, Series  # noqa: E402
from bench.records.folders import RecordFolder  # noqa: E402
from bench.records.verdict.record_metrics import percentile  # noqa: E402
from tracking.server import postgres  # noqa: E402

SIDES = ("ours", "bare")
#: A request may hold two connections, and forty run at once: with MLflow's own pool of fifteen they
#: wait for each other until the server answers 400.
SETTINGS = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": "40",
    "MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW": "40",
}
ITERATIONS, SERIES, SAMPLES = 100, 5, 60
#: RetryPolicy of both sides, so that a machine too small for its clients is slow, not given up on.
ANSWER_S = 120.0
ARTIFACTS = ("iterations.csv", "telemetry.csv", "record.json")


def main() -> int:
    """Measure, compare, print the table; 1 where a run is missing, doubled or different."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--runs", type=int, default=20, help="per client and side")
    parser.add_argument("--limit-s", type=float, default=1500.0, help="give up after that")
    parser.add_argument("--client", nargs=2, metavar=("FOLDER", "RUNS"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.client:
        return client(Path(asked.client[0]), int(asked.client[1]))
    if not (1 <= asked.clients <= 64 and 1 <= asked.runs <= 100):
        parser.error("at most 64 clients and 100 runs each")
    folder = Path(tempfile.mkdtemp(prefix="mlproject-load-"))
    folder.chmod(0o755)  # Postgres has a user of its own
    try:
        with server(folder) as (uri, database):
            took = run_clients(folder, uri, asked.clients, asked.runs, asked.limit_s)
            found = {side: faults(folder, database, side) for side in SIDES}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print_table(took, found, asked.clients, asked.runs)
    return 1 if any(sum(each.values()) for each in found.values()) else 0


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the URI of a server over a Postgres of its own, and that of the database."""
    password = secrets.token_hex(16)
    port, own_port = free_port(), free_port()
    database = f"postgresql+psycopg://mlflow@127.0.0.1:{port}/mlflow"
    os.environ["PGPASSWORD"] = password
    with (
        postgres.running(folder, port, password),
        (folder / "server.log").open("wb") as log,
    ):
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"),
                *("--port", str(own_port), "--workers", "1", "--backend-store-uri", database),
                *("--artifacts-destination", str(folder / "artifacts")),
            ],
            env={**os.environ, **SETTINGS},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        uri = f"http://127.0.0.1:{own_port}"
        try:
            wait_until_it_answers(process, uri, folder / "server.log")
            yield uri, database
        finally:
            os.killpg(process.pid, 15)
            process.wait(timeout=60)


def run_clients(
    folder: Path, uri: str, clients: int, runs: int, limit_s: float
) -> dict[str, list[float]]:
    """Return how long each whole run's logging took, in seconds, by side."""
    environment = {**os.environ, "MLFLOW_TRACKING_URI": uri, "OMP_NUM_THREADS": "1"}
    environment["MLFLOW_HTTP_REQUEST_TIMEOUT"] = f"{ANSWER_S:.0f}"
    environment.pop("PGPASSWORD")
    started = time.monotonic()
    processes = []
    for number in range(clients):
        own = folder / f"client-{number}"
        own.mkdir()
        processes.append(
            subprocess.Popen(
                [sys.executable, __file__, "--client", str(own), str(runs)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    try:
        for process in processes:  # all have imported everything and written their records
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("a client did not start")
        print(f"{clients} clients ready after {time.monotonic() - started:.0f} s", file=sys.stderr)
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        took: dict[str, list[float]] = {side: [] for side in SIDES}
        for process in processes:
            out, _ = process.communicate(timeout=max(1.0, started + limit_s - time.monotonic()))
            for side, times in json.loads(out).items():
                took[side] += times
        return took
    finally:
        for process in processes:
            process.kill()
            process.wait()


def client(folder: Path, runs: int) -> int:
    """Log `runs` records each way, by turns, once the parent says so; print the seconds."""
    from tracking.retry import RetryPolicy
    from tracking.store import open_client
    from tracking.upload.upload import upload

    records = {side: [filed(folder / side) for _ in range(runs)] for side in SIDES}
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"  # or the bare one asks once more
    bare = open_client()
    took: dict[str, list[float]] = {side: [] for side in SIDES}
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(runs):
        for side in SIDES if number % 2 else reversed(SIDES):
            where, record = records[side][number]
            began = time.perf_counter()
            if side == "ours":
                upload(where, record, fresh=True, ask=RetryPolicy(ANSWER_S))
            else:
                log_barely(bare, where, record)
            took[side].append(time.perf_counter() - began)
    print(json.dumps(took))
    return 0


def log_barely(bare: Any, folder: RecordFolder, record: RunRecord) -> None:
    """The same writes with MLflow's own client, in as few calls as it has."""
    from mlflow.entities import Metric, Param

    from tracking.upload.run_content import content_of

    content = content_of(record)
    started_ms = int(record.created.timestamp() * 1000)
    run = bare.create_run("0", start_time=started_ms, tags=content.tags)
    bare.log_batch(
        run.info.run_id,
        [Metric(p.key, p.value, int(p.unix_s * 1000), p.step) for p in content.metrics],
        [Param(*pair) for pair in content.params.items()],
    )
    for name in ARTIFACTS:
        bare.log_artifact(run.info.run_id, str(folder.path / name))
    bare.set_terminated(run.info.run_id, content.status, started_ms + 10_000)


def filed(records: Path) -> tuple[RecordFolder, RunRecord]:
    """Write a record of 100 iterations and 5 telemetry series, as a measurement leaves it."""
    folder = RecordFolder.create(records)
    step_s = [0.1 + 0.0001 * (number % 7) for number in range(ITERATIONS)]
    seconds = tuple(sum(step_s) * number / SAMPLES for number in range(SAMPLES))
    series = tuple(
        Series(
            name=f"gauge_{number}",
            source="load",
            times_s=seconds,
            values=tuple(float(number + at % 5) for at in range(SAMPLES)),
        )
        for number in range(SERIES)
    )
    record = samples.run_record(
        config=RunConfig(campaign="load"),
        measurement=samples.measurement(step_s),
        telemetry=samples.telemetry(series=series),
        record_id=folder.record_id,
    )
    folder.close(record)
    write_exports(folder, record)
    (folder.path / "environment.json").unlink()
    return folder, record


def faults(folder: Path, database: str, side: str) -> dict[str, int]:
    """How many records of a side are missing on the server, doubled, or unlike their record."""
    from sqlalchemy import create_engine

    found = dict.fromkeys(("missing", "doubled", "different"), 0)
    engine = create_engine(database)
    with engine.connect() as connection:
        for path in sorted(folder.glob(f"client-*/{side}/*")):
            where = RecordFolder(path)
            record = where.read_record()
            rows = _rows(
                connection,
                "SELECT run_uuid FROM tags WHERE key = 'mlproject.record_id' AND value = :of",
                of=path.name,
            )
            if not rows:
                found["missing"] += 1
            elif len(rows) > 1:
                found["doubled"] += 1
            elif not _is_equal(connection, folder, rows[0][0], where, record):
                found["different"] += 1
    engine.dispose()
    return found


def _is_equal(connection: Any, folder: Path, run_id: str, where: RecordFolder, record: Any) -> bool:
    from tracking.upload.run_content import content_of

    content = content_of(record)
    told = [(p.key, p.step, int(p.unix_s * 1000), p.value) for p in content.metrics]
    metrics = "SELECT key, step, timestamp, value FROM metrics WHERE run_uuid = :of"
    params = dict(
        _rows(connection, "SELECT key, value FROM params WHERE run_uuid = :of", of=run_id)
    )
    tags = dict(_rows(connection, "SELECT key, value FROM tags WHERE run_uuid = :of", of=run_id))
    ended = _rows(
        connection, "SELECT status, start_time, end_time FROM runs WHERE run_uuid = :of", of=run_id
    )
    started_ms = int(record.created.timestamp() * 1000)
    [kept] = (folder / "artifacts").glob(f"*/{run_id}/artifacts")
    return (
        sorted(_rows(connection, metrics, of=run_id)) == sorted(told)
        and params == content.params
        and {**tags, **content.tags} == tags
        and ended == [(content.status, started_ms, started_ms + 10_000)]
        and sorted(path.name for path in kept.iterdir()) == sorted(ARTIFACTS)
        and all(
            (kept / name).read_bytes() == (where.path / name).read_bytes() for name in ARTIFACTS
        )
    )


def _rows(connection: Any, sql: str, **values: str) -> list[tuple[Any, ...]]:
    from sqlalchemy import text

    return [tuple(row) for row in connection.execute(text(sql), values)]


def print_table(
    took: dict[str, Sequence[float]], found: dict[str, dict[str, int]], clients: int, runs: int
) -> None:
    """Print the result as Markdown."""
    print(
        f"{clients} clients at once, {runs} runs each way by turns, {os.cpu_count()} cores for "
        "clients, server and Postgres together\n"
    )
    print("| a whole run's logging | runs | p50 | p95 | p99 | missing | doubled | different |")
    print("|---|---|---|---|---|---|---|---|")
    names = {"ours": "mlproject's upload", "bare": "bare MLflow client"}
    for side in SIDES:
        times = " | ".join(f"{percentile(took[side], at):.2f} s" for at in (50, 95, 99))
        broken = " | ".join(str(number) for number in found[side].values())
        print(f"| {names[side]} | {len(took[side])} | {times} | {broken} |")
    ratio = " | ".join(
        f"{percentile(took['ours'], at) / percentile(took['bare'], at):.2f}" for at in (50, 95, 99)
    )
    print(f"| ratio | | {ratio} | | | |")


if __name__ == "__main__":
    sys.exit(main())
