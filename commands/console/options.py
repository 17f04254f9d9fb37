"""How a command declares its options, once; and the options that several commands share."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import click
from click.core import ParameterSource

from bench.config import RunConfig, allowed_values, parse_config, spelled
from bench.errors import UserError

if TYPE_CHECKING:
    from analysis import RecordSet
    from analysis.comparison.judgement import ComparedMetric
    from analysis.comparison.machines import Prices
    from analysis.roofs import Peaks
    from analysis.runs.run import Run

Found = TypeVar("Found")
Settings: TypeAlias = Mapping[str, Any]

Folder = Annotated[Path, click.Path(path_type=Path, file_okay=False)]
File = Annotated[Path, click.Path(path_type=Path, dir_okay=False)]
Count = Annotated[int, click.IntRange(min=1)]
Seconds = Annotated[float, click.FloatRange(min=0)]
Above = Annotated[float, click.FloatRange(0, min_open=True)]
Share = Annotated[float, click.FloatRange(0, 10, min_open=True)]
#: An option that takes one of the words true and false.
Truth = Annotated[bool, click.BOOL]


def option(text: str, default: Any = None, *flags: str, **settings: Any) -> Any:
    """Declare an option with its help; a flag is off and a tuple empty unless `default` says so."""
    usual = {"default": default, "help": text, "show_default": default not in (None, "")}
    return partial(_option, flags, usual | settings)


def _option(flags: Sequence[str], settings: Settings, name: str, hint: Any) -> click.Option:
    typed = _settings_of(hint)
    off = {"default": False} if "is_flag" in typed and not flags else {}
    names = [*(flags or (f"--{name.replace('_', '-')}",)), name]
    return click.Option(names, **{**typed, **settings, **off})


def argument(**settings: Any) -> Any:
    """Declare an argument, which is required unless `settings` say otherwise."""
    return partial(_argument, settings)


def _argument(settings: Settings, name: str, hint: Any) -> click.Argument:
    typed = _settings_of(hint)
    several = {"nargs": -1} if typed.pop("multiple", False) else {}
    return click.Argument([name], **{**typed, **several, **settings})


def _settings_of(hint: Any) -> dict[str, Any]:
    """Return what an annotation says to click."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is tuple:
        return {**_settings_of(parts[0]), "multiple": True}
    if kind in (Union, UnionType):
        [hint] = [part for part in parts if part is not NoneType]
        return _settings_of(hint)
    if kind is Annotated:
        return {"type": parts[1]}
    if kind is Literal:
        return {"type": click.Choice(parts)}
    return {"is_flag": True} if hint is bool else {"type": hint}


class Command(ABC):
    """A subcommand: a class whose docstring is its help, and whose fields are its options.

    A field's value is an `option` or an `argument`, and its annotation the type: `Literal[...]` is
    a choice, `tuple[X, ...]` may be given again, `bool` is a flag, `Annotated[X, T]` is of click's
    type T. Inherited options come last.
    """

    #: Names of the options that the user gave.
    given: frozenset[str] = frozenset()
    #: The commands that it consists of, if it is a group.
    parts: ClassVar[tuple[type[Command], ...]] = ()

    @abstractmethod
    def run(self) -> int | None:
        """Do what the command does, and return the exit code."""

    @classmethod
    def command(cls) -> click.Command:
        """Return what click runs."""
        name, text = cls.__name__.lower(), inspect.cleandoc(cls.__doc__ or "")
        if cls.parts:
            return click.Group(name, [part.command() for part in cls.parts], help=text)
        hints = get_type_hints(cls, include_extras=True)
        declared = {
            n: d for base in cls.__mro__ for n, d in vars(base).items() if isinstance(d, partial)
        }
        parameters = [declare(field, hints[field]) for field, declare in declared.items()]
        return click.Command(name, callback=cls._invoked, params=parameters, help=text)

    @classmethod
    def _invoked(cls, **values: Any) -> int | None:
        source = click.get_current_context().get_parameter_source
        this = cls()
        vars(this).update(values)
        this.given = frozenset(n for n in values if source(n) is not ParameterSource.DEFAULT)
        return this.run()


