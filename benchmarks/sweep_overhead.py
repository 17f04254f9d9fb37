"""What a sweep costs beside its measurements: the time between one window and the next worker.

    python benchmarks/sweep_overhead.py --repeats 8 --out sweep_overhead.md

A sweep of one configuration, repeated, tracked in a SQLite store or on the server that
MLFLOW_TRACKING_URI names. Of each run the overhead is everything outside the worker's own start,
warm-up and window: from the end of its window to the start of the next worker (its account, the
record, the verdict, the upload, looking what is measured already). What comes once, before the
first worker and after the last window, is shown apart.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import click
from side_by_side import PROJECT, output_of, this_machine

#: By `time.perf_counter`.
Timeline = tuple[float, float, list[dict[str, float]]]


def sweep(arch: str, batch_size: int, iters: int, repeats: int, folder: Path) -> Timeline:
    """Sweep one configuration; return its begin and end, and the events of each run by name."""
    matrix = folder / "overhead.yaml"
    fields = f"{{arch: {arch}, batch_size: {batch_size}, warmup_iters: 3, iters: {iters}}}"
    matrix.write_text(f"repeats: {repeats}\nblocks:\n  - {fields}\n", encoding="utf-8")
    records = folder / "records"
    command = [sys.executable, str(PROJECT / "mlproject.py"), "sweep", str(matrix)]
    store = {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    begin_s = time.perf_counter()
    output_of([*command, "--records", str(records)], folder, store | os.environ)
    end_s = time.perf_counter()
    runs = sorted(map(_events, records.glob("*/journal.jsonl")), key=lambda run: run["started"])
    return begin_s, end_s, runs


def _events(journal: Path) -> dict[str, float]:
    lines = journal.read_text(encoding="utf-8").splitlines()
    return {event["event"]: event["clock_s"] for event in map(json.loads, lines)}


def page(timeline: Timeline, what: str) -> str:
    """Return the figures as a page of Markdown."""
    begin_s, end_s, runs = timeline
    overheads_s = [after["started"] - run["window_ended"] for run, after in pairwise(runs)]
    starts_s = [run["window_started"] - run["started"] for run in runs]
    before_s = runs[0]["started"] - begin_s
    after_s = end_s - runs[-1]["window_ended"]
    median_s = statistics.median(overheads_s)
    command = " ".join(["python", "benchmarks/sweep_overhead.py", *sys.argv[1:]])
    rows = [
        ("overhead of a run: from its window's end to the next worker, median", median_s),
        ("the same, largest", max(overheads_s)),
        ("a worker's own start and warm-up, median (not counted)", statistics.median(starts_s)),
        ("once: from the command to the first worker", before_s),
        ("once: from the last window to the command's end", after_s),
    ]
    table = "\n".join(f"| {label} | {seconds:.2f} |" for label, seconds in rows)
    return (
        "# What a sweep costs beside its measurements\n\n"
        "Promised: at most 2 s a run, and at most 5 % of a run of 60 s.\n\n"
        f"| {len(runs)} runs of {what} | s |\n|---|---|\n{table}\n\n"
        f"That is {median_s / (median_s + 60):.1%} of a run of 60 s. {this_machine()}; "
        f"`{command}`\n"
    )


@click.command()
@click.option("--arch", default="resnet18", show_default=True)
@click.option("--batch-size", default=16, show_default=True)
@click.option("--iters", default=10, show_default=True)
@click.option("--repeats", type=click.IntRange(min=2), default=8, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="write the page there too")
def main(arch: str, batch_size: int, iters: int, repeats: int, out: Path | None) -> None:
    """Sweep and print what it cost."""
    with tempfile.TemporaryDirectory() as folder:
        timeline = sweep(arch, batch_size, iters, repeats, Path(folder))
    text = page(timeline, f"{arch}, batch {batch_size}, {iters} iterations")
    click.echo(text)
    if out is not None:
        out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
