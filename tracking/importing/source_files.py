"""The files behind a path: itself, those of a folder, or those of a zip, read where they are."""

from __future__ import annotations

import hashlib
import lzma
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.errors import printable
from tracking.importing.table import OtherFileError, Problem

#: A ledger of ten thousand runs is 2 MB; a longer file is no result.
_MOST_BYTES = 64 * 2**20
_ZIP = b"PK\x03\x04"
#: What `zipfile` raises for an archive that is damaged, encrypted or packed in an unknown way.
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError),
    *(OSError, OverflowError, RuntimeError, ValueError),
)


def _on_disk(parts: tuple[str, ...]) -> bytes | None:
    path = Path(*parts)
    return _bytes_of(path) if path.is_file() else None


@dataclass(frozen=True)
class SourceFile:
    """A file's bytes, where it lies, and a way to the files around it.

    `parts` are its folders, the outermost first, and its name. `content_of` returns the bytes of a
    file by its parts, None where there is none. `alone`: the user named the file, not a folder.
    """

    shown: Path
    parts: tuple[str, ...]
    content: bytes
    content_of: Callable[[tuple[str, ...]], bytes | None] = _on_disk
    alone: bool = False

    @property
    def name(self) -> str:
        """Its name without folders, on one line."""
        return printable(self.parts[-1])

    @property
    def stem(self) -> str:
        """Its name without folders and ending."""
        return Path(self.name).stem

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders it lies in, the innermost first."""
        return self.parts[-2::-1]

    @property
    def sha256(self) -> str:
        """The hash of its bytes."""
        return hashlib.sha256(self.content).hexdigest()

    def text(self) -> str:
        """Return its text, of UTF-8 or marked UTF-16. Raises `OtherFileError` where it has none."""
        return _text_of(self.content)

    def near(self, *steps: str) -> str | None:
        """Return the text of a file by its way from this file's folder; None where none is there.

        A step `..` is the folder above. Raises `ValueError` for a file that holds no text.
        """
        parts = list(self.parts[:-1])
        for step in steps:
            if step != "..":
                parts.append(step)
            elif parts:
                parts.pop()
        content = self.content_of(tuple(parts))
        try:
            return None if content is None else _text_of(content)
        except OtherFileError as error:
            raise ValueError(f"{steps[-1]}: {error}") from None


def source_files(path: Path) -> Iterator[SourceFile | Problem]:
    """Yield the file, or those of a folder or a zip, by name; what cannot be read as a problem.

    Hidden files and folders are left out, links to folders not followed.
    """
    if not path.is_dir():
        yield from _of_file(path, alone=True)
        return
    for folder, below, names in os.walk(path):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder, name)
            if not name.startswith(".") and file.is_file():
                yield from _of_file(file, alone=False)


def _of_file(path: Path, *, alone: bool) -> Iterator[SourceFile | Problem]:
    try:
        content = _bytes_of(path)
    except ValueError as error:
        yield Problem(str(error), path=path)
        return
    if path.suffix.lower() == ".zip" or (alone and content.startswith(_ZIP)):
        yield from _of_zip(path)
    else:
        yield SourceFile(path, path.resolve().parts, content, alone=alone)


def _of_zip(path: Path) -> Iterator[SourceFile | Problem]:
    try:
        with zipfile.ZipFile(path) as archive:
            inside = {
                tuple(part for part in one.filename.split("/") if part): one
                for one in archive.infolist()
                if not one.filename.endswith("/")
            }

            def read(parts: tuple[str, ...]) -> bytes | None:
                if parts not in inside:
                    return None
                _check_size(inside[parts].file_size)
                try:
                    return archive.read(inside[parts])
                except _DAMAGED as error:
                    raise ValueError(f"damaged or encrypted ({error})") from None

            for parts in sorted(inside):
                if not parts or any(part.startswith(".") for part in parts):
                    continue
                shown = path.joinpath(*parts)
                try:
                    yield SourceFile(shown, parts, read(parts) or b"", read)
                except ValueError as error:
                    yield Problem(str(error), path=shown)
    except _DAMAGED as error:
        yield Problem(f"a damaged zip ({error})", path=path)


def _bytes_of(path: Path) -> bytes:
    """Return a file's bytes. Raises `ValueError` for what is no file, too large or unreadable."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("not a file")
        _check_size(about.st_size)
        return path.read_bytes()
    except OSError as error:
        raise ValueError(error.strerror) from None


def _check_size(size: int) -> None:
    if size > _MOST_BYTES:
        raise ValueError(f"{size >> 20} MiB; results are below 64 MiB")


def _text_of(content: bytes) -> str:
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        raise OtherFileError("not UTF-8 text: save it as CSV UTF-8") from None
    if "\0" in text:
        raise OtherFileError("not text")
    return text
