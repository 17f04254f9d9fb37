"""Many machines on one tracking server: `mlproject`'s upload beside the bare MLflow client.

An MLflow server over Postgres, both on this machine and on loopback only; CLIENTS processes at
once, each logging RUNS records by our upload and as many by the bare client, by turns, which does
the same writes and nothing for safety. Afterwards every run that the server holds is compared with
its record on disk. Postgres comes from the system's package.

The server is `mlflow server` with one worker process, as the shipped one, but without its users,
its proxy and TLS, and with a larger pool of connections. It has answered a question before: MLflow
opens its store at the first, and as often as requests wait for it, one after the other.
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
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import requests

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(PROJECT), str(PROJECT / "tests")]

import samples  # noqa: E402
from servers import free_port, mlflow_server, postgres_server  # noqa: E402
from stored_runs import Store, assert_one_run, filed  # noqa: E402

from bench.config import RunConfig  # noqa: E402
from bench.records import RunRecord, Series  # noqa: E402
from bench.records.folders import RecordFolder  # noqa: E402
from bench.records.metrics import percentiles  # noqa: E402
from tracking import schema  # noqa: E402

SIDES = ("ours", "bare")
#: A request may hold two connections, and forty run at once: with MLflow's own pool of fifteen they
#: wait for each other until the server answers 400.
SETTINGS = {
    "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": "40",
    "MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW": "40",
}
ITERATIONS, SERIES, SAMPLES = 100, 5, 60
#: Patience of both sides, so that a machine too small for its clients is slow, not given up on.
ANSWER_S = 120.0


def main() -> int:
    """Measure, compare, print the table; 1 where a run is missing, doubled or different."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--runs", type=int, default=20, help="per client and side")
    parser.add_argument("--limit-s", type=float, default=1500.0, help="give up after that")
    parser.add_argument("--client", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.client:
        return client(asked.client, asked.runs)
    if not (1 <= asked.clients <= 64 and 1 <= asked.runs <= 100):
        parser.error("at most 64 clients and 100 runs each")
    folder = Path(tempfile.mkdtemp(prefix="mlproject-load-"))
    folder.chmod(0o755)  # Postgres has a user of its own
    try:
        port, os.environ["PGPASSWORD"] = free_port(), secrets.token_hex(16)
        place = f"mlflow@127.0.0.1:{port}/mlflow"
        with (
            postgres_server(folder, port, os.environ["PGPASSWORD"]),
            mlflow_server(folder, database=f"postgresql+psycopg://{place}", **SETTINGS) as uri,
        ):
            question = f"{uri}/api/2.0/mlflow/experiments/get?experiment_id=0"
            requests.get(question, timeout=ANSWER_S).raise_for_status()
            took = run_clients(folder, uri, asked.clients, asked.runs, asked.limit_s)
            store = PostgresStore(folder, f"postgresql://{place}")
            found = {side: faults(folder, store, side) for side in SIDES}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print_table(took, found, asked.clients, asked.runs)
    return 1 if any(sum(each.values()) for each in found.values()) else 0


def run_clients(
    folder: Path, uri: str, clients: int, runs: int, limit_s: float
) -> dict[str, list[float]]:
    """Return how many seconds each run's logging took, by side."""
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
                [sys.executable, __file__, "--client", str(own), "--runs", str(runs)],
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
        took: dict[str, list[float]] = defaultdict(list)
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
    from tracking.connection import Server
    from tracking.upload.upload import upload

    records = {side: [filed(folder / side, sample()) for _ in range(runs)] for side in SIDES}
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"  # or the bare one asks once more
    server = Server(patience_s=ANSWER_S, answer_s=ANSWER_S)
    bare = server.client
    took: dict[str, list[float]] = {side: [] for side in SIDES}
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(runs):
        for side in SIDES if number % 2 else reversed(SIDES):
            where, record = records[side][number]
            began = time.perf_counter()
            if side == "ours":
                upload(where, record, server)
            else:
                log_barely(bare, where, record)
            took[side].append(time.perf_counter() - began)
    print(json.dumps(took))
    return 0


def log_barely(bare: Any, folder: RecordFolder, record: RunRecord) -> None:
    """The same writes with MLflow's own client, in as few calls as it has."""
    from mlflow.entities import Metric, Param

    from tracking.content import content_of
    from tracking.upload.upload import ARTIFACTS

    content = content_of(record)
    started_ms = int(record.created.timestamp() * 1000)
    run = bare.create_run("0", start_time=started_ms, tags=content.tags | schema.whole_tags())
    bare.log_batch(
        run.info.run_id,
        [Metric(p.key, p.value, int(p.unix_s * 1000), p.step) for p in content.metrics],
        [Param(*pair) for pair in content.params.items()],
    )
    for path in (folder.path / name for name in ARTIFACTS):
        if path.is_file():
            bare.log_artifact(run.info.run_id, str(path))
    bare.set_terminated(run.info.run_id, content.status, started_ms + 10_000)


def sample() -> RunRecord:
    """Return a record of 100 iterations and 5 telemetry series."""
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
    return samples.run_record(
        config=RunConfig(campaign="load"),
        measurement=samples.measurement(step_s),
        telemetry=samples.telemetry(series=series),
    )


class PostgresStore(Store):
    """The database itself, and the server's artifacts in `folder`."""

    def __init__(self, folder: Path, database: str) -> None:
        super().__init__(folder)
        self._address = database

    def query(self, sql: str, *values: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query whose values are question marks."""
        import psycopg

        with psycopg.connect(self._address) as connection:
            return connection.execute(sql.replace("?", "%s"), values).fetchall()


def faults(folder: Path, store: Store, side: str) -> dict[str, int]:
    """How many records of a side are missing on the server, doubled, or unlike their record."""
    found = dict.fromkeys(("missing", "doubled", "different"), 0)
    for path in sorted(folder.glob(f"client-*/{side}/*")):
        record = RecordFolder(path).read_record()
        runs = store.runs_of(path.name)
        if len(runs) != 1:
            found["doubled" if runs else "missing"] += 1
            continue
        try:
            if side == "ours":  # the bare client writes less
                assert_one_run(store, RecordFolder(path), record)
        except AssertionError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            found["different"] += 1
    return found


def print_table(
    took: dict[str, Sequence[float]], found: dict[str, dict[str, int]], clients: int, runs: int
) -> None:
    """Print the result as Markdown."""
    print(
        f"{clients} clients at once, {runs} runs each way, {os.cpu_count()} cores for "
        "clients, server and Postgres together\n"
    )
    print("| a whole run's logging | runs | p50 | p95 | p99 | missing | doubled | different |")
    print("|---|---|---|---|---|---|---|---|")
    names = {"ours": "mlproject's upload", "bare": "bare MLflow client"}
    for side in found:
        times = " | ".join(f"{took_s:.2f} s" for took_s in percentiles(took[side], 50, 95, 99))
        broken = " | ".join(str(number) for number in found[side].values())
        print(f"| {names[side]} | {len(took[side])} | {times} | {broken} |")
    sides = (percentiles(took[side], 50, 95, 99) for side in SIDES)
    ratio = " | ".join(f"{ours / bare:.2f}" for ours, bare in zip(*sides, strict=True))
    print(f"| ratio | | {ratio} | | | |")


if __name__ == "__main__":
    sys.exit(main())
