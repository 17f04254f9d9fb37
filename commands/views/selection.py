"""Which tracked runs a command reads: the same options wherever runs are read."""

from __future__ import annotations

from collections.abc import Sequence

import click

from bench.errors import UserError

filter_option = click.option(
    "--filter",
    "filter_string",
    default="",
    metavar="EXPRESSION",
    help="MLflow filter, such as \"params.arch = 'resnet50' and metrics.batch_size >= 32\"",
)
campaign_option = click.option("--campaign", help="only runs of this campaign")
experiment_option = click.option(
    "--experiment",
    "experiments",
    multiple=True,
    metavar="NAME",
    help="only runs of this experiment (may be given again); all by default",
)

refresh_option = click.option(
    "--refresh",
    is_flag=True,
    help="read all runs again, so that names and tags changed by hand appear",
)


def no_runs(filter_string: str, campaign: str | None, experiments: Sequence[str]) -> UserError:
    """Return the error for a selection that matches nothing, naming what was asked for."""
    asked = []
    if campaign is not None:
        asked.append(f"campaign={campaign!r}")
    if filter_string:
        asked.append(f"filter={filter_string!r}")
    asked += [f"experiment={name!r}" for name in experiments]
    what = " ".join(asked) or "the tracking server"
    return UserError(
        f"{what}: no tracked measurement matches; "
        "check MLFLOW_TRACKING_URI, or measure one with mlproject run"
    )
