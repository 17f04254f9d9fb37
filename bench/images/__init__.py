"""Image folders, without torch; here, whether one can be trained on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

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
    """What an image folder holds; the means are of the `checked` files that were looked into."""

    classes: int
    images: int
    bytes: int
    checked: int
    mean_width: float
    mean_height: float


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
        count = "1 file" if len(faults) == 1 else f"{len(faults)} files"
        raise UserError(
            f"data={str(path)!r}: {count} of {len(chosen)} cannot be decoded, "
            f"first {str(file)!r} ({fault}): replace or delete what is damaged"
        )
    return ImageFolderSummary(
        classes=len(images),
        images=len(sizes),
        bytes=sum(sizes),
        checked=len(chosen),
        mean_width=sum(width for width, _ in dimensions) / len(chosen),
        mean_height=sum(height for _, height in dimensions) / len(chosen),
    )


def images_by_class(path: str | Path) -> dict[str, list[tuple[Path, int]]]:
    """Files of every class of the ImageFolder at `path` with their bytes, in ImageFolder's order.

    Raises `UserError` where torchvision's ImageFolder would refuse the folder, and where its
    classes would be splits such as train and val.
    """
    root = user_path(path)
    if not root.exists():
        raise UserError(
            f"data={str(path)!r}: no such folder: give an ImageFolder's path, "
            "or make one with: mlproject dataset generate"
        )
    if not root.is_dir():
        raise UserError(
            f"data={str(path)!r}: not a folder: give the folder that holds one sub-folder per class"
        )
    try:
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        _refuse_splits(path, root, classes)
        images = {name: list(_image_files(root / name)) for name in classes}
    except OSError as error:
        raise UserError(
            f"data={str(path)!r}: {error.filename}: {error.strerror}: make it readable"
        ) from None
    if not classes:
        raise UserError(
            f"data={str(path)!r}: holds no class sub-folders: put the images of each class into a "
            "folder of their own, or make some with: mlproject dataset generate"
        )
    if empty := [name for name in classes if not images[name]]:
        more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
        raise UserError(
            f"data={str(path)!r}: no images in class {', '.join(empty[:5])}{more}: "
            f"add some ({', '.join(IMAGE_EXTENSIONS)}) or delete the folder"
        )
    return images


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
    found = stream.read(len(ending))
    stream.seek(here)
    return found == ending
