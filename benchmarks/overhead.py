"""What tracking costs: a tracked run against a bare loop of the same configuration, in turns.

    python benchmarks/overhead.py --pairs 5 --out overhead.md
    python benchmarks/overhead.py --arch hf:gpt2 --batch-size 4     # tokens, with AdamW

Two ratios per pair, the two members run one after the other: samples/s, of images or sequences, of
the measured window (tracking, telemetry and raw times on) over the bare loop's, and the time from
the command to the first warm-up iteration over the bare script's. Medians are quoted; every pair is
shown.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import click
from side_by_side import bare_run, take_turns, this_machine, tracked_run

from bench.config import split_arch

#: Metrics of a run's rate: of images, or of what else it trains on.
_RATES = ("throughput_images_per_s", "throughput_samples_per_s")


def timed_bare(options: list[str], precision: str) -> dict[str, float]:
    """Run the bare loop; return its rate and its time to the first iteration."""
    begin_s = time.perf_counter()
    answer = bare_run(options, precision)
    return {
        "samples_per_s": answer["samples_per_s"],
        "start_s": answer["first_iteration_clock_s"] - begin_s,
    }


def timed_tracked(options: list[str], precision: str, folder: Path) -> dict[str, float]:
    """Run `mlproject run` with everything on; return the same two figures."""
    begin_s = time.perf_counter()
    answer = tracked_run([*options, "--precision", precision], folder)
    journal = Path(answer["record"], "journal.jsonl").read_text(encoding="utf-8").splitlines()
    events = {event["event"]: event["clock_s"] for event in map(json.loads, journal)}
    return {
        "samples_per_s": next(answer[name] for name in _RATES if name in answer),
        "start_s": events["warmup_started"] - begin_s,
    }


def table(title: str, pairs: Iterable[tuple[dict[str, float], ...]]) -> str:
    """Return the pairs and the medians of their ratios as Markdown."""
    lines = [
        f"### {title}",
        "",
        "| pair | samples/s: tracked | bare | ratio | s to first iteration: ours | bare | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    ratios: dict[str, list[float]] = {"samples_per_s": [], "start_s": []}
    for number, (tracked, bare) in enumerate(pairs, 1):
        cells = [str(number)]
        for key in ratios:
            ratios[key].append(tracked[key] / bare[key])
            cells += [f"{tracked[key]:.2f}", f"{bare[key]:.2f}", f"{ratios[key][-1]:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    rate, start = (statistics.median(values) for values in ratios.values())
    lines.append(f"| **median** | | | **{rate:.3f}** | | | **{start:.3f}** |")
    return "\n".join(lines)


def _head(iters: int, warmup_iters: int) -> str:
    """What the tables are, where they were measured, and how to repeat them."""
    command = " ".join(["python", "benchmarks/overhead.py", *sys.argv[1:]])
    return (
        "# What tracking costs\n\n"
        "A tracked run (telemetry, raw times, SQLite store) against `benchmarks/bare_loop.py`, the "
        "same configuration as a plain PyTorch loop, in alternation. Promised: at least 0.99 of "
        "its samples/s on a CPU, 0.995 on a GPU, and at most 1.3 times its time to the first "
        "iteration.\n\n"
        f"{this_machine()}; {iters} iterations after {warmup_iters} of warm-up; `{command}`"
    )


@click.command()
@click.option("--arch", default="resnet18", show_default=True)
@click.option("--batch-size", default=16, show_default=True)
@click.option("--iters", default=20, show_default=True)
@click.option("--warmup-iters", default=3, show_default=True)
@click.option("--precision", "precisions", multiple=True, default=["fp32", "amp"])
@click.option("--pairs", default=5, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="write the tables there too")
def main(
    arch: str,
    batch_size: int,
    iters: int,
    warmup_iters: int,
    precisions: tuple[str, ...],
    pairs: int,
    out: Path | None,
) -> None:
    """Run the pairs and print their table."""
    options = ["--arch", arch, "--batch-size", str(batch_size)]
    as_bare = ["--optimizer", "adamw"] if split_arch(arch)[0] == "hf" else []
    options += ["--iters", str(iters), "--warmup-iters", str(warmup_iters)]
    tables = []
    with tempfile.TemporaryDirectory() as name:
        for precision in precisions:
            sides = {
                "tracked": partial(timed_tracked, [*options, *as_bare], precision, Path(name)),
                "bare": partial(timed_bare, options, precision),
            }
            measured = zip(*take_turns(sides, pairs).values(), strict=True)
            tables.append(table(f"{arch} {precision}, batch {batch_size}", measured))
            click.echo(tables[-1])
    if out is not None:
        out.write_text("\n\n".join([_head(iters, warmup_iters), *tables]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
