"""Image folders, without torch: whether one can be trained on, and where one is made.

A generated picture is random noise whose amplitude falls with frequency as natural images' does,
with a sensor's white noise over it: a JPEG that costs as much to decode as a photograph. There is
nothing in it to learn.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
_SPLITS = {"train", "val", "test", "valid", "validation"}
#: How an undamaged file ends: JPEG's end-of-image marker, and PNG's IEND chunk.
_ENDINGS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB\x60\x82"}


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
    classes = images_by_class(path)
    images = [image for files in classes.values() for image in files]
    chosen = images[:: -(-len(images) // CHECKED_FILES)]
    dimensions, faults = [], []
    for file, _ in chosen:
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
    width, height = (round(fmean(sides)) for sides in zip(*dimensions, strict=True))
    mean_bytes = round(fmean(size for _, size in images))
    return ImageFolderSummary(len(classes), len(images), mean_bytes, width, height, len(chosen))


_ASK = (
    "give a readable folder that holds one sub-folder per class, or make one with: "
    "mlproject dataset generate"
)


def images_by_class(path: str | Path) -> dict[str, list[tuple[Path, int]]]:
    """Files of every class of the ImageFolder at `path` with their bytes, in ImageFolder's order.

    Raises `UserError` where torchvision's ImageFolder would refuse the folder, and where it would
    take splits such as train and val for classes.
    """
    root, where = user_path(path), f"data={str(path)!r}"
    try:
        names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        splits = [name for name in names if name.lower() in _SPLITS]
        if (
            splits
            and splits == names
            and any(entry.is_dir() for entry in os.scandir(root / names[0]))
        ):
            inside = str(Path(path) / names[0])
            raise UserError(f"{where}: holds the splits {', '.join(names)}: give {inside!r}")
        images = {name: list(_image_files(root / name)) for name in names}
    except OSError as error:
        raise UserError(f"{where}: {error.filename}: {error.strerror}: {_ASK}") from None
    if not images:
        raise UserError(f"{where}: holds no class sub-folders: {_ASK}")
    if empty := [name for name, files in images.items() if not files]:
        raise UserError(
            f"{where}: no images in {len(empty)} of {len(images)} classes, first "
            f"{empty[0]}: add some ({', '.join(IMAGE_EXTENSIONS)}) or delete the folder"
        )
    return images


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
        if not _ends_well(stream, _ENDINGS.get(image.format or "")):
            # Cameras add data of their own behind the end, so what decodes is sound.
            image.load()
        return width, height


def _fault(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image, or its header is damaged"
    return (error.strerror if isinstance(error, OSError) else None) or one_line(error)


def _ends_well(stream: BinaryIO, ending: bytes | None) -> bool:
    if ending is None:
        return False
    here = stream.tell()
    stream.seek(-len(ending), os.SEEK_END)
    last = stream.read(len(ending))
    stream.seek(here)
    return last == ending


#: Lies at the root, where ImageFolder looks at folders only; the second until all is there.
MANIFEST, UNFINISHED = "dataset.json", "dataset.json.part"


@contextmanager
def _claimed(out: Path, settings: dict[str, Any]) -> Iterator[None]:
    """Make `out` the folder of a data set with these `settings`, whole when the block ends.

    A whole or half-made one with the same settings is taken up again. Raises `UserError` if `out`
    holds anything else, and for an `OSError`, with the remedy.
    """
    try:
        _claim(out, settings)
        yield
        if (out / UNFINISHED).exists():
            (out / UNFINISHED).replace(out / MANIFEST)
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"out={str(out)!r}: {why}: make room or give another --out") from None


def _claim(out: Path, settings: dict[str, Any]) -> None:
    manifest = next((out / name for name in (MANIFEST, UNFINISHED) if (out / name).is_file()), None)
    if manifest is None and (not out.exists() or (out.is_dir() and not any(out.iterdir()))):
        out.mkdir(parents=True, exist_ok=True)
        (out / UNFINISHED).write_text(f"{json.dumps(settings, indent=2)}\n", encoding="utf-8")
        return
    content: Any = None
    if manifest is not None:
        with suppress(ValueError):
            content = json.loads(manifest.read_text(encoding="utf-8"))
    if content == settings:
        return
    holds, not_these = "something else", ""
    if isinstance(content, dict):
        other = [name for name in settings if content.get(name) != settings[name]]
        holds = "a data set of " + ", ".join(f"{name}={content.get(name)}" for name in other)
        not_these = ", not " + ", ".join(f"{name}={settings[name]}" for name in other)
    raise UserError(
        f"out={str(out)!r}: holds {holds}{not_these}: delete the folder or give another --out"
    )


def _require(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UserError(f"{name}={value}: give a number from {least} to {most}")


MAX_IMAGES_PER_CLASS = 100_000  # five digits of file name


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
    no links. What is missing of a folder of the same settings is completed. Raises `UserError` if a
    class has fewer images, and if `out` lies inside `source` or holds something else.
    """
    root, target = user_path(source).resolve(), user_path(out)
    images = images_by_class(root)
    _require("images_per_class", images_per_class, 1, min(map(len, images.values())))
    if target.resolve().is_relative_to(root):
        raise UserError(f"out={str(out)!r}: lies inside the source: give a folder outside {root}")
    settings = {
        "made_by": "mlproject dataset subset",
        "source": str(root),
        "images_per_class": images_per_class,
        "seed": seed,
        "copy": copy,
    }
    with _claimed(target, settings):
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


