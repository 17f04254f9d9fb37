"""A file that is no trace ends in one line with its path and what is wanted, within memory."""

import gzip
import json
import math
import tempfile
from functools import cache
from pathlib import Path

import pytest
from damage import CHANGES, damaged
from hypothesis import given, settings
from hypothesis import strategies as st
from nsys_files import GENERAL, database, step
from trace_files import ALEXNET, MI300X, V100, cut, event, refusal

from bench.errors import UserError
from bench.profilers.traces import kineto, read_trace


def refusal_of(folder, text):
    """The one line that refuses a file of this text."""
    path = folder / "trace.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return refusal(path)


WHOLE = json.dumps({"traceEvents": [event()]})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        (" \n\t", "it is empty"),
        (gzip.compress(b"", mtime=0), "it is empty"),
        ("time,name\n1,2\n", "begins as no JSON does"),
        (WHOLE.encode("utf-16"), "begins as no JSON does"),
        (gzip.compress(b"\x00" * 10**6, mtime=0), "begins as no JSON does"),
        ("{", "truncated"),
        (WHOLE[:-1], "truncated"),
        (json.dumps([event()])[:-4], "malformed"),
        (WHOLE + "x", "trailing"),
        (gzip.compress(WHOLE.encode(), mtime=0)[:-9], "gzip"),
        (gzip.compress(WHOLE.encode(), mtime=0)[:20] + b"\x00" * 30, "gzip"),
        (b"\x1f\x8b", "gzip"),
        ("{}", "traceEvents"),
        ('{"traceEvents": {}}', "Expected `array`"),
        ('{"traceEvents": [1]}', "Expected `object`"),
        ('{"deviceProperties": ' + "[" * 100_000, "recursion"),
        ('{"traceEvents": [{"args": ' + '{"a":' * 100_000, "recursion"),
        ('{"traceEvents": [{"pid": []}]}', "$.traceEvents[0].pid"),
        ('{"traceEvents": [{"cat": 3}]}', "$.traceEvents[0].cat"),
    ],
)
def test_no_whole_trace(tmp_path, text, reason):
    message = refusal_of(tmp_path, text)
    assert reason in message
    assert "wanted is a whole trace" in message


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ts": "now"}, "event 1: 'k' has no usable ts"),
        ({"ts": True}, "ts"),
        ({"dur": float("nan")}, "event 1: 'k' has no usable dur"),
        ({"dur": "inf"}, "event 1: 'k' has no usable dur"),
        ({"dur": -5}, "event 1: 'k' has no usable dur: -5 us"),
        ({"cat": "cpu_op", "args": {"Input Dims": [[10**300, 3]]}}, "a tensor of shape 1000"),
        ({"cat": "cpu_op", "args": {"Input Dims": [[[2**40, 2**40]]]}}, "a tensor of shape 1099"),
        ({"cat": "cpu_op", "args": {"Input Dims": [[-1, 3]]}}, "a tensor of shape -1x3"),
        ({"ts": []}, "ts"),
        ({"args": [1]}, "event 1: Expected `object | null`"),
        ({"args": {"correlation": {}}}, "event 1: Expected"),
    ],
)
def test_an_event_without_a_usable_time_or_with_something_else_for_an_id(tmp_path, fields, reason):
    text = json.dumps({"traceEvents": [event(), event(**fields)]})
    assert reason in refusal_of(tmp_path, text)


@pytest.mark.parametrize("number", ["1e400", "-1e999", "1" + "0" * 400, "1" * 5000])
def test_a_number_beyond_all_bounds(tmp_path, number):
    text = WHOLE.replace('"ts": 10', f'"ts": {number}')
    assert "out of range" in (line := refusal_of(tmp_path, text)) or "no usable ts" in line
    text = text.replace(number, f'"{number}"')
    assert "no usable ts" in refusal_of(tmp_path, text)


@pytest.mark.parametrize("category", ["cpu_op", "kernel"])
def test_events_whose_times_torch_lost(tmp_path, category):
    timed = [event(ts=3743411230047.485), event("cpu_op", ts=3743411230050)]
    lost = [event(category, ts=0.0, dur=0.0)] * 3
    text = json.dumps({"traceEvents": [*timed, *lost]})
    assert "3 of 5 events have 0 for their times: record it again" in refusal_of(tmp_path, text)


def test_a_clock_that_begins_at_zero(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([event(ts=0, dur=0), event()]), encoding="utf-8")
    assert len(read_trace(path).device) == 2


@pytest.mark.parametrize("args", [[1], "python", 3, None])
def test_a_process_whose_name_is_none(tmp_path, args):
    named = {"ph": "M", "name": "process_name", "pid": 0, "args": args}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([named, event()]), encoding="utf-8")
    assert len(read_trace(path).device) == 1


def test_no_file_no_trace_and_nothing_in_it(tmp_path):
    assert "cannot be read" in refusal(tmp_path / "none.json")
    assert "cannot be read" in refusal(tmp_path)
    assert "nsys export --type sqlite run.nsys-rep" in refusal(tmp_path / "run.nsys-rep")
    assert "holds no op, kernel or runtime call" in refusal_of(tmp_path, '{"traceEvents": []}')


