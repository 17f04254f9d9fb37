"""The text of a trace's file: unpacked, in UTF-8, and never more than fits into memory."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator
from io import BufferedReader
from typing import IO

import msgspec

#: Unpacked; a file that unpacks to more is not read, whatever its own size.
MOST_BYTES = 2_000_000_000
#: Objects in a file, counted by their opening braces. A real trace has one in 100 to 260 bytes.
MOST_OBJECTS = 20_000_000
_CHUNK_BYTES = 1 << 24
_GZIP = b"\x1f\x8b"
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def unpacked(file: BufferedReader) -> bytearray:
    """Return what `file` holds, unpacked if it is gzip's, in UTF-8 without a mark in front.

    Raises `ValueError` with a reason for one that is empty, begins as no JSON does, holds over
    `MOST_BYTES` or `MOST_OBJECTS`, or is cut or damaged as gzip sees it.
    """
    contents = bytearray()
    try:
        with _stream(file) as stream:
            for chunk in _utf8_chunks(stream):
                if not contents and chunk.lstrip()[:1] not in (b"{", b"[", b""):
                    raise ValueError("it begins as no JSON does")
                contents += chunk
                if len(contents) > MOST_BYTES:
                    raise ValueError(f"over {MOST_BYTES / 1e9:g} GB unpacked: record fewer steps")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"gzip: {error}") from None
    if not contents.strip():
        raise ValueError("it is empty")
    if contents.count(b"{") > MOST_OBJECTS:
        raise ValueError(f"over {MOST_OBJECTS / 1e6:g} million objects: record fewer steps")
    return contents


def _stream(file: BufferedReader) -> IO[bytes]:
    return gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == _GZIP else file  # type: ignore[return-value]


def _utf8_chunks(stream: IO[bytes]) -> Iterator[bytes]:
    first = stream.read(_CHUNK_BYTES)
    encoding = _UTF16.get(first[:2])
    if encoding is None:
        yield first.removeprefix(codecs.BOM_UTF8)
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    chunk = first[2:]
    while chunk:
        yield decoder.decode(chunk).encode("utf-8", "replace")
        chunk = stream.read(_CHUNK_BYTES)


#: Every control character becomes a space, which JSON allows between its tokens too.
_CONTROL = bytes(0x20 if byte < 0x20 else byte for byte in range(256))
_NO_NUMBER = re.compile(rb"(?<=[:,\[\s])[-+]?(?:NaN|nan|Infinity|inf)(?=\s*(?:[,}\]]|\Z))")


def cleaned(contents: bytes | bytearray) -> bytearray:
    """Return `contents` as JSON allows it: no control characters, NaN as null, valid UTF-8."""
    clean = bytearray()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    begin = 0
    while begin < len(contents):
        end = begin + _CHUNK_BYTES
        if end < len(contents):  # before a comma, so that no NaN is cut in two
            comma = contents.rfind(b",", begin + 1, end)
            end = comma if comma > begin else end
        chunk = _NO_NUMBER.sub(b"null", contents[begin:end].translate(_CONTROL))
        clean += decoder.decode(chunk, final=end >= len(contents)).encode()
        begin = end
    return clean


def closed(contents: bytes | bytearray) -> bytes | bytearray:
    """Return a list of events with its bracket: Chrome's format lets a writer leave it out."""
    text = contents.rstrip()
    return text if text.endswith(b"]") else text.removesuffix(b",") + b"]"


#: What ids and times are, or it is no event.
Scalar = int | float | str | None
NOTHING = msgspec.Raw()


class Event(msgspec.Struct, gc=False):
    """One event of any kind; `args` are parsed when it is of use."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Scalar = None
    tid: Scalar = None
    ts: Scalar = None
    dur: Scalar = None
    args: msgspec.Raw = msgspec.Raw(b"null")


class HostArgs(msgspec.Struct, gc=False):
    """Arguments of an op, a mark or a call; lists stay text until they are asked for."""

    external: Scalar = msgspec.field(default=None, name="External id")
    old_external: Scalar = msgspec.field(default=None, name="external id")
    correlation: Scalar = None
    sequence: Scalar = msgspec.field(default=None, name="Sequence number")
    forward_thread: Scalar = msgspec.field(default=None, name="Fwd thread id")
    dims: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")
    old_dims: msgspec.Raw = msgspec.field(default=NOTHING, name="Input dims")
    types: msgspec.Raw = msgspec.field(default=NOTHING, name="Input type")
    concrete: msgspec.Raw = msgspec.field(default=NOTHING, name="Concrete Inputs")
    strides: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Strides")


class DeviceArgs(msgspec.Struct, gc=False):
    """Arguments of a kernel, a copy or a fill."""

    external: Scalar = msgspec.field(default=None, name="External id")
    old_external: Scalar = msgspec.field(default=None, name="external id")
    correlation: Scalar = None
    device: Scalar = None
    stream: Scalar = None
    size_bytes: Scalar = msgspec.field(default=None, name="bytes")


class File(msgspec.Struct):
    """A whole file."""

    events: list[Event] = msgspec.field(name="traceEvents")
    devices: msgspec.Raw = msgspec.field(default=NOTHING, name="deviceProperties")
    distributed: msgspec.Raw = msgspec.field(default=NOTHING, name="distributedInfo")
    with_shapes: Scalar = msgspec.field(default=None, name="record_shapes")
    schema: Scalar = msgspec.field(default=None, name="schemaVersion")
    cuda: Scalar = msgspec.field(default=None, name="cuda_runtime_version")
    hip: Scalar = msgspec.field(default=None, name="hip_runtime_version")


_FILE = msgspec.json.Decoder(File)
_EVENTS = msgspec.json.Decoder(list[Event])
HOST_ARGS = msgspec.json.Decoder(HostArgs | None)
DEVICE_ARGS = msgspec.json.Decoder(DeviceArgs | None)


def parsed(contents: bytearray) -> File:
    """Return the events; those that JSON forbids in small ways are read too."""
    try:
        return _decoded(contents)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decoded(cleaned(contents))


def _decoded(contents: bytearray) -> File:
    if contents[:4096].lstrip()[:1] == b"[":
        return File(_EVENTS.decode(closed(contents)))
    return _FILE.decode(contents)