#: Raised whenever the pictures of a seed change, so that old and new are never mixed.
GENERATOR_VERSION = 3
#: Most of ImageNet is 500 pixels on the longer side; a quarter of the pictures stand upright.
_LONG_PIXELS, _SHORT_PIXELS, _PORTRAIT_SHARE = 500, 375, 0.25
#: Power falls with frequency to about the -2.4: van der Schaaf and van Hateren, Vision Research 36,
#: 1996, found -2 and a little more.
_AMPLITUDE_EXPONENT = -1.3
#: These make files of 105 KB, 4.5 bits per pixel, as cameras do.
_CONTRASTS = (15.0, 55.0)  # SD of a picture, of 255
_COLOUR_SHARE, _GRAIN = 0.25, 2.0
_QUALITY, _CHROMA_420 = 95, 2  # Pillow's number for 4:2:0


def _draw_photo(seed: list[int]) -> bytes:
    """One picture: baseline JPEG, 4:2:0."""
    import numpy as np  # a check of a folder does without

    rng = np.random.default_rng(seed)
    width, height = _LONG_PIXELS, _SHORT_PIXELS
    if rng.random() < _PORTRAIT_SHARE:
        width, height = height, width
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    white = rng.standard_normal((3, height, width), dtype=np.float32)
    falling = np.fft.rfft2(white) * (frequency + 1 / _LONG_PIXELS) ** _AMPLITUDE_EXPONENT
    grey, red, blue = np.fft.irfft2(falling, (height, width))
    planes = np.stack([grey + _COLOUR_SHARE * red, grey, grey + _COLOUR_SHARE * blue], axis=2)
    grain = _GRAIN * rng.standard_normal((height, width, 1), dtype=np.float32)
    scene = 128 + rng.uniform(*_CONTRASTS) / grey.std() * planes + grain
    file = io.BytesIO()
    picture = Image.fromarray(scene.clip(0, 255).astype(np.uint8))
    picture.save(file, "JPEG", quality=_QUALITY, subsampling=_CHROMA_420)
    return file.getvalue()


def generate_image_folder(
    out: str | Path,
    *,
    classes: int,
    images_per_class: int,
    seed: int = 0,
    on_image: Callable[[], None] = lambda: None,
) -> int:
    """Make `classes` x `images_per_class` JPEGs under `out`, one sub-folder per class.

    A whole folder of the same settings is left alone, and an interrupted one is completed. The
    pictures of one seed are equal for equal versions of numpy and Pillow on like processors.
    `on_image` is called after every picture. Returns the number of pictures made now. Raises
    `UserError` for a bad number, for a folder that holds something else, and when the disk is full
    or may not be written.
    """
    _require("classes", classes, 1, 1000)  # those of ImageNet's models
    _require("images_per_class", images_per_class, 1, MAX_IMAGES_PER_CLASS)
    _require("seed", seed, 0, 2**32 - 1)
    root, made = user_path(out), 0
    settings = {
        "made_by": "mlproject dataset generate",
        "version": GENERATOR_VERSION,
        "classes": classes,
        "images_per_class": images_per_class,
        "seed": seed,
    }
    with _claimed(root, settings), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        try:
            for number in range(classes):
                folder = root / f"class_{number:03d}"
                folder.mkdir(exist_ok=True)
                files = {image: folder / f"{image:05d}.jpg" for image in range(images_per_class)}
                missing = {image: file for image, file in files.items() if not file.exists()}
                seeds = ([seed, number, image] for image in missing)
                for _ in threads.map(_write_photo, missing.values(), seeds):
                    made += 1
                    on_image()
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
    return made


def _write_photo(file: Path, seed: list[int]) -> None:
    # a name of its own: what a kill leaves is written over the next time
    unfinished = file.with_name(f"{file.name}.part")
    unfinished.write_bytes(_draw_photo(seed))
    unfinished.replace(file)