def note(line: str) -> None:
    """Say something on standard error, beside what the command shows."""
    click.echo(f"mlproject: {line}", err=True)


# Options of several commands


def mlflow_is_here() -> bool:
    """Whether this environment can track; a kit for machines without a network cannot."""
    return find_spec("mlflow") is not None


def tracked_here(context: click.Context, parameter: click.Parameter, asked: bool | None) -> bool:
    """Return whether to track, by default where MLflow is; asked for without it is an error."""
    here = mlflow_is_here()
    if asked and not here:
        raise UserError(
            "--track: this environment has no MLflow; leave it out, and run mlproject sync, which "
            "uploads what lies in --records, where MLflow is installed"
        )
    if asked is None and not here:
        note(
            "no MLflow here: records stay on disk; mlproject sync uploads them from an environment "
            "that has it"
        )
    return here if asked is None else asked


class WithRecords(Command):
    """A command with a folder of records."""

    records: Folder = option(
        "folder where records are safe before any upload",
        Path("records"),
        envvar="MLPROJECT_RECORDS",
    )


class Tracked(WithRecords):
    """A command whose records go to the tracking server."""

    tracked: bool = option(
        "upload the record to the tracking server  [default: track, where MLflow is installed]",
        None,
        "--track/--no-track",
        callback=tracked_here,
    )


def field_option(name: str) -> Any:
    """Declare the option of one field of RunConfig, so that the two always agree."""
    field = RunConfig.model_fields[name]
    words = allowed_values(name)
    metavar = "|".join(words) if len(words) == 1 else f"[{'|'.join(words)}]"
    return option(field.description or "", spelled(field.default), metavar=metavar)


class Configured(Command):
    """A command with all fields of RunConfig as options."""

    @property
    def settings(self) -> dict[str, str]:
        """The fields' values as they were given."""
        return {name: vars(self)[name] for name in RunConfig.model_fields}

    def config(self) -> RunConfig:
        """Return the configuration; all that is wrong in one `UserError`."""
        config = parse_config(self.settings)
        if config.reads_images:
            from bench.images import check_image_folder

            check_image_folder(config.data)
        return config


for _name in RunConfig.model_fields:
    setattr(Configured, _name, field_option(_name))
    Configured.__annotations__[_name] = "str"


class WithPeaks(Command):
    """A command that takes datasheet peaks of the user's own."""

    peaks_file: File | None = option(
        "CSV file of datasheet peaks of your own, which go before those of this package; "
        "docs/roofs.md has the columns",
        None,
        "--peaks",
        metavar="FILE",
    )

    def peaks(self) -> tuple[Peaks, ...]:
        """Return those peaks; raises `UserError` for a file that has none."""
        from analysis.roofs import read_peaks

        return read_peaks(self.peaks_file) if self.peaks_file else ()


class WithPrices(Command):
    """A command that turns rates into costs."""

    price: tuple[str, ...] = option(
        "what an hour of a machine costs, in USD unless a currency is given: 'gcp-l4=0.21 EUR/h "
        "spot 2026-11-01' (may be given again)",
        metavar="ENV=0.71/h",
    )
    prices_file: File | None = option(
        "CSV file of dated prices by machine type; docs/compare.md has the columns",
        None,
        "--prices",
        metavar="FILE",
    )

    def prices(self) -> Prices:
        """Return all prices; raises `UserError` for what is none."""
        from analysis.comparison.machines import gather_prices

        return gather_prices(self.price, self.prices_file)


class OfMetric(Command):
    """A command about one metric of runs, those of a side or of two."""

    metric: str | None = option(
        "a metric's name in MLflow [default: the runs' own rate, throughput_images_per_s of "
        "images, else throughput_samples_per_s]"
    )

    def read(self, *sides: str) -> tuple[ComparedMetric, Sequence[Sequence[Run]]]:
        """Return the metric and the runs that each text names."""
        from analysis.comparison import compared_metric, read_side, read_sides

        compared_metric(self.metric)  # before anything is read
        with server_needed():
            if len(sides) == 2:
                found: Sequence[Sequence[Run]] = read_sides(*sides, say_unreadable)
            else:
                found = [read_side(side, say_unreadable) for side in sides]
        return compared_metric(self.metric, chain.from_iterable(found)), found


