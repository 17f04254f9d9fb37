"""Fetches Imagenette, ten easy classes of ImageNet, from its publisher or a mirror."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import urlsplit

from bench.errors import UserError
from bench.training.dataset.archive import algorithm_of, matches, unpack
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
    algorithm_of(checksum)
    root = Path(out).expanduser()
    with disk_errors_named(root):
        root.mkdir(parents=True, exist_ok=True)
        if (root / stem).is_dir():
            return root / stem
        archive, part = root / name, root / f"{name}.part"
        if not archive.exists():
            download(url, part, on_bytes)
            part.rename(archive)
        if not matches(archive, checksum):
            archive.unlink()
            raise UserError(
                f"url={url!r}: the file does not have the checksum {checksum} and was deleted: "
                "fetch again, or give the --checksum of this --url"
            )
        try:
            unpack(archive, root / stem)
        except UserError:
            archive.unlink()
            raise
        archive.unlink()
    return root / stem
