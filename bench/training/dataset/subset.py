"""Cuts an ImageFolder down to the same number of images in every class."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from bench.config import user_path
from bench.errors import UserError
from bench.training.dataset.folder import claim, disk_errors_named, finish
from bench.training.dataset.folder_check import list_images


def subset_image_folder(
    source: str | Path,
    out: str | Path,
    *,
    images_per_class: int,
    seed: int = 0,
    copy: bool = False,
) -> None:
    """Put `images_per_class` images of each class of `source`, drawn by `seed`, under `out`.

    The images are symbolic links to the originals; hard links or copies where the system allows no
    links, and copies with `copy`. A whole folder of the same settings is left alone, an interrupted
    one is completed. Raises `UserError` if a class has fewer images, and if `out` lies inside
    `source` or holds something else.
    """
    if images_per_class < 1:
        raise UserError(f"images_per_class={images_per_class}: give a number from 1")
    root, target = user_path(source).resolve(), user_path(out)
    images = list_images(root)
    _refuse_small_classes(images_per_class, {name: len(files) for name, files in images.items()})
    if target.resolve().is_relative_to(root):
        raise UserError(f"out={str(out)!r}: lies inside the source: give a folder outside {root}")
    settings = {
        "made_by": "mlproject dataset subset",
        "source": str(root),
        "images_per_class": images_per_class,
        "seed": seed,
        "copy": copy,
    }
    with disk_errors_named(target):
        if claim(target, settings):
            return
        for name, files in images.items():
            # One stream per class: a class added to the source leaves the others as they were.
            for file, _ in random.Random(f"{seed}/{name}").sample(files, images_per_class):  # noqa: S311
                _place(file, target / file.relative_to(root), copy=copy)
        finish(target)


def _refuse_small_classes(images_per_class: int, counts: dict[str, int]) -> None:
    small = [f"{name} has {count}" for name, count in counts.items() if count < images_per_class]
    if small:
        more = f" and {len(small) - 3} more" if len(small) > 3 else ""
        raise UserError(
            f"images_per_class={images_per_class}: class {', '.join(small[:3])}{more}: "
            f"ask for at most {min(counts.values())}"
        )


def _place(file: Path, target: Path, *, copy: bool) -> None:
    if target.is_symlink() or target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if not copy:
        for link in (os.symlink, os.link):
            try:
                link(file, target)
            except OSError:
                continue
            return
    unfinished = target.with_name(f"{target.name}.part")
    shutil.copyfile(file, unfinished)
    unfinished.replace(target)
