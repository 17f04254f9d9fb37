"""The options that several commands share, and the checks of what they were given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from bench.config import RunConfig, parse_config
from bench.errors import UserError

backend_option = click.option(
    "--backend",
    type=click.Choice(["auto", "cpu", "cuda", "mps"]),
    default="auto",
    show_default=True,
    help="device to measure",
)
records_option = click.option(
    "--records",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("records"),
    show_default=True,
    envvar="MLPROJECT_RECORDS",
    help="folder where records are safe before any upload",
)
track_option = click.option(
    "--track/--no-track", "tracked", default=True, help="upload the record to the tracking server"
)
format_option = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
table_option = click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
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
records_instead_option = click.option(
    "--records",
    type=click.Path(path_type=Path, file_okay=False),
    help="read this folder of records instead of the tracking server",
)


def check_one_source(records: Path | None, filter_string: str, experiments: Sequence[str]) -> None:
    """Raise `UserError` where a folder of records is named with what only a server can answer."""
    if records is not None and (filter_string or experiments):
        raise UserError("--records reads a folder: --filter and --experiment ask a server")


@contextmanager
def server_needed() -> Iterator[None]:
    """Make what a tracking server does wrong a `UserError`: the command can do nothing without."""
    from tracking.store import TrackingError

    try:
        yield
    except TrackingError as error:
        raise UserError(str(error)) from None


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


def one_option_per_field(function: Callable[..., int]) -> Callable[..., int]:
    """Options named like RunConfig's fields, so that the two always agree."""
    for name, field in reversed(RunConfig.model_fields.items()):
        default = str(field.default)
        function = click.option(
            f"--{name.replace('_', '-')}",
            name,
            default=default.lower() if isinstance(field.default, bool) else default,
            show_default=True,
            metavar="VALUE",
            help=field.description,
        )(function)
    return function


def checked_config(values: dict[str, str]) -> RunConfig:
    """Return the configuration of the options' values; all that is wrong in one `UserError`."""
    config = parse_config(values)
    if config.reads_images:
        from bench.training.dataset import check_image_folder

        check_image_folder(config.data)
    return config
