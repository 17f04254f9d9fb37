"""The options that several commands share, and the checks of what they were given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bench.config import RunConfig, allowed_values, parse_config, spelled
from bench.errors import UserError

if TYPE_CHECKING:
    from analysis import RecordSet
    from analysis.comparison.machines.prices import Prices

Found = TypeVar("Found")

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


def mlflow_is_here() -> bool:
    """Whether this environment can track; a kit for machines without a network cannot."""
    return find_spec("mlflow") is not None


def _tracked(context: click.Context, parameter: click.Parameter, asked: bool | None) -> bool:
    here = mlflow_is_here()
    if asked and not here:
        raise UserError(
            "--track: this environment has no MLflow; leave it out: the record stays in --records, "
            "and mlproject sync uploads it from an environment that has MLflow"
        )
    if asked is None and not here:
        click.echo(
            "mlproject: no MLflow here: records stay on disk; mlproject sync uploads them from an "
            "environment that has it",
            err=True,
        )
    return here if asked is None else asked


track_option = click.option(
    "--track/--no-track",
    "tracked",
    default=None,
    callback=_tracked,
    help="upload the record to the tracking server  [default: track, where MLflow is installed]",
)
wait_option = click.option(
    "--wait",
    type=click.Choice(["true", "false"]),
    default="true",
    show_default=True,
    callback=lambda context, parameter, value: value == "true",
    help="wait while another process of this machine measures on the device; false: measure "
    "beside it",
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
refresh_option = click.option(
    "--refresh",
    is_flag=True,
    help="read all runs again, so that names and tags changed by hand appear",
)
records_instead_option = click.option(
    "--records",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="read this folder of records instead of the tracking server (may be given again)",
)

metric_option = click.option(
    "--metric",
    help="a metric's name in MLflow  [default: the runs' own rate, throughput_images_per_s of "
    "images, else throughput_samples_per_s]",
)
peaks_option = click.option(
    "--peaks",
    "peaks_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="CSV file of datasheet peaks of your own, which go before those of this package; "
    "docs/ceilings.md has the columns",
)


@contextmanager
def server_needed() -> Iterator[None]:
    """Make what a tracking server does wrong a `UserError`: the command can do nothing without."""
    from tracking.store import TrackingError

    try:
        yield
    except TrackingError as error:
        raise UserError(str(error)) from None


@dataclass(frozen=True)
class WantedRuns:
    """The tracked runs that `--filter`, `--campaign` and `--experiment` choose."""

    filter_string: str
    campaign: str | None
    experiments: tuple[str, ...]

    def search(self, search: Callable[..., Found], **how: Any) -> Found:
        """Return what `search` of the package `analysis` finds of them."""
        chosen = {"experiments": self.experiments or None, "campaign": self.campaign}
        with server_needed():
            return search(self.filter_string, **chosen, **how)

    def records(self, folders: Sequence[Path], **how: Any) -> RecordSet:
        """Return their records, or those in `folders`; machines of one label are numbered.

        Raises `UserError` where there are none, and for a folder that is to answer what only a
        server can.
        """
        if folders and (self.filter_string or self.experiments):
            raise UserError("--records reads a folder: --filter and --experiment ask a server")
        from analysis import RecordSet, pull_records

        if folders:
            found = RecordSet.read(folders, self.campaign)
            if found.is_empty:
                of_campaign = "" if self.campaign is None else f" of campaign {self.campaign!r}"
                where = ", ".join(repr(str(folder)) for folder in folders)
                why = "; ".join(found.unreadable[:2])
                raise UserError(f"records={where}: holds no measurement{of_campaign}; {why}")
        else:
            found = self.search(pull_records, **how)
            if found.is_empty:
                if found.unreadable:
                    raise UserError(f"no record could be read: {found.unreadable[0]}")
                raise self.none()
        return found.with_unique_labels()

    def none(self) -> UserError:
        """Return the error for a choice that no run matches, naming what was asked for."""
        asked = [] if self.campaign is None else [f"campaign={self.campaign!r}"]
        if self.filter_string:
            asked.append(f"filter={self.filter_string!r}")
        asked += [f"experiment={name!r}" for name in self.experiments]
        return UserError(
            f"{' '.join(asked) or 'the tracking server'}: no tracked measurement matches; "
            "check MLFLOW_TRACKING_URI, or measure one with mlproject run"
        )


def wanted_runs_options(function: Callable[..., int]) -> Callable[..., int]:
    """The three options that choose tracked runs, given to `function` as `wanted`."""

    @filter_option
    @campaign_option
    @click.option(
        "--experiment",
        "experiments",
        multiple=True,
        metavar="NAME",
        help="only runs of this experiment (may be given again); all by default",
    )
    @wraps(function)
    def command(
        filter_string: str, campaign: str | None, experiments: tuple[str, ...], **others: Any
    ) -> int:
        return function(wanted=WantedRuns(filter_string, campaign, experiments), **others)

    return command


def price_options(function: Callable[..., int]) -> Callable[..., int]:
    """`--price` and `--prices`, given to `function` as `prices`."""

    @click.option(
        "--price",
        "given",
        multiple=True,
        metavar="ENV=0.71/h",
        help="what an hour of a machine costs, in USD unless a currency is given: "
        "'gcp-l4=0.21 EUR/h spot 2026-11-01' (may be given again)",
    )
    @click.option(
        "--prices",
        "table",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="CSV or JSON file of dated prices by machine type; docs/comparing.md has the columns",
    )
    @wraps(function)
    def command(given: tuple[str, ...], table: Path | None, **others: Any) -> int:
        return function(prices=_gathered(given, table), **others)

    return command


def _gathered(given: tuple[str, ...], table: Path | None) -> Prices:
    from analysis.comparison.machines.prices import gather_prices

    return gather_prices(given, table)


@contextmanager
def writing(out: Path, remedy: str = "name another folder") -> Iterator[None]:
    """Make what goes wrong while files are written to `out` a `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"out={str(out)!r}: cannot write there ({error.strerror or error}); {remedy}"
        ) from None


def field_option(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option of one field of RunConfig, so that the two always agree."""
    field = RunConfig.model_fields[name]
    return click.option(
        f"--{name.replace('_', '-')}",
        name,
        default=spelled(field.default),
        show_default=True,
        metavar=_metavar(name),
        help=field.description,
    )


def one_option_per_field(function: Callable[..., int]) -> Callable[..., int]:
    """Options of all fields of RunConfig."""
    for name in reversed(RunConfig.model_fields):
        function = field_option(name)(function)
    return function


def _metavar(name: str) -> str:
    """`[auto|true|false]`: what the field takes."""
    words = allowed_values(name)
    return "|".join(words) if len(words) == 1 else f"[{'|'.join(words)}]"


def checked_config(values: dict[str, str]) -> RunConfig:
    """Return the configuration of the options' values; all that is wrong in one `UserError`."""
    config = parse_config(values)
    if config.reads_images:
        from bench.training.dataset import check_image_folder

        check_image_folder(config.data)
    return config
