"""Fetches and unpacks Imagenette, ten easy classes of ImageNet, from its publisher or a mirror."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import tarfile
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

_CONNECT_TIMEOUT_S, _SILENCE_TIMEOUT_S = 10, 60
CHUNK_BYTES = 1 << 16


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
        _unpack(archive, root / stem)
        archive.unlink()
    return root / stem


def _download(url: str, part: Path, on_bytes: OnBytes) -> None:
    """Download `url` into `part`, after what it holds; the checksum will tell whether that fits."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}  # bytes as stored, so that ranges count alike
    if have:
        headers["Range"] = f"bytes={have}-"
    timeouts_s = (_CONNECT_TIMEOUT_S, _SILENCE_TIMEOUT_S)
    try:
        with requests.get(url, headers=headers, stream=True, timeout=timeouts_s) as response:
            if have and response.status_code == requests.codes.requested_range_not_satisfiable:
                return  # the whole file is here already
            response.raise_for_status()
            if response.status_code != requests.codes.partial_content:
                have = 0
            length = response.headers.get("Content-Length", "")
            total = have + int(length) if length.isdecimal() else None
            with part.open("ab" if have else "wb") as stream:
                for chunk in response.iter_content(CHUNK_BYTES):
                    stream.write(chunk)
                    have += len(chunk)
                    on_bytes(have, total)
    except requests.RequestException as error:
        raise UserError(
            f"url={url!r}: {one_line(error)}: run the same command again, which continues, give "
            "another --url, or make images without a network: mlproject dataset generate"
        ) from None


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
