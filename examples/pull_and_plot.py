"""Pulls a campaign from the tracking server: its runs as a table, and a roofline of them.

The server is MLflow's own default: what `MLFLOW_TRACKING_URI` names.
"""

from pathlib import Path

import click

from analysis import draw_roofline, pull_records, pull_runs, recorded, save_figure, single_axes

COLUMNS = ["arch", "precision", "batch_size", "outcome", "verdict", "throughput_images_per_s"]


@click.command()
@click.option("--campaign", default="none", show_default=True, help="of runs without one: none")
@click.option("--tracking-uri", help="server, where it is not MLflow's default")
@click.option("--out", type=Path, default="figures", show_default=True, help="folder of the files")
def main(campaign: str, tracking_uri: str | None, out: Path) -> None:
    """Pull the runs of a campaign, print and save them as a table, and draw their roofline."""
    table = pull_runs(campaign=campaign, tracking_uri=tracking_uri)
    if table.empty:
        raise SystemExit(f"campaign={campaign!r}: the server has no run of it")
    print(table[COLUMNS].to_string(index=False))
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / f"{campaign}.csv", index=False)

    runs = recorded(pull_records(campaign=campaign, tracking_uri=tracking_uri).runs())
    for run in runs:
        if run.refusal is not None:
            print(f"not placed: {run.label}: {run.refusal}")
    figure, axes = single_axes()
    draw_roofline(axes, runs)
    png, _ = save_figure(figure, out, campaign)
    print(png)


if __name__ == "__main__":
    main()
