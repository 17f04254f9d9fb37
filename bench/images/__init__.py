"""Image folders, without torch: whether one can be trained on, and where one is written."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO

from PIL import Image, UnidentifiedImageError

from bench.config import user_path
from bench.errors import UserError, one_line

#: The files that torchvision's ImageFolder takes (`torchvision.datasets.folder.IMG_EXTENSIONS`).
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
#: Of a larger folder, this many files evenly spread are looked into, under 0.1 ms each.
CHECKED_FILES = 50_000
SPLIT_NAMES = {"train", "val", "test", "valid", "validation"}
#: How an undamaged file ends: JPEG's end-of-image marker, and PNG's IEND chunk.
ENDINGS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB\x60\x82"}


@dataclass(frozen=True)
class ImageFolderSummary:
    """What an image folder holds; width and height are of the `checked` files, in pixels."""

    classes: int
    images: int
    mean_bytes: int
    mean_width: int
    mean_height: int
    checked: int


def check_image_folder(path: str | Path) -> ImageFolderSummary:
    """Look through the ImageFolder at `path` and into its files.

    JPEG and PNG files must have a sound header and their last marker, or else decode; files of
    other formats must decode. Raises `UserError`, naming `path`, the fault and the remedy, if
    torchvision's ImageFolder could not read the folder or Pillow could not decode a file.
    """
    images = images_by_class(path)
    sizes = [size for files in images.values() for _, size in files]
    step = -(-len(sizes) // CHECKED_FILES)
    chosen = [file for files in images.values() for file, _ in files][::step]
    dimensions, faults = [], []
    for file in chosen:
        try:
            dimensions.append(_look_into(file))
        except Exception as error:  # Pillow's decoders raise many kinds on damaged data
            faults.append((file, _fault(error)))
    if faults:
        file, fault = faults[0]
        raise UserError(
            f"data={str(path)!r}: {len(faults)} of {len(chosen)} files cannot be decoded, "
            f"first {str(file)!r} ({fault}): replace or delete what is damaged"
        )
    return ImageFolderSummary(
        classes=len(images),
        images=len(sizes),
        mean_bytes=round(fmean(sizes)),
        mean_width=round(fmean(width for width, _ in dimensions)),
        mean_height=round(fmean(height for _, height in dimensions)),
        checked=len(chosen),
    )


def images_by_class(path: str | Path) -> dict[str, list[tuple[Path, int]]]:
    """Files of every class of the ImageFolder at `path` with their bytes, in ImageFolder's order.

    Raises `UserError` where torchvision's ImageFolder would refuse the folder, and where its
    classes would be splits such as train and val.
    """
    root = user_path(path)
    try:
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        _refuse_splits(path, root, classes)
        images = {name: list(_image_files(root / name)) for name in classes}
    except OSError as error:
        raise UserError(f"data={str(path)!r}: {error.filename}: {error.strerror}: {_ASK}") from None
    if not classes:
        raise UserError(f"data={str(path)!r}: holds no class sub-folders: {_ASK}")
    if empty := [name for name in classes if not images[name]]:
        raise UserError(
            f"data={str(path)!r}: no images in {len(empty)} of {len(classes)} classes, first "
            f"{empty[0]}: add some ({', '.join(IMAGE_EXTENSIONS)}) or delete the folder"
        )
    return images


_ASK = (
    "give a readable folder that holds one sub-folder per class, or make one with: "
    "mlproject dataset generate"
)


def _refuse_splits(path: str | Path, root: Path, classes: list[str]) -> None:
    """ImageFolder would take train and val for the two classes of a data set."""
    splits = [name for name in classes if name.lower() in SPLIT_NAMES]
    if splits and len(splits) == len(classes):
        inside = [entry for entry in os.scandir(root / splits[0]) if entry.is_dir()]
        if inside:
            raise UserError(
                f"data={str(path)!r}: holds the splits {', '.join(splits)}, not classes: "
                f"give {str(Path(path) / splits[0])!r}"
            )


def _image_files(folder: Path) -> Iterator[tuple[Path, int]]:
    def fail(error: OSError) -> None:
        raise error

    for parent, _, names in sorted(os.walk(folder, onerror=fail, followlinks=True)):
        for name in sorted(names):
            if name.lower().endswith(IMAGE_EXTENSIONS):
                file = Path(parent, name)
                yield file, file.stat().st_size


def _look_into(file: Path) -> tuple[int, int]:
    """Width and height of a sound image; raises what `_fault` puts into words for any other."""
    with file.open("rb") as stream, Image.open(stream) as image:
        width, height = image.size
        if min(width, height) < 1:
            raise ValueError(f"{width} x {height} pixels")
        if not _ends_well(stream, image.format):
            # Cameras add data of their own behind the end, so what decodes is sound.
            image.load()
        return width, height


def _fault(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image, or its header is damaged"
    return (error.strerror if isinstance(error, OSError) else None) or one_line(error)


def _ends_well(stream: BinaryIO, image_format: str | None) -> bool:
    ending = ENDINGS.get(image_format or "")
    if ending is None:
        return False
    here = stream.tell()
    stream.seek(-len(ending), os.SEEK_END)
    last = stream.read(len(ending))
    stream.seek(here)
    return last == ending


#: Lies at the root, where ImageFolder looks at folders only; written last.
MANIFEST = "dataset.json"
UNFINISHED = "dataset.json.part"


@contextmanager
def disk_errors_named(out: Path) -> Iterator[None]:
    """Turn an `OSError` of the block into a `UserError` that names `out` and the remedy."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"out={str(out)!r}: {why}: make room or give another --out") from None


@contextmanager
def claimed(out: Path, settings: dict[str, Any]) -> Iterator[None]:
    """Make `out` the folder of a data set with these `settings`, whole when the block ends.

    A whole or half-made one with the same settings is taken up again. Raises `UserError` if `out`
    holds anything else, and for an `OSError`, with the remedy.
    """
    with disk_errors_named(out):
        manifest = next((name for name in (MANIFEST, UNFINISHED) if (out / name).is_file()), None)
        if manifest is not None:
            _refuse_other_settings(out, manifest, settings)
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
        present = json.loads((out / name).read_text(encoding="utf-8"))
        different = [key for key in settings if present.get(key) != settings[key]]
    except (ValueError, AttributeError):
        raise UserError(
            f"out={str(out)!r}: its {name} is damaged: delete the folder or give another --out"
        ) from None
    if different:
        was = ", ".join(f"{key}={present.get(key)}" for key in different)
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

    The images are symbolic links to the originals; copies with `copy`, and where the system allows
    no links. What is missing of a folder of the same settings is completed.
    Raises `UserError` if a class has fewer images, and if `out` lies inside `source` or holds
    something else.
    """
    if images_per_class < 1:
        raise UserError(f"images_per_class={images_per_class}: give a number from 1")
    root, target = user_path(source).resolve(), user_path(out)
    images = images_by_class(root)
    fewest, smallest = min((len(files), name) for name, files in images.items())
    if fewest < images_per_class:
        raise UserError(
            f"images_per_class={images_per_class}: class {smallest} has {fewest}: "
            f"ask for at most {fewest}"
        )
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


def _link(file: Path, target: Path, *, copy: bool) -> None:
    if target.is_symlink() or target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if not copy:
        with suppress(OSError):
            target.symlink_to(file)
            return
    unfinished = target.with_name(f"{target.name}.part")
    shutil.copyfile(file, unfinished)
    unfinished.replace(target)
