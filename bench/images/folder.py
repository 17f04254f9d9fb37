"""Folders that a data set is written into, and one that is cut down from another."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.config import user_path
from bench.errors import UserError
from bench.images import images_by_class

#: Lies at the root, where ImageFolder looks at folders only; written last.
MANIFEST = "dataset.json"
UNFINISHED = "dataset.json.part"

REASONS = {
    errno.ENOSPC: "the disk is full: free some space or give another --out",
    errno.EDQUOT: "your disk quota is used up: free some space or give another --out",
    errno.EACCES: "no permission to write there: give another --out",
    errno.EPERM: "no permission to write there: give another --out",
    errno.EROFS: "the file system is read-only: give another --out",
    errno.ENOTDIR: "a part of the path is a file: give another --out",
}


@contextmanager
def disk_errors_named(out: Path) -> Iterator[None]:
    """Turn an `OSError` of the block into a `UserError` that names `out` and the remedy."""
    try:
        yield
    except OSError as error:
        reason = REASONS.get(error.errno or 0) or f"{error.strerror or error}: give another --out"
        raise UserError(f"out={str(out)!r}: {reason}") from None


@contextmanager
def claimed(out: Path, settings: dict[str, Any]) -> Iterator[None]:
    """Make `out` the folder of a data set with these `settings`, whole when the block ends.

    A whole or half-made one with the same settings is taken up again. Raises `UserError` if `out`
    holds anything else, and for an `OSError`, with the remedy.
    """
    with disk_errors_named(out):
        found = next((name for name in (MANIFEST, UNFINISHED) if (out / name).is_file()), None)
        if found is not None:
            _refuse_other_settings(out, found, settings)
        elif out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(
                f"out={str(out)!r}: holds something else: give a new or empty folder as --out"
            )
        else:
            out.mkdir(parents=True, exist_ok=True)
            (out / UNFINISHED).write_text(f"{json.dumps(settings, indent=2)}\n", encoding="utf-8")
        yield
        if (out / UNFINISHED).exists():
            (out / UNFINISHED).replace(out / MANIFEST)


def _refuse_other_settings(out: Path, name: str, settings: dict[str, Any]) -> None:
    try:
        found = json.loads((out / name).read_text(encoding="utf-8"))
        different = [key for key in settings if found.get(key) != settings[key]]
    except (ValueError, AttributeError):
        raise UserError(
            f"out={str(out)!r}: its {name} is damaged: delete the folder or give another --out"
        ) from None
    if different:
        was = ", ".join(f"{key}={found.get(key)}" for key in different)
        now = ", ".join(f"{key}={settings[key]}" for key in different)
        raise UserError(
            f"out={str(out)!r}: holds a data set of {was}, not {now}: "
            "delete the folder or give another --out"
        )


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
    links, and copies with `copy`. What is missing of a folder of the same settings is completed.
    Raises `UserError` if a class has fewer images, and if `out` lies inside `source` or holds
    something else.
    """
    if images_per_class < 1:
        raise UserError(f"images_per_class={images_per_class}: give a number from 1")
    root, target = user_path(source).resolve(), user_path(out)
    images = images_by_class(root)
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
    with claimed(target, settings):
        for name, files in images.items():
            # One stream per class: a class added to the source leaves the others as they were.
            for file, _ in random.Random(f"{seed}/{name}").sample(files, images_per_class):  # noqa: S311
                _link(file, target / file.relative_to(root), copy=copy)


def _refuse_small_classes(images_per_class: int, counts: dict[str, int]) -> None:
    small = [f"{name} has {count}" for name, count in counts.items() if count < images_per_class]
    if small:
        more = f" and {len(small) - 3} more" if len(small) > 3 else ""
        raise UserError(
            f"images_per_class={images_per_class}: class {', '.join(small[:3])}{more}: "
            f"ask for at most {min(counts.values())}"
        )


def _link(file: Path, target: Path, *, copy: bool) -> None:
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