@pytest.mark.parametrize(
    ("fields", "held"),
    [
        ({"cat": "cuda", "pid": "Device 0"}, "of category cuda (1)"),
        ({"pid": "CPU functions"}, "without a category of CPU functions (1)"),
        ({"cat": "cpu_op", "ph": "B"}, "without an end (1)"),
    ],
)
def test_a_file_of_another_writer_is_refused_for_what_it_holds(tmp_path, fields, held):
    event = {"ph": "X", "name": "gemv", "ts": 1, "dur": 5, **fields}
    message = refusal_of(tmp_path, json.dumps([event]))
    assert held in message
    assert "prof.export_chrome_trace" in message


# Memory


def test_more_than_memory_has_room_for(tmp_path, monkeypatch):
    monkeypatch.setattr(kineto, "MOST_OBJECTS", 1000)
    text = '{"traceEvents": [' + ",".join(["{}"] * 1000) + "]}"
    assert "over 0.001 million objects: record fewer steps" in refusal_of(tmp_path, text)
    monkeypatch.setattr(kineto, "MOST_BYTES", 10**5)
    monkeypatch.setattr(kineto, "_CHUNK_BYTES", 10**4)
    packed = gzip.compress(b'{"traceEvents": [' + b" " * 10**7, mtime=0)
    assert len(packed) < 10**5
    assert "over 0.0001 GB unpacked: record fewer steps" in refusal_of(tmp_path, packed)

    def full(*_):
        raise MemoryError

    monkeypatch.setattr("bench.profilers.traces.kineto_trace", full)
    assert "does not fit into memory: record fewer steps" in refusal_of(tmp_path, WHOLE)


# Whatever a file holds, reading it does no harm

TOKENS = [
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\n", b"\x00", b"\x01", b" ", b"//"),
    *(b"NaN", b"-Infinity", b"null", b"true", b"-1", b"0", b"1e999", b"-0.0", b"9" * 400, b"1.5"),
    *(b'""', b'"x"', b"[]", b"{}", b"[[]]", b'"NaN"', b'"-12.5"', b"\\ud800", b"\xff", b"\xc3"),
    *(b'"ts": ', b'"dur": ', b'"cat": ', b'"args": ', b'"ph": "X", ', b'"pid": ', b'"cpu_op"'),
    *(b'"correlation": ', b'"kernel"', b'"cuda_runtime"', b'"traceEvents": [', b"\xff\xfe"),
    *(b'"Input Dims": [[2, 3]], ', b"\xef\xbb\xbf", b"\x1f\x8b", b"SQLite format 3\x00"),
    *(b"[" * 3000, b'{"a":' * 3000),
]


@cache
def bases():
    """Whole files of few events in every form, the last an export of Nsight Systems."""
    texts = [json.dumps(cut(name, 1)) for name in (V100, MI300X, ALEXNET)]
    files = [text.encode() for text in texts]
    files += [json.dumps(cut(MI300X, 1)["traceEvents"]).encode(), gzip.compress(files[0], mtime=0)]
    files += [texts[1].replace('"ts": ', '"a": NaN, "ts": ').encode()]
    with tempfile.TemporaryDirectory() as folder:
        path = database(Path(folder), GENERAL, step(), step(77, 20_000, gpu=1))
        return [*files, path.read_bytes()]


def check(content, path):
    """Refused in one line with the path, or read as spans with usable times and ids."""
    path.write_bytes(content)
    try:
        trace = read_trace(path)
    except UserError as error:
        message = str(error)
        assert str(path) in message
        assert "\n" not in message
        assert len(message) < 600
        return False
    assert trace.host or trace.device or trace.counters
    for spans in (trace.host, trace.device):
        for span in spans:
            assert -math.inf < span.begin_us <= span.end_us < math.inf
            assert isinstance(span.name, str)
            assert isinstance(span.correlation, int | None)
        begins = [span.begin_us for span in spans]
        assert begins == sorted(begins)
    for span in trace.host:
        hash((span.thread, span.dims, span.types, span.concrete, span.strides))
    for run in trace.device:
        hash((run.device, run.stream))
    for sums in trace.counters.metrics.values() if trace.counters else ():
        assert sums.total.is_finite()
    str((trace.rank, trace.of_the_device("name"), trace.launches.keys()))
    return True


@pytest.mark.slow
@settings(max_examples=400)
@given(st.integers(0, 6), CHANGES, st.booleans())
def test_a_damaged_file_does_no_harm(tmp_path, base, changes, is_packed):
    content = damaged(bases()[base], TOKENS, changes)
    check(gzip.compress(content, 1, mtime=0) if is_packed else content, tmp_path / "trace.json")


@pytest.mark.slow
def test_every_whole_file_of_the_fuzzer_is_read(tmp_path):
    assert all(check(content, tmp_path / "trace.json") for content in bases())
