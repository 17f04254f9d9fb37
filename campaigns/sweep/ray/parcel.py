"""A record folder as bytes: how a record travels from the node that measured to the driver."""

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
#: Of this very machine: who works on the folder, and what was uploaded from here.
_STAYS = frozenset({"owners.json", "uploaded.json"})
#: A record with its exports is below 1 MB; more than this is no record.
_MOST_BYTES = 256 * 2**20
#: Whole parcels are moved from here to their place, so that nobody sees half a folder.
_ARRIVING = ".arriving"


class ParcelError(Exception):
    """What arrived is not a whole record; one line."""


def pack(folder: RecordFolder) -> bytes:
    """Return the files of `folder`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as parcel:
        for path in sorted(folder.path.iterdir()):
            if path.is_file() and _FILE.fullmatch(path.name) and path.name not in _STAYS:
                parcel.write(path, f"{folder.record_id}/{path.name}")
    return buffer.getvalue()


def unpack(parcel: bytes, records: Path) -> tuple[RecordFolder, RunRecord]:
    """Write the folder of a parcel below `records`, whole or not at all, and return its record.

    A folder that is there already stays as it is. Raises `ParcelError` for anything but a whole
    measurement, and `UserError` where `records` cannot be written.
    """
    record_id, files = _files(parcel)
    arriving = RecordFolder(records / _ARRIVING / record_id)
    try:
        shutil.rmtree(arriving.path, ignore_errors=True)  # of a driver that died meanwhile
        arriving.path.mkdir(parents=True)
        for name, content in files.items():
            _write(arriving.path / name, content)
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


def _files(parcel: bytes) -> tuple[str, dict[str, bytes]]:
    """The record's identifier and its files; nothing that could lie outside its folder."""
    try:
        with zipfile.ZipFile(io.BytesIO(parcel)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES:
                raise ParcelError("the parcel is too large for a record")
            contents = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    except zipfile.BadZipFile as error:
        raise ParcelError(f"the parcel is damaged ({error})") from None
    split = [name.partition("/")[::2] for name in contents]
    folders = {folder for folder, _ in split}
    if len(folders) != 1 or not _RECORD_ID.fullmatch(record_id := folders.pop()):
        raise ParcelError("the parcel is not one record's folder")
    for _, name in split:
        if not _FILE.fullmatch(name) or name in _STAYS:
            raise ParcelError(f"{name!r} is no file of a record")
    return record_id, {name.partition("/")[2]: content for name, content in contents.items()}


def _whole(folder: RecordFolder) -> RunRecord:
    try:
        record = folder.read_record()
    except UserError as error:
        raise ParcelError(str(error)) from None
    if not isinstance(record, RunRecord) or record.record_id != folder.record_id:
        raise ParcelError(f"{folder.record_id} holds no measurement of that name")
    return record


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
