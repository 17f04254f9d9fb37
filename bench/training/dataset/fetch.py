"""Fetches and unpacks Imagenette, ten easy classes of ImageNet, from its publisher or a mirror."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import urlsplit

from bench.errors import UserError
from bench.training.dataset.download import OnBytes, download
from bench.training.dataset.folder import disk_errors_named

Size = Literal["160", "320", "full"]
#: Address and MD5 by the images' shorter side in pixels: `torchvision.datasets.Imagenette`.
PUBLISHED: dict[Size, tuple[str, str]] = {
    "160": (
        "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-160.tgz",
        "e793b78cc4c9e9a4ccc0c1155377a412",
    ),
    "320": (
        "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-320.tgz",
        "3df6f0d01a2c9592104656642f5e78a3",
    ),
    "full": (
        "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2.tgz",
        "fe2fc210e6bb7c5664d602c3cd71e612",
    ),
}
#: Checksums by their length in hexadecimal digits.
_ALGORITHMS = {32: "md5", 64: "sha256"}


def fetch_imagenette(
    out: str | Path,
    *,
    size: Size = "320",
    url: str | None = None,
    checksum: str | None = None,
    on_bytes: OnBytes | None = None,
) -> Path:
    """Download, verify and unpack Imagenette under `out`; return its folder of train and val.

    `url` and `checksum` (MD5 or SHA-256) stand in for the published ones of `size`. A folder that
    is there already is left alone, and a download that broke off goes on where it stopped. Raises
    `UserError` without network, for a wrong checksum, a damaged archive, and a full disk.
    """
    published_url, published_checksum = PUBLISHED[size]
    url, checksum = url or published_url, checksum or published_checksum
    name = PurePosixPath(urlsplit(url).path).name
    stem = re.sub(r"\.(tgz|tar\.gz|tar)$", "", name)
    if not re.fullmatch(r"[\w-][\w.-]*", stem):
        raise UserError(f"url={url!r}: names no archive: give an address that ends like {name!r}")
    _algorithm_of(checksum)
    root = Path(out).expanduser()
    with disk_errors_named(root):
        root.mkdir(parents=True, exist_ok=True)
        if (root / stem).is_dir():
            return root / stem
        archive, part = root / name, root / f"{name}.part"
        if not archive.exists():
            download(url, part, on_bytes)
            part.rename(archive)
        if not _matches(archive, checksum):
            archive.unlink()
            raise UserError(
                f"url={url!r}: the file does not have the checksum {checksum} and was deleted: "
                "fetch again, or give the --checksum of this --url"
            )
        try:
            _unpack(archive, root / stem)
        except UserError:
            archive.unlink()
            raise
        archive.unlink()
    return root / stem


def _algorithm_of(checksum: str) -> str:
    """Name the algorithm of a hexadecimal `checksum`; raises `UserError` if it is none."""
    algorithm = _ALGORITHMS.get(len(checksum))
    if algorithm is None or set(checksum.lower()) - set("0123456789abcdef"):
        raise UserError(
            f"checksum={checksum!r}: give an MD5 (32) or SHA-256 (64 hexadecimal digits)"
        )
    return algorithm


def _matches(file: Path, checksum: str) -> bool:
    """Whether `file` has this MD5 or SHA-256 `checksum`."""
    digest = hashlib.new(_algorithm_of(checksum), usedforsecurity=False)
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest() == checksum.lower()


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive so that its one top folder becomes `folder`, which must not exist.

    `folder` appears when it is whole. Raises `UserError` if the archive is damaged, or holds a
    link, a device, or a path that leads out of it.
    """
    unfinished = folder.with_name(f".{folder.name}.unpacking")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir(parents=True)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                _unpack_member(tar, member, unfinished)
        tops = list(unfinished.iterdir())
        (tops[0] if len(tops) == 1 and tops[0].is_dir() else unfinished).rename(folder)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{str(archive)!r}: not a whole tar archive ({reason}): get it from another --url"
        ) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    # Our own test, because tarfile's data filter is missing from early Pythons 3.10 and 3.11.
    target = (root / member.name).resolve()
    if not target.is_relative_to(root.resolve()) or not (member.isfile() or member.isdir()):
        raise UserError(
            f"{tar.name!r}: refused, its member {member.name!r} is a link or a device or leads "
            "out of the archive: get it from another --url"
        )
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None  # noqa: S101 - a regular file always has content
    with content, target.open("wb") as stream:
        shutil.copyfileobj(content, stream, 1 << 20)
