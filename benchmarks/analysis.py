"""From a large store to answers: pulls and reports of `mlproject` beside MLflow's own search.

On embedded stores of as many runs as asked, put there row by row past MLflow's API, through which
ten thousand would take hours; each has the params, metrics, tags and record that our upload gives
it. Every measurement runs in a process of its own and says how long it took, with how much
processor time and memory: MLflow's `search_runs`, the first pull, one that finds nothing new, one
that finds a hundred runs late, and of up to 10,000 runs a report over all and a comparison of one
half with the other. Lines through the sizes show whether time and memory grow linearly. Limits are
checked of seconds on the clock, which other work on the machine makes longer, and the largest size
is held against the smallest by seconds of the processor.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

from side_by_side import PROJECT, output_of, take_turns

sys.path[1:1] = [str(PROJECT / "tests")]

import samples  # noqa: E402

import mlproject  # noqa: E402
from bench.config import RunConfig  # noqa: E402
from bench.records import CeilingsRecord, RunRecord  # noqa: E402

REPORTED = 10_000
LATE = 100
#: The last uploads of a store, a minute apart, are as old as that.
QUIET = timedelta(hours=1)
#: The first pull over `mlflow.search_runs`, side by side.
MOST_TIMES = 0.9
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

    def first() -> Took:
        shutil.rmtree(folder / "cache", ignore_errors=True)
        return in_process("first", folder, limit_s)

    mlflow = partial(in_process, "mlflow", folder, limit_s)
    found = take_turns({"first": first, "mlflow": mlflow}, rounds)
    found["second"] = [in_process("second", folder, limit_s) for _ in range(rounds)]
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
    printed = output_of(command, folder, store, timeout_s=limit_s)
    seconds, processor_s, mb = json.loads(printed.splitlines()[-1])
    return seconds, processor_s, mb


def step(name: str, folder: Path, number: int) -> int:
    """Do one step and print what it took; neither imports nor the opening of a store count."""
    import mlflow

    import analysis.runs.tracked.run_table  # imports are not what is measured here
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
    print(json.dumps([seconds, processor_s, peak_bytes() / 1e6]))
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

    from tracking.store import open_client

    root = Path(open_client().get_experiment("0").artifact_location.removeprefix("file://"))
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


def peak_bytes() -> int:
    """Return the largest resident size of this process so far."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def run_command(name: str, *words: str) -> None:
    """Do what `mlproject` does with these words; a gate that fails (exit code 1) has compared."""
    code = mlproject.main([name, *words])
    if code > 1:
        raise SystemExit(f"mlproject {name} ended with {code}")


def print_tables(took: dict[int, dict[str, Took]]) -> int:
    """Print times, memory and fits as Markdown; return 1 where a limit is missed."""
    names = {
        "mlflow": "`mlflow.search_runs`",
        "first": "first pull",
        "second": "pull, nothing new",
        "late ones": f"pull, {LATE} runs uploaded late",
        "report": "report, records not fetched before",
        "report again": "report, records cached",
        "compare": "compare, runs of the campaigns not pulled before",
        "compare again": "compare, runs and records cached",
    }
    sizes = list(took)
    heads = " | ".join(f"{size:,} runs" for size in sizes)
    print(f"| s (of the processor; MB at most) | {heads} | fit |")
    print("|---|" + "---|" * (len(sizes) + 1))
    for name, title in names.items():
        cells = [cell(took[size].get(name)) for size in sizes]
        if any(cells):
            print(f"| {title} | {' | '.join(cells)} | {fit(took, name)} |")
    ratios = {size: each["first"][0] / each["mlflow"][0] for size, each in took.items()}
    print("\nfirst pull / `mlflow.search_runs`:", ", ".join(f"{r:.2f}" for r in ratios.values()))
    missed = [
        f"{size:,} runs: first pull {ratio:.2f} times as long as search_runs"
        for size, ratio in ratios.items()
        if ratio > MOST_TIMES
    ]
    smallest, largest = min(sizes), max(sizes)
    a_run = {size: took[size]["first"][1] / size for size in (smallest, largest)}
    growth = a_run[largest] / a_run[smallest]
    print(f"processor time of the first pull a run, {largest:,} runs / {smallest:,}: {growth:.2f}")
    if growth > MOST_GROWTH:
        missed.append(f"first pull {growth:.2f} times as long a run")
    for size, each in took.items():
        for name, (most_s, most_mb) in LIMITS.items():
            seconds, _, mb = each.get(name, (0.0, 0.0, 0.0))
            if seconds > most_s or mb > most_mb:
                missed.append(f"{size:,} runs: {names[name]} {seconds:.1f} s, {mb:.0f} MB")
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


def cell(found: Took | None) -> str:
    """Format one cell."""
    return f"{found[0]:.1f} ({found[1]:.1f}; {found[2]:.0f})" if found else ""


def fit(took: dict[int, dict[str, Took]], name: str) -> str:
    """Format the lines through a step's processor time and memory, and how far off the worst is."""
    import numpy as np

    sizes = [size for size, each in took.items() if name in each]
    if len(sizes) < 3:
        return ""
    lines = []
    for which, unit in ((1, "s"), (2, "MB")):
        values = np.array([took[size][name][which] for size in sizes])
        slope, start = np.polyfit(sizes, values, 1)
        off = np.max(np.abs(values - (start + slope * np.array(sizes))) / values)
        lines.append(
            f"{start:.2g} + {slope * 1000:.2g} {unit} per 1,000 (off by {100 * off:.0f} %)"
        )
    return "; ".join(lines)


if __name__ == "__main__":
    sys.exit(main())
