"""`mlproject accept`: one device, measured whole, into a folder that can be uploaded later."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.errors import UserError
from commands.views.options import backend_option, wait_option

if TYPE_CHECKING:
    from analysis import PlacedRun
    from bench.records import CeilingsRecord
    from campaigns.acceptance import Acceptance


@click.command()
@backend_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("acceptance"),
    show_default=True,
    help="folder of the records, the summary and the roofline",
)
@click.option(
    "--arch", "architectures", multiple=True, help="models; default: the four of the golden table"
)
@click.option(
    "--batch-size",
    "batch_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    help="default: 4 and 8 on a CPU, 16 and 64 on MPS, 64 and 256 on CUDA",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=1),
    default=8.0,
    show_default=True,
    help="time limit for everything",
)
@wait_option
def command(
    backend: str,
    out: Path,
    architectures: tuple[str, ...],
    batch_sizes: tuple[int, ...],
    minutes: float,
    wait: bool,
) -> int:
    """Measure a whole device into a folder of records, without a server.

    Measures its roofs, then every model in every precision that it has. `mlproject sync
    --records OUT/records` uploads them later. Exit code 1 if the roofs could not be measured.
    """
    from bench.config import parse_config
    from bench.launcher.device_lock import device_names, exclusive
    from campaigns.acceptance import ARCHITECTURES, accept
    from commands.views.worker_progress import WorkerProgress

    for arch in architectures:
        parse_config({"arch": arch})
    records = out / "records"
    if records.exists() and any(records.iterdir()):
        raise UserError(f"out={str(out)!r}: holds records already; choose another with --out")
    with exclusive(device_names(backend), wait=wait), WorkerProgress("acceptance") as progress:
        done = accept(
            backend,
            records,
            limit_s=minutes * 60,
            architectures=architectures or ARCHITECTURES,
            batch_sizes=batch_sizes,
            announce=lambda line: click.echo(line, err=True),
            on_event=progress.on_event,
        )
    return _write(done, out)


def _write(done: Acceptance, out: Path) -> int:
    from analysis import place_runs

    runs = place_runs(done.runs, [done.ceilings])
    rows = [_row(run) for run in runs]
    summary = {
        "ceilings": [ceiling.model_dump(mode="json") for ceiling in done.ceilings.ceilings],
        "runs": rows,
        "not_measured": done.not_measured,
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        click.echo("  " + "  ".join(f"{value}" for value in row.values() if value is not None))
    if done.not_measured:
        click.echo(f"not measured, time was up: {', '.join(done.not_measured)}", err=True)
    if _draw(runs, done.ceilings, out):
        click.echo(f"records, summary.json and roofline.png lie in {out}")
    else:
        click.echo(
            f"records and summary.json lie in {out}; what draws the roofline is not installed "
            f"here: take them to where it is, mlproject report --records {out / 'records'}"
        )
    return 0 if done.ceilings.outcome == "ok" else 1


def _draw(runs: Sequence[PlacedRun], ceilings: CeilingsRecord, out: Path) -> bool:
    """Draw the runs under their roofs; False where a kit's environment has nothing to draw with."""
    if not all(map(find_spec, ("matplotlib", "plotly"))):
        return False
    from analysis.figures import draw_roofline, save_figure, single_axes

    figure, axes = single_axes()
    points = [run.point for run in runs if run.point is not None]
    draw_roofline(axes, points, ceilings=ceilings.ceilings)
    save_figure(figure, out, "roofline")
    return True


def _row(run: PlacedRun) -> dict[str, object]:
    point = run.point
    rate = run.metrics.get("throughput_images_per_s")
    return {
        "configuration": run.label,
        "outcome": run.record.outcome,
        "images_per_s": None if rate is None else round(rate, 2),
        "attained_gflops": None if point is None else round(point.attained_flops_per_s / 1e9, 1),
        "bound": None if point is None else point.bound,
        "verdict": run.verdict,
        "reason": run.record.reason or run.refusal,
    }
