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

from bench.errors import UserError, printable

#: A ledger of ten thousand runs is 2 MB; a longer file is no result.
_MOST_BYTES = 64 * 2**20

#: What `zipfile` raises for an archive that is damaged, encrypted or packed in an unknown way.
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError),
    *(OSError, OverflowError, RuntimeError, ValueError),
)

#: Returns the bytes of the file whose folders and name are given; None where there is none.
_Reading = Callable[[tuple[str, ...]], "bytes | None"]


@dataclass(frozen=True)
class SourceFile:
    """A file's bytes, where it lies, and a way to the files around it.

    `parts` are its folders, the outermost first, and its name.
    """

    shown: Path
    parts: tuple[str, ...]
    content: bytes
    reading: _Reading

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
        """Return its text. Raises `UserError` where it holds none."""
        return decoded(self.content, self.shown)

    def near(self, *steps: str) -> str | None:
        """Return the text of a file by its way from this file's folder; None where none is there.

        A step `..` is the folder above. Raises `UserError` for a file that holds no text.
        """
        parts = list(self.parts[:-1])
        for step in steps:
            if step != "..":
                parts.append(step)
            elif parts:
                parts.pop()
        content = self.reading(tuple(parts))
        return None if content is None else decoded(content, self.shown.with_name(steps[-1]))


@dataclass(frozen=True)
class Unreadable:
    """A file of a folder or a zip that cannot be read, and why."""

    shown: Path
    error: UserError


def source_files(path: Path) -> Iterator[SourceFile | Unreadable]:
    """Yield the file, or those of a folder or a zip, by name.

    Hidden files and folders are left out, links to folders not followed. Raises `UserError` where
    `path` itself cannot be read.
    """
    if path.is_dir():
        yield from _of_folder(path)
        return
    content = read_bytes(path)
    if content.startswith(b"PK\x03\x04"):
        yield from _of_zip(path)
    else:
        yield SourceFile(path, path.resolve().parts, content, _on_disk)


def holds_many(path: Path) -> bool:
    """Whether the path is a folder or a zip, in which most files may be something else."""
    if path.is_dir():
        return True
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes. Raises `UserError` for what is no file, too large or unreadable."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise UserError(f"{path}: not a file")
        _check_size(path, about.st_size)
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


def decoded(content: bytes, path: Path) -> str:
    """Return the text of a file in UTF-8, or in UTF-16 with its mark. Raises `UserError`."""
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text: save it as CSV UTF-8") from None
    if "\0" in text:
        raise UserError(f"{path}: not text")
    return text


def _check_size(path: Path, size: int) -> None:
    if size > _MOST_BYTES:
        raise UserError(f"{path}: {size >> 20} MiB; results are below 64 MiB")


def _of_folder(path: Path) -> Iterator[SourceFile | Unreadable]:
    for folder, below, names in os.walk(path):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder, name)
            if name.startswith(".") or not file.is_file():
                continue
            try:
                content = read_bytes(file)
            except UserError as error:
                yield Unreadable(file, error)
                continue
            if file.suffix.lower() != ".zip":
                yield SourceFile(file, file.resolve().parts, content, _on_disk)
                continue
            try:
                yield from _of_zip(file)
            except UserError as error:
                yield Unreadable(file, error)


def _of_zip(path: Path) -> Iterator[SourceFile | Unreadable]:
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
                shown = path.joinpath(*parts)
                _check_size(shown, inside[parts].file_size)
                try:
                    return archive.read(inside[parts])
                except _DAMAGED as error:
                    raise UserError(f"{shown}: damaged or encrypted ({error})") from None

            for parts in sorted(inside):
                if not parts or any(part.startswith(".") for part in parts):
                    continue
                shown = path.joinpath(*parts)
                try:
                    content = read(parts) or b""
                except UserError as error:
                    yield Unreadable(shown, error)
                else:
                    yield SourceFile(shown, parts, content, read)
    except _DAMAGED as error:
        raise UserError(f"{path}: a damaged zip ({error})") from None


def _on_disk(parts: tuple[str, ...]) -> bytes | None:
    path = Path(*parts)
    return read_bytes(path) if path.is_file() else None
