"""`mlproject dataset`: image folders to train on, made, cut down, fetched and checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn

from commands.views.options import format_option


@click.group()
def command() -> None:
    """Make, cut down, fetch or check a folder of images (torchvision's ImageFolder).

    Each subcommand ends with one line about the folder. Exit codes: 0 done; 2 a wrong value, a
    damaged folder, no network or no disk space, with the remedy; 130 interrupted.
    """


@command.command()
@click.option("--out", default="data/generated", show_default=True, help="Folder to make.")
@click.option("--classes", default=10, show_default=True, help="Classes, at most 1000.")
@click.option("--images-per-class", default=64, show_default=True, help="Images of each class.")
@click.option("--seed", default=0, show_default=True, help="Same seed, same pictures.")
@format_option
def generate(out: str, classes: int, images_per_class: int, seed: int, form: str) -> None:
    """Make photograph-like JPEGs without a network.

    About 500x375 pixels and 105 KB each, which decode like photographs. Running it again
    completes what was interrupted, and otherwise does nothing.
    """
    from bench.training.dataset.generate import generate_image_folder

    with _progress("images", classes * images_per_class) as (bar, task):
        generate_image_folder(
            out,
            classes=classes,
            images_per_class=images_per_class,
            seed=seed,
            on_image=lambda: bar.advance(task),
        )
    _summarise(out, form)


@command.command()
@click.argument("source")
@click.option("--out", required=True, help="Folder to make.")
@click.option("--images-per-class", required=True, type=int, help="Images of each class.")
@click.option("--seed", default=0, show_default=True, help="Same seed, same choice.")
@click.option("--copy", is_flag=True, help="Copy the images instead of linking to them.")
@format_option
def subset(source: str, out: str, images_per_class: int, seed: int, copy: bool, form: str) -> None:
    """Take the same number of images from every class of SOURCE, by link or copy."""
    from bench.training.dataset.subset import subset_image_folder

    subset_image_folder(source, out, images_per_class=images_per_class, seed=seed, copy=copy)
    _summarise(out, form)


@command.command()
@click.option("--out", default="data", show_default=True, help="Folder to unpack into.")
@click.option(
    "--size",
    type=click.Choice(["160", "320", "full"]),
    default="320",
    show_default=True,
    help="Shorter side of the images in pixels.",
)
@click.option("--url", help="A mirror of the archive.")
@click.option("--checksum", help="MD5 or SHA-256 of the archive, if it is not the published one.")
@format_option
def fetch(out: str, size: Any, url: str | None, checksum: str | None, form: str) -> None:
    """Download Imagenette: ten classes of ImageNet, 13,394 photographs.

    An interrupted download continues where it stopped. The last line is about the training split;
    the validation split is beside it.
    """
    from bench.training.dataset.fetch import fetch_imagenette

    with _progress("bytes", None) as (bar, task):
        folder = fetch_imagenette(
            out,
            size=size,
            url=url,
            checksum=checksum,
            on_bytes=lambda have, total: bar.update(task, completed=have, total=total),
        )
    _summarise(folder / "train", form)


@command.command()
@click.argument("path")
@format_option
def check(path: str, form: str) -> None:
    """Check the image folder PATH and the files in it."""
    _summarise(path, form)


def _summarise(path: str | Path, form: str) -> None:
    from bench.training.dataset import check_image_folder

    found = check_image_folder(path)
    facts = {
        "path": str(path),
        "classes": found.classes,
        "images": found.images,
        "mean_bytes": round(found.bytes / found.images),
        "mean_width": round(found.mean_width),
        "mean_height": round(found.mean_height),
        "checked": found.checked,
    }
    if form == "json":
        click.echo(json.dumps(facts))
        return
    click.echo(
        "{images} images in {classes} classes, {mean_bytes} bytes and "
        "{mean_width}x{mean_height} pixels on average: {path}".format(**facts)
    )


@contextmanager
def _progress(unit: str, total: int | None) -> Iterator[tuple[Progress, Any]]:
    """A bar on the terminal, nothing elsewhere."""
    console = Console(stderr=True)
    columns = (
        *Progress.get_default_columns()[:-1],
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True
    ) as bar:
        yield bar, bar.add_task(unit, total=total)
