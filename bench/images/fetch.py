"""Fetches and unpacks Imagenette, ten easy classes of ImageNet, from its publisher or a mirror.

A download continues where an earlier attempt stopped.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import tarfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import urlsplit

import requests

from bench.config import user_path
from bench.errors import UserError, one_line
from bench.images import disk_errors_named

Size = Literal["160", "320", "full"]
_PUBLISHER = "https://s3.amazonaws.com/fast-ai-imageclas"
#: Address and MD5 by the images' shorter side in pixels: `torchvision.datasets.Imagenette`.
PUBLISHED: dict[Size, tuple[str, str]] = {
    "160": (f"{_PUBLISHER}/imagenette2-160.tgz", "e793b78cc4c9e9a4ccc0c1155377a412"),
    "320": (f"{_PUBLISHER}/imagenette2-320.tgz", "3df6f0d01a2c9592104656642f5e78a3"),
    "full": (f"{_PUBLISHER}/imagenette2.tgz", "fe2fc210e6bb7c5664d602c3cd71e612"),
}

#: Called with the bytes on disk and the bytes in all, where the server says so.
OnBytes = Callable[[int, "int | None"], None]

CONNECT_TIMEOUT_S, SILENCE_TIMEOUT_S = 10, 60
ATTEMPTS = 5  # in a row, of which at most the first brought something
CHUNK_BYTES = 1 << 16
_OTHER = "or make images without a network: mlproject dataset generate"


class _BrokenOffError(Exception):
    """The transfer failed in a way that may pass."""


def fetch_imagenette(
    out: str | Path,
    *,
    size: Size = "320",
    url: str | None = None,
    checksum: str | None = None,
    on_bytes: OnBytes = lambda have, total: None,
) -> Path:
    """Download, verify and unpack Imagenette under `out`; return its folder of train and val.

    `url` and `checksum` (MD5) stand in for the published ones of `size`. A folder that
    is there already is left alone. Raises `UserError` without network, for a wrong checksum, a
    damaged archive, and a full disk.
    """
    published_url, published_checksum = PUBLISHED[size]
    url, checksum = url or published_url, (checksum or published_checksum).lower()
    name = PurePosixPath(urlsplit(url).path).name
    stem = re.sub(r"\.(tgz|tar\.gz|tar)$", "", name)
    if not re.fullmatch(r"[\w-][\w.-]*", stem):
        example = PurePosixPath(published_url).name
        raise UserError(f"url={url!r}: names no archive: give an address that ends like {example}")
    if not re.fullmatch("[0-9a-f]{32}", checksum):
        raise UserError(f"checksum={checksum!r}: give an MD5, 32 hexadecimal digits")
    root = user_path(out)
    with disk_errors_named(root):
        root.mkdir(parents=True, exist_ok=True)
        if (root / stem).is_dir():
            return root / stem
        archive, part = root / name, root / f"{name}.part"
        if not archive.exists():
            _download(url, part, on_bytes)
            part.rename(archive)
        if _md5(archive) != checksum:
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


def _md5(file: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive so that its one top folder becomes `folder`, which appears when whole.

    Raises `UserError` if the archive is damaged, or holds a link, a device, or a path that leads
    out of it.
    """
    unfinished = folder.with_name(f".{folder.name}.unpacking")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                # Our own test: early Pythons 3.10 and 3.11 lack tarfile's data filter.
                target = (unfinished / member.name).resolve()
                inside = target.is_relative_to(unfinished.resolve())
                if not inside or not (member.isfile() or member.isdir()):
                    raise UserError(
                        f"{tar.name!r}: refused, its member {member.name!r} is a link or a device "
                        "or leads out of the archive: get it from another --url"
                    )
                tar.extract(member, unfinished, set_attrs=False)
        tops = list(unfinished.iterdir())
        (tops[0] if len(tops) == 1 and tops[0].is_dir() else unfinished).rename(folder)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            f"{str(archive)!r}: not a whole tar archive ({one_line(error)}): "
            "get it from another --url"
        ) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _download(url: str, part: Path, on_bytes: OnBytes) -> None:
    """Download `url` into `part`, keeping what `part` already holds.

    A transfer that breaks off is resumed after a second, then after twice as long, and so on.
    Raises `UserError` without network, for an HTTP error, and when attempts bring nothing more;
    `part` stays for the next call. Raises `OSError` if `part` cannot be written.
    """
    failures = 0
    while True:
        before = _size(part)
        try:
            _transfer(url, part, on_bytes)
            return
        except (requests.ConnectionError, requests.Timeout, _BrokenOffError) as error:
            problem = one_line(error)[:200]
            unreached = isinstance(error, requests.ConnectionError) and _size(part) == before
            if unreached and not failures and not isinstance(error, requests.Timeout):
                cause = getattr(error.args[0], "reason", error) if error.args else error
                why = one_line(cause)[:200].split(": ", 1)[-1]  # without urllib3's layers
                raise UserError(f"url={url!r}: {why}: check the network, {_OTHER}") from None
        except requests.RequestException as error:
            raise UserError(f"url={url!r}: {one_line(error)[:200]}: give another --url") from None
        failures = 1 if _size(part) > before else failures + 1
        if failures >= ATTEMPTS:
            raise UserError(
                f"url={url!r}: broken off at {_size(part)} bytes, {failures} times "
                f"({problem}): run the same command again to continue from there"
            )
        time.sleep(2.0 ** (failures - 1))


def _transfer(url: str, part: Path, on_bytes: OnBytes) -> None:
    have = _size(part)
    headers = {"Accept-Encoding": "identity"}  # bytes as stored, so that ranges count alike
    if have:
        headers["Range"] = f"bytes={have}-"
    with requests.get(
        url, headers=headers, stream=True, timeout=(CONNECT_TIMEOUT_S, SILENCE_TIMEOUT_S)
    ) as response:
        status, codes = response.status_code, requests.codes
        # start, end and total of `bytes 5-9/10`; total alone of `bytes */10`
        numbers = re.findall(r"\d+", response.headers.get("Content-Range", ""))
        if status == codes.requested_range_not_satisfiable and numbers[-1:] == [str(have)]:
            return  # the whole file is here already
        is_part = status == codes.partial_content
        if status == codes.requested_range_not_satisfiable or (
            is_part and numbers[:1] != [str(have)]
        ):
            part.unlink()
            raise _BrokenOffError("what was downloaded before does not belong to this file")
        if status >= 500:
            raise _BrokenOffError(f"the server answered {status}")
        if status >= 400:
            raise UserError(
                f"url={url!r}: the server answered {status} {response.reason}: "
                f"give another --url, {_OTHER}"
            )
        have = have if is_part else 0
        length = response.headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() else None
        with part.open("ab" if have else "wb") as stream:
            try:
                for chunk in response.iter_content(CHUNK_BYTES):
                    stream.write(chunk)
                    have += len(chunk)
                    on_bytes(have, total)
            except requests.RequestException as error:
                raise _BrokenOffError(one_line(error)) from None
        if total is not None and have < total:
            raise _BrokenOffError(f"{total - have} bytes are missing")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
