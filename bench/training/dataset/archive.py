"""Unpacks a downloaded archive: checked first, kept inside its folder, whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import tarfile
import zlib
from pathlib import Path

from bench.errors import UserError

#: Checksums by their length in hexadecimal digits.
ALGORITHMS = {32: "md5", 64: "sha256"}


def algorithm_of(checksum: str) -> str:
    """Name the algorithm of a hexadecimal `checksum`; raises `UserError` if it is none."""
    algorithm = ALGORITHMS.get(len(checksum))
    if algorithm is None or set(checksum.lower()) - set("0123456789abcdef"):
        raise UserError(
            f"checksum={checksum!r}: give an MD5 (32) or SHA-256 (64 hexadecimal digits)"
        )
    return algorithm


def matches(file: Path, checksum: str) -> bool:
    """Whether `file` has this MD5 or SHA-256 `checksum`."""
    digest = hashlib.new(algorithm_of(checksum), usedforsecurity=False)
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest() == checksum.lower()


def unpack(archive: Path, folder: Path) -> None:
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
