"""Chrome's trace events as Kineto writes them, parsed into structs with what is used of them."""

from __future__ import annotations

import msgspec

from bench.profilers.traces.contents import cleaned, closed

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
