"""How a record travels from the node that measured it to the driver's disk."""

from __future__ import annotations

import io
import os
import re
import shutil
import zipfile
from pathlib import Path

from bench.errors import UserError
from bench.records import RunRecord
from bench.records.folders import RecordFolder

_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\.[a-z]+")
_RECORD_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}")
#: Facts of one machine: which processes work on the folder, and the run made for it there.
_KEPT_HERE = frozenset({"owners.json", "mlflow_run"})
#: A record with its exports is below 1 MB; more than this is no record.
_MAX_BYTES = 256 * 2**20
#: A whole folder is moved from here to its place, so that no reader finds half of one.
_ARRIVING = ".arriving"


class ArchiveError(Exception):
    """What a node sent is not one whole record; one line."""


def pack(folder: RecordFolder) -> bytes:
    """Return the files of `folder` as the bytes of a zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.path.iterdir()):
            if path.is_file() and _FILE.fullmatch(path.name) and path.name not in _KEPT_HERE:
                archive.write(path, f"{folder.record_id}/{path.name}")
    return buffer.getvalue()


def unpack(archive: bytes, records: Path) -> tuple[RecordFolder, RunRecord]:
    """Write the folder in `archive` below `records`, whole or not at all, and return its record.

    A folder that is there already stays as it is. Raises `ArchiveError` for anything but a whole
    measurement, and `UserError` where `records` cannot be written.
    """
    record_id, files = _files(archive)
    arriving = RecordFolder(records / _ARRIVING / record_id)
    try:
        shutil.rmtree(arriving.path, ignore_errors=True)  # of a driver that was killed
        arriving.path.mkdir(parents=True)
        for name, content in files.items():
            with (arriving.path / name).open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        record = _whole(arriving)
        folder = RecordFolder(records / record_id)
        if not folder.record.is_file():
            arriving.path.rename(folder.path)
    except OSError as error:
        raise UserError(
            f"records={str(records)!r}: cannot write there ({error.strerror}); "
            "mend that and give the same command again: the node keeps what it measured"
        ) from None
    finally:
        shutil.rmtree(arriving.path.parent, ignore_errors=True)
    return folder, record


def _files(archive: bytes) -> tuple[str, dict[str, bytes]]:
    """The record's identifier and its files; nothing that could lie outside its folder."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as folder:
            if sum(entry.file_size for entry in folder.infolist()) > _MAX_BYTES:
                raise ArchiveError("the archive is too large for a record")
            contents = {entry.filename: folder.read(entry) for entry in folder.infolist()}
    except zipfile.BadZipFile as error:
        raise ArchiveError(f"the archive is damaged ({error})") from None
    split = [name.partition("/")[::2] for name in contents]
    folders = {folder for folder, _ in split}
    if len(folders) != 1 or not _RECORD_ID.fullmatch(record_id := folders.pop()):
        raise ArchiveError("the archive is not one record's folder")
    for _, name in split:
        if not _FILE.fullmatch(name) or name in _KEPT_HERE:
            raise ArchiveError(f"{name!r} is no file of a record")
    return record_id, {name.partition("/")[2]: content for name, content in contents.items()}


def _whole(folder: RecordFolder) -> RunRecord:
    try:
        record = folder.read_record()
    except UserError as error:
        raise ArchiveError(str(error)) from None
    if not isinstance(record, RunRecord) or record.record_id != folder.record_id:
        raise ArchiveError(f"{folder.record_id} holds no measurement of that name")
    return record
