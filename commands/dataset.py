"""`mlproject dataset`: image folders to train on, made, cut down, fetched and checked."""

from __future__ import annotations

import shutil
import zlib
from dataclasses import asdict
from itertools import count
from pathlib import Path, PurePosixPath
from tarfile import TarError
from typing import Literal
from urllib.parse import urlsplit

from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from bench.config import user_path
from bench.errors import UserError, one_line
from commands.console.options import Command, argument, option
from commands.console.output import Answering, Bar, Output


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
        from bench.images import generate_image_folder

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


Size = Literal["160", "320", "full"]
_PUBLISHER = "https://s3.amazonaws.com/fast-ai-imageclas"
#: Address and MD5 by the images' shorter side in pixels: `torchvision.datasets.Imagenette`.
PUBLISHED: dict[Size, tuple[str, str]] = {
    "160": (f"{_PUBLISHER}/imagenette2-160.tgz", "e793b78cc4c9e9a4ccc0c1155377a412"),
    "320": (f"{_PUBLISHER}/imagenette2-320.tgz", "3df6f0d01a2c9592104656642f5e78a3"),
    "full": (f"{_PUBLISHER}/imagenette2.tgz", "fe2fc210e6bb7c5664d602c3cd71e612"),
}


class Fetch(Answering):
    """Download Imagenette: ten classes of ImageNet, 13,394 photographs.

    The line is about the training split; the validation split is beside it.
    """

    out: str = option("folder to unpack into", "data")
    size: Size = option("shorter side of the images in pixels", "320")
    url: str | None = option("a mirror of the archive")
    checksum: str | None = option("MD5 of the archive, if it is not the published one")

    def _result(self) -> Output:
        published, md5 = PUBLISHED[self.size]
        return _summary(_fetched(self.url or published, self.checksum or md5, self.out) / "train")


def _fetched(url: str, md5: str, out: str) -> Path:
    """Download, verify and unpack; a folder that is there already is left alone."""
    from torchvision.datasets.utils import download_and_extract_archive

    root, name = user_path(out), PurePosixPath(urlsplit(url).path).name
    folder = root / name.partition(".")[0]
    unfinished = root / f".{folder.name}.unpacking"
    if folder != root and folder.is_dir():
        return folder
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        download_and_extract_archive(url, root, unfinished, name, md5.lower(), True)
        tops = [*unfinished.iterdir()]
        if len(tops) != 1 or not tops[0].is_dir():
            raise ValueError(f"the archive has {len(tops)} files and folders, not one folder")
        tops[0].rename(folder)
        unfinished.rmdir()
    except (OSError, RuntimeError, ValueError, TarError, EOFError, zlib.error) as error:
        raise UserError(
            f"url={url!r}: {one_line(error).rstrip('.')}: run the same command again, give another "
            "--url with its --checksum, or make images without a network: "
            "mlproject dataset generate"
        ) from None
    return folder


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