def say_unreadable(line: str) -> None:
    """Say on standard error why a record was left out."""
    note(f"record not read: {line}")


class CopiedRuns(Command):
    """The two options that choose tracked runs wherever they are copied or read."""

    filter_string: str = option(
        "MLflow filter, such as \"params.arch = 'resnet50' and metrics.batch_size >= 32\"",
        "",
        "--filter",
        metavar="EXPRESSION",
    )
    campaign: str | None = option("only runs of this campaign")


class WantedRuns(CopiedRuns):
    """A command on the tracked runs that `--filter`, `--campaign` and `--experiment` choose."""

    experiments: tuple[str, ...] = option(
        "only runs of this experiment (may be given again); all by default",
        (),
        "--experiment",
        metavar="NAME",
    )

    def search(self, search: Callable[..., Found], **how: Any) -> Found:
        """Return what `search` of the package `analysis` finds of them."""
        chosen = {"experiments": self.experiments or None, "campaign": self.campaign}
        with server_needed():
            return search(self.filter_string, **chosen, **how)

    def nothing(self, *whys: str, folders: Sequence[Path] = ()) -> UserError:
        """Return the error for a choice that no run matches: what was asked for, and why."""
        asked = [f"records={str(folder)!r}" for folder in folders]
        asked += [f"campaign={self.campaign!r}"] if self.campaign else []
        asked += [f"filter={self.filter_string!r}"] if self.filter_string else []
        asked += [f"experiment={name!r}" for name in self.experiments]
        server = "" if folders else "check MLFLOW_TRACKING_URI, or "
        why = "; ".join(whys[:2]) or f"{server}measure one with mlproject run"
        return UserError(
            f"{' '.join(asked) or 'the tracking server'}: no measurement matches; {why}"
        )


class WantedRecords(WantedRuns):
    """A command on the records of those runs, or of folders."""

    folders: tuple[Folder, ...] = option(
        "read this folder of records instead of the tracking server (may be given again)",
        (),
        "--records",
    )

    def read_records(self, **how: Any) -> RecordSet:
        """Return the records; machines of one label are numbered.

        Raises `UserError` where there are none, and for a folder that is to answer what only a
        server can.
        """
        from analysis import RecordSet, pull_records

        if self.folders and (self.filter_string or self.experiments):
            raise UserError("--records reads a folder: --filter and --experiment ask a server")
        if self.folders:
            found = RecordSet.read(self.folders, self.campaign)
        else:
            found = self.search(pull_records, **how)
        if found.is_empty:
            raise self.nothing(*found.unreadable, folders=self.folders)
        return found.with_unique_labels()


@contextmanager
def server_needed() -> Iterator[None]:
    """Make what a tracking server does wrong a `UserError`: the command can do nothing without."""
    from tracking.connection import TrackingError

    try:
        yield
    except TrackingError as error:
        raise UserError(str(error)) from None


def words_of(*known: str) -> Callable[..., tuple[str, ...]]:
    """Return the callback of an option that takes words, with commas between them, of `known`."""

    def read(_: object, parameter: click.Parameter, given: Sequence[str]) -> tuple[str, ...]:
        words = tuple(word.strip() for text in given for word in text.split(","))
        if wrong := [word for word in words if word not in known]:
            name = parameter.opts[0].strip("-")
            raise UserError(f"{name}={wrong[0]!r}: give some of {', '.join(known)}")
        return words

    return read


def set_values(pairs: Sequence[str], names: Collection[str], example: str) -> dict[str, str]:
    """Return the values of `--set NAME=VALUE`; raises `UserError` for a name that is not known."""
    found = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in names or not value.strip():
            unknown = "" if name in names else f"{name!r} is not known; "
            raise UserError(f"set={pair!r}: {unknown}give {example}")
        found[name] = value.strip()
    return found
