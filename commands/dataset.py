"""`mlproject dataset`: image folders to train on, made, cut down, fetched and checked."""

from __future__ import annotations

from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Literal

from rich.progress import DownloadColumn, MofNCompleteColumn, TimeRemainingColumn

from commands.console.options import Command, argument, option
from commands.console.output import Answering, Output
from commands.console.progress import Bar


class Generate(Answering):
    """Make JPEGs that decode like photographs, without a network.

    Each has 500x375 pixels and about 105 KB. Running it again completes what was interrupted, and
    otherwise does nothing.
    """

    out: str = option("folder to make", "data/generated")
    classes: int = option("classes, at most 1000", 10)
    images_per_class: int = option("images of each class", 64)
    seed: int = option("same seed, same pictures", 0)

    def _result(self) -> Output:
        from bench.images.generate import generate_image_folder

        done, total = count(1), self.classes * self.images_per_class
        with Bar(MofNCompleteColumn(), TimeRemainingColumn(), transient=True) as bar:
            generate_image_folder(
                self.out,
                classes=self.classes,
                images_per_class=self.images_per_class,
                seed=self.seed,
                on_image=lambda: bar.show("images", completed=next(done), total=total),
            )
        return _summary(self.out)


class Subset(Answering):
    """Take the same number of images from every class of SOURCE, by link or copy."""

    source: str = argument()
    out: str = option("folder to make", required=True)
    images_per_class: int = option("images of each class", required=True)
    seed: int = option("same seed, same choice", 0)
    copy: bool = option("copy the images instead of linking to them")

    def _result(self) -> Output:
        from bench.images import subset_image_folder

        subset_image_folder(
            self.source,
            self.out,
            images_per_class=self.images_per_class,
            seed=self.seed,
            copy=self.copy,
        )
        return _summary(self.out)


class Fetch(Answering):
    """Download Imagenette: ten classes of ImageNet, 13,394 photographs.

    An interrupted download continues where it stopped. The last line is about the training split;
    the validation split is beside it.
    """

    out: str = option("folder to unpack into", "data")
    size: Literal["160", "320", "full"] = option("shorter side of the images in pixels", "320")
    url: str | None = option("a mirror of the archive")
    checksum: str | None = option("MD5 of the archive, if it is not the published one")

    def _result(self) -> Output:
        from bench.images.fetch import fetch_imagenette

        with Bar(DownloadColumn(), TimeRemainingColumn(), transient=True) as bar:
            folder = fetch_imagenette(
                self.out,
                size=self.size,
                url=self.url,
                checksum=self.checksum,
                on_bytes=lambda have, total: bar.show("bytes", completed=have, total=total),
            )
        return _summary(folder / "train")


class Check(Answering):
    """Check the image folder PATH and the files in it."""

    path: str = argument()

    def _result(self) -> Output:
        return _summary(self.path)


def _summary(path: str | Path) -> Output:
    from bench.images import check_image_folder

    facts = {"path": str(path), **asdict(check_image_folder(path))}
    line = (
        "{images} images in {classes} classes, {mean_bytes} bytes and "
        "{mean_width}x{mean_height} pixels on average: {path}"
    )
    return Output([line.format(**facts)], facts)


class Dataset(Command):
    """Generate, fetch, subset or check an image folder.

    It is one of torchvision's ImageFolder. Each subcommand ends with one line about the folder.
    """

    parts = (Generate, Subset, Fetch, Check)
