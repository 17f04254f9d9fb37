"""From a large store to answers: pulls and reports of `mlproject` beside MLflow's own search.

Embedded stores of as many runs as asked, each run with the params, metrics and tags that our upload
gives it, put there row by row past MLflow's API, which would take hours. Every measurement runs in
a process of its own and says how long it took, with how much processor time and memory: MLflow's
`search_runs`, the first pull, one that finds nothing new, one that finds a hundred runs late, and a
report over a campaign of 1,000 runs. Lines through the sizes show whether time and memory grow
linearly.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT), str(PROJECT / "tests"), str(PROJECT / "tests" / "analysis")]

import factories as make  # noqa: E402

from bench.config import RunConfig  # noqa: E402
from bench.records import CeilingsRecord, RunRecord  # noqa: E402

ARCHS = ("resnet18", "resnet50", "vgg16", "mobilenet_v2")
PRECISIONS = ("fp32", "amp", "amp-bf16")
BATCHES = (8, 16, 32, 64, 128, 256, 512)
REPORTED = 1000
LATE = 100
#: The last uploads of a store, a minute apart, are as old as that.
QUIET = timedelta(hours=1)
ROWS = 2000
#: Seconds on the clock, seconds of the processor, and MB at most.
Took = tuple[float, float, float]


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
    found: dict[str, list[Took]] = {}
    for number in range(rounds):
        for name in ("mlflow", "first") if number % 2 else ("first", "mlflow"):
            if name == "first":
                shutil.rmtree(folder / "cache", ignore_errors=True)
            found.setdefault(name, []).append(in_process(name, folder, limit_s))
    for _ in range(rounds):
        found.setdefault("second", []).append(in_process("second", folder, limit_s))
    in_process("late", folder, limit_s)
    found["late ones"] = [in_process("second", folder, limit_s)]
    if runs <= REPORTED:
        found["report"] = [in_process("report", folder, limit_s)]
        found["report again"] = [in_process("report", folder, limit_s)]
    return {name: min(each) for name, each in found.items()}


def in_process(name: str, folder: Path, limit_s: float, number: int = 0) -> Took:
    """Return what a step says that it took, in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--step", name, str(folder), str(number)],
        env={
            **os.environ,
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
            "XDG_CACHE_HOME": str(folder / "cache"),
        },
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        timeout=limit_s,
        check=True,
    )
    seconds, processor_s, mb = json.loads(done.stdout.splitlines()[-1])
    return seconds, processor_s, mb


def step(name: str, folder: Path, number: int) -> int:
    """Do one step and print what it took; neither imports nor the opening of a store count."""
    import mlflow
    import psutil

    import analysis.columns  # imports are not what is measured here
    import tracking.search  # noqa: F401

    began, began_cpu = time.perf_counter(), time.process_time()
    if name == "mlflow":
        table = mlflow.search_runs(search_all_experiments=True, max_results=200_000)
        print(len(table), file=sys.stderr)
    elif name in ("first", "second"):
        print(len(analysis.pull_runs()), file=sys.stderr)
    elif name == "report":
        report(folder)
    elif name == "late":
        fill(folder, LATE, datetime.now(timezone.utc), late=True)
    else:
        fill(folder, number, datetime.now(timezone.utc) - QUIET)
    seconds, processor_s = time.perf_counter() - began, time.process_time() - began_cpu
    memory = psutil.Process().memory_info()
    print(json.dumps([seconds, processor_s, getattr(memory, "peak_wset", peak_bytes()) / 1e6]))
    return 0


