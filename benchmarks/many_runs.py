"""From a large store to answers: pulls, a report and a comparison beside MLflow's own search.

    python benchmarks/many_runs.py --runs 1000 10000

On embedded stores of as many runs as asked, put there row by row past MLflow's API, through which
ten thousand would take hours; each has what an upload gives it. Every measurement runs in a process
of its own and says how long it took, with how much processor time and memory. Exit code 1 where a
limit is missed or the first pull grows faster than its runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(PROJECT), str(PROJECT / "tests")]

import samples  # noqa: E402

import mlproject  # noqa: E402
from bench.config import RunConfig  # noqa: E402
from bench.records import CeilingsRecord, RunRecord  # noqa: E402

REPORTED = 10_000
LATE = 100
#: The last uploads of a store, a minute apart, are as old as that.
QUIET = timedelta(hours=1)
#: Processor time of the first pull a run, of the largest store over that of the smallest.
MOST_GROWTH = 1.2
#: Seconds and MB at most.
LIMITS = {
    "first": (float("inf"), 1500.0),
    "second": (5.0, 1500.0),
    "report": (60.0, 2000.0),
    "report again": (60.0, 2000.0),
    "compare": (20.0, 2000.0),
    "compare again": (20.0, 2000.0),
}
TITLES = {
    "mlflow": "`mlflow.search_runs`",
    "first": "first pull",
    "second": "pull, nothing new",
    "late ones": f"pull, {LATE} runs uploaded late",
    "report": "report, records not fetched before",
    "report again": "report, records cached",
    "compare": "compare, runs of the campaigns not pulled before",
    "compare again": "compare, runs and records cached",
}
#: Seconds on the clock, seconds of the processor, and MB at most.
Took = tuple[float, float, float]
ARCHS = ("resnet18", "resnet50", "vgg16", "mobilenet_v2")
PRECISIONS = ("fp32", "amp", "amp-bf16")
BATCHES = (8, 16, 32, 64, 128, 256, 512)
#: Every configuration has repeats in both.
CAMPAIGNS = ("before", "after")
#: Runs written at once.
ROWS = 2000


def main() -> int:
    """Make the stores, measure, print the tables; 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[1000, 3000, 10_000])
    parser.add_argument(
        "--rounds", type=int, default=3, help="of each measurement; the best counts"
    )
    parser.add_argument("--limit-s", type=float, default=1200.0, help="of each measurement")
    parser.add_argument("--step", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.step:
        name, folder, number = asked.step
        return step(name, Path(folder), int(number))
    if not all(1 <= runs <= 100_000 for runs in asked.runs):
        parser.error("--runs from 1 to 100,000")
    took = {}
    for runs in sorted(asked.runs):
        folder = Path(tempfile.mkdtemp(prefix="mlproject-analysis-"))
        try:
            took[runs] = measure(folder, runs, asked.rounds, asked.limit_s)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return print_tables(took)


def measure(folder: Path, runs: int, rounds: int, limit_s: float) -> dict[str, Took]:
    """Return what every step took by its name, the quickest of its rounds."""
    began = time.monotonic()
    in_process("make", folder, limit_s, runs)
    print(f"{runs} runs put into a store in {time.monotonic() - began:.0f} s", file=sys.stderr)

    found: dict[str, list[Took]] = defaultdict(list)
    for _ in range(rounds):
        shutil.rmtree(folder / "cache", ignore_errors=True)
        for name in ("first", "mlflow", "second"):
            found[name].append(in_process(name, folder, limit_s))
    in_process("late", folder, limit_s)
    found["late ones"] = [in_process("second", folder, limit_s)]
    if runs <= REPORTED:
        for name in ("report", "compare"):
            found[name] = [in_process(name, folder, limit_s)]
            found[f"{name} again"] = [in_process(name, folder, limit_s)]
    return {name: min(each) for name, each in found.items()}


def in_process(name: str, folder: Path, limit_s: float, number: int = 0) -> Took:
    """Return what a step says that it took, in a process of its own."""
    command = [sys.executable, __file__, "--step", name, str(folder), str(number)]
    store = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    done = subprocess.run(command, cwd=folder, env={**os.environ, **store}, timeout=limit_s,
                          check=True, stdout=subprocess.PIPE, text=True)  # fmt: skip
    seconds, processor_s, mb = json.loads(done.stdout.splitlines()[-1])
    return seconds, processor_s, mb


def step(name: str, folder: Path, number: int) -> int:
    """Do one step and print what it took; neither imports nor the opening of a store count."""
    import mlflow

    import analysis.server.tracked_frame  # imports are not what is measured here
    import tracking.reading.tracked_runs  # noqa: F401

    began, began_cpu = time.perf_counter(), time.process_time()
    if name == "mlflow":
        table = mlflow.search_runs(search_all_experiments=True, max_results=200_000)
        print(len(table), file=sys.stderr)
    elif name in ("first", "second"):
        print(len(analysis.pull_runs()), file=sys.stderr)
    elif name == "report":
        run_command("report", "--out", str(folder / "report"), "--no-log")
    elif name == "compare":
        run_command("compare", *(f"campaign={each}" for each in CAMPAIGNS))
    elif name == "late":
        fill(folder, LATE, datetime.now(timezone.utc), late=True)
    else:
        fill(folder, number, datetime.now(timezone.utc) - QUIET)
    seconds, processor_s = time.perf_counter() - began, time.process_time() - began_cpu
    print(
        json.dumps(
            [seconds, processor_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6]
        )
    )
    return 0


def records(number: int, last: datetime, interval: timedelta) -> list[tuple[RunRecord, datetime]]:
    """Return records of every configuration by turns, and when each was uploaded."""
    settings = islice(cycle(product(ARCHS, PRECISIONS, BATCHES)), number)
    made = []
    for index, (arch, precision, batch) in enumerate(settings):
        repeat = index // (len(ARCHS) * len(PRECISIONS) * len(BATCHES)) + 1
        step_s = batch / (40 + 10 * ARCHS.index(arch)) * (1 + 0.01 * (repeat * 7 % 5))
        uploaded = last - interval * (number - index)
        record = samples.run_record(
            RunConfig(
                arch=arch,
                precision=precision,
                batch_size=batch,
                repeat=repeat,
                campaign=CAMPAIGNS[repeat % 2],
            ),
            record_id=uuid.uuid4().hex,
            created=uploaded - timedelta(minutes=2),
            resolved=samples.resolved(batch_size=batch),
            measurement=samples.measurement([step_s] * 100, images=batch),
        )
        made.append((record, uploaded))
    return made


def fill(folder: Path, number: int, last: datetime, *, late: bool = False) -> None:
    """Put runs into the store as our upload leaves them; late ones began before all others."""
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import create_engine

    from tracking.connection import Server

    root = Path(Server().client.get_experiment("0").artifact_location.removeprefix("file://"))
    tables = [models.SqlRun, models.SqlParam, models.SqlTag, models.SqlLatestMetric]
    engine = create_engine(f"sqlite:///{folder}/mlflow.db")
    kept: list[tuple[RunRecord | CeilingsRecord, datetime]] = [
        *records(number, last, timedelta(seconds=1 if late else 60))
    ]
    if not late:
        kept.append((samples.ceilings_record(), last))
    with engine.begin() as connection:
        for start in range(0, len(kept), ROWS):
            rows = [rows_of(*each, root, late=late) for each in kept[start : start + ROWS]]
            for table, of_runs in zip(tables, zip(*rows, strict=True), strict=True):
                if found := [row for of_run in of_runs for row in of_run]:
                    connection.execute(table.__table__.insert(), found)
    engine.dispose()


def rows_of(
    record: RunRecord | CeilingsRecord, uploaded: datetime, root: Path, *, late: bool
) -> Sequence[list[dict[str, Any]]]:
    """Return the rows of runs, params, tags and metrics, and write the record's artifact."""
    from tracking import schema
    from tracking.content import content_of

    content, run_id = content_of(record), uuid.uuid4().hex
    artifacts = root / run_id / "artifacts"
    artifacts.mkdir(parents=True)
    (artifacts / "record.json").write_text(record.model_dump_json(), encoding="utf-8")
    started_ms = int((record.created - timedelta(days=3650 if late else 0)).timestamp() * 1000)
    run = {
        "run_uuid": run_id,
        "name": content.tags[schema.RUN_NAME],
        "experiment_id": 0,
        "status": content.status,
        "lifecycle_stage": "active",
        "start_time": started_ms,
        "end_time": started_ms + 60_000,
        "artifact_uri": str(artifacts),
        "user_id": "benchmark",
        "source_type": "LOCAL",
    }
    tags = {**content.tags, **schema.whole_tags(uploaded)}
    texts = (
        [{"key": key, "value": text, "run_uuid": run_id} for key, text in of_run.items()]
        for of_run in (content.params, tags)
    )
    last_values = {point.key: point for point in content.metrics}
    metrics = [
        {
            "key": key,
            "value": point.value,
            "timestamp": int(point.unix_s * 1000),
            "step": point.step,
            "is_nan": False,
            "run_uuid": run_id,
        }
        for key, point in last_values.items()
    ]
    return [[run], *texts, metrics]


def run_command(name: str, *words: str) -> None:
    """Do what `mlproject` does with these words; a gate that fails (exit code 1) has compared."""
    code = mlproject.main([name, *words])
    if code > 1:
        raise SystemExit(f"mlproject {name} ended with {code}")


def print_tables(took: dict[int, dict[str, Took]]) -> int:
    """Print times and memory as Markdown; return 1 where a limit is missed."""
    print(f"| s (of the processor; MB) | {' | '.join(f'{size:,} runs' for size in took)} |")
    print("|---|" + "---|" * len(took))
    for name, title in TITLES.items():
        cells = [each.get(name) for each in took.values()]
        shown = [f"{s:.1f} ({cpu:.1f}; {mb:.0f})" for s, cpu, mb in filter(None, cells)]
        if shown:
            print(f"| {title} | {' | '.join(shown)} |")
    missed = [
        f"{size:,} runs: {TITLES[name]} {took_s:.1f} s, {mb:.0f} MB"
        for size, each in took.items()
        for name, (took_s, _, mb) in each.items()
        if name in LIMITS and (took_s > LIMITS[name][0] or mb > LIMITS[name][1])
    ]
    a_run = [each["first"][1] / size for size, each in took.items()]
    print(
        f"\nprocessor time of the first pull a run, largest / smallest: {a_run[-1] / a_run[0]:.2f}"
    )
    if a_run[-1] > MOST_GROWTH * a_run[0]:
        missed.append("the first pull grows faster than the runs")
    print("".join(f"missed: {line}\n" for line in missed), end="")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