def peak_bytes() -> int:
    """Return the largest resident size of this process so far; 0 where the system tells none."""
    try:
        import resource
    except ImportError:
        return 0
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def report(folder: Path) -> None:
    """Make the report of every run of the store, as the command does."""
    from click.testing import CliRunner

    from commands.report import command

    done = CliRunner().invoke(command, ["--out", str(folder / "report"), "--no-log"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception


def records(number: int, last: datetime, apart: timedelta) -> Iterator[tuple[RunRecord, datetime]]:
    """Yield records of every configuration by turns, and when each was uploaded."""
    settings = cycle(product(ARCHS, PRECISIONS, BATCHES))
    for index, (arch, precision, batch) in enumerate(islice(settings, number)):
        repeat = index // (len(ARCHS) * len(PRECISIONS) * len(BATCHES)) + 1
        step_s = batch / (40 + 10 * ARCHS.index(arch)) * (1 + 0.01 * (repeat * 7 % 5))
        config = RunConfig(arch=arch, precision=precision, batch_size=batch, repeat=repeat)
        uploaded = last - apart * (number - index)
        record = make.run_record(
            uuid.uuid4().hex,
            config=config,
            created=uploaded - timedelta(minutes=2),
            resolved=make.resolved(batch_size=batch),
            measurement=make.measurement(step_s=step_s, iterations=100, images=batch),
        )
        yield record, uploaded


def fill(folder: Path, number: int, last: datetime, *, late: bool = False) -> None:
    """Put runs into the store as our upload leaves them; late ones began before all others."""
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import create_engine

    from tracking.store import open_client

    root = Path(open_client().get_experiment("0").artifact_location.removeprefix("file://"))
    tables = [models.SqlRun, models.SqlParam, models.SqlTag, models.SqlLatestMetric]
    engine = create_engine(f"sqlite:///{folder}/mlflow.db")
    found = list(records(number, last, timedelta(seconds=1 if late else 60)))
    everything: list[tuple[RunRecord | CeilingsRecord, datetime]] = [*found]
    if not late:
        everything.append((make.ceilings_record(), last))
    with engine.begin() as connection:
        for start in range(0, len(everything), ROWS):
            rows: list[list[dict[str, Any]]] = [[] for _ in tables]
            for record, uploaded in everything[start : start + ROWS]:
                for table, new in zip(
                    rows, rows_of(record, uploaded, root, late=late), strict=True
                ):
                    table += new
            for table, new in zip(tables, rows, strict=True):
                if new:
                    connection.execute(table.__table__.insert(), new)
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
    return [
        [run],
        [{"key": key, "value": text, "run_uuid": run_id} for key, text in content.params.items()],
        [{"key": key, "value": text, "run_uuid": run_id} for key, text in tags.items()],
        metrics,
    ]


def print_tables(took: dict[int, dict[str, Took]]) -> int:
    """Print times, memory and fits as Markdown; return 1 where a limit is missed."""
    names = {
        "mlflow": "`mlflow.search_runs`",
        "first": "first pull",
        "second": "pull, nothing new",
        "late ones": f"pull, {LATE} runs uploaded late",
        "report": "report, records not fetched before",
        "report again": "report, records cached",
    }
    sizes = list(took)
    heads = " | ".join(f"{size:,} runs" for size in sizes)
    print(f"| s (of the processor; MB at most) | {heads} | fit |")
    print("|---|" + "---|" * (len(sizes) + 1))
    for name, title in names.items():
        cells = [told(took[size].get(name)) for size in sizes]
        if any(cells):
            print(f"| {title} | {' | '.join(cells)} | {fit(took, name)} |")
    ratios = {size: each["first"][0] / each["mlflow"][0] for size, each in took.items()}
    print("\nfirst pull / `mlflow.search_runs`:", ", ".join(f"{r:.2f}" for r in ratios.values()))
    missed = [f"{size} runs: first pull {r:.2f} times" for size, r in ratios.items() if r > 1.2]
    missed += [
        f"{size} runs: second pull {each['second'][0]:.2f} s"
        for size, each in took.items()
        if size <= 10_000 and each["second"][0] > 2
    ]
    missed += [
        f"{size} runs: report {each['report'][0]:.0f} s"
        for size, each in took.items()
        if "report" in each and each["report"][0] > 60
    ]
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


def told(found: Took | None) -> str:
    """Format one cell."""
    return f"{found[0]:.1f} ({found[1]:.1f}; {found[2]:.0f})" if found else ""


def fit(took: dict[int, dict[str, Took]], name: str) -> str:
    """Format the lines through a step's processor time and memory, and how far off the worst is."""
    import numpy as np

    sizes = [size for size, each in took.items() if name in each]
    if len(sizes) < 3:
        return ""
    told = []
    for which, unit in ((1, "s"), (2, "MB")):
        values = np.array([took[size][name][which] for size in sizes])
        slope, start = np.polyfit(sizes, values, 1)
        off = np.max(np.abs(values - (start + slope * np.array(sizes))) / values)
        told.append(f"{start:.2g} + {slope * 1000:.2g} {unit} per 1,000 (off by {100 * off:.0f} %)")
    return "; ".join(told)


if __name__ == "__main__":
    sys.exit(main())
