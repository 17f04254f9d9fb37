"""A file that is no trace ends in one line with its path and what is wanted, within memory."""

import gzip
import json

import pytest
from trace_files import ALEXNET, cut, event

from bench.errors import UserError
from bench.profilers.traces import contents, kineto, read_trace


def refusal(path):
    """The one line that refuses `path`."""
    with pytest.raises(UserError) as raised:
        read_trace(path)
    message = str(raised.value)
    assert str(path) in message
    assert "\n" not in message
    return message


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
        (b"\xff\xfe", "it is empty"),
        ("hello", "begins as no JSON does"),
        ("time,name\n1,2\n", "begins as no JSON does"),
        (b"PK\x03\x04", "begins as no JSON does"),
        (b"\x00" * 4096, "begins as no JSON does"),
        ("{", "truncated"),
        (WHOLE[:-1], "truncated"),
        (WHOLE[:-3], "truncated"),
        (json.dumps([event()])[:-4], "malformed"),
        (WHOLE + "x", "trailing"),
        (gzip.compress(WHOLE.encode(), mtime=0)[:-9], "gzip"),
        (gzip.compress(WHOLE.encode(), mtime=0)[:20] + b"\x00" * 30, "gzip"),
        (b"\x1f\x8b", "gzip"),
        ("{}", "traceEvents"),
        ('{"traceEvents": {}}', "Expected `array`"),
        ('{"traceEvents": null}', "Expected `array`"),
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
        ({"ts": None}, "event 1: 'k' has no usable ts"),
        ({"ts": "now"}, "event 1: 'k' has no usable ts"),
        ({"ts": True}, "ts"),
        ({"dur": None}, "event 1: 'k' has no usable dur"),
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


def test_the_last_of_equal_keys_counts(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(WHOLE.replace('"ts": 10', '"ts": 99, "ts": 10'), encoding="utf-8")
    assert read_trace(path).device[0].begin_us == 10


def test_a_trace_of_nothing(tmp_path):
    assert "holds no op, kernel or runtime call" in refusal_of(tmp_path, '{"traceEvents": []}')


def test_no_file(tmp_path):
    assert "cannot be read" in refusal(tmp_path / "none.json")
    assert "cannot be read" in refusal(tmp_path)


def test_a_report_of_nsight_systems_is_exported_first(tmp_path):
    message = refusal(tmp_path / "run.nsys-rep")
    assert "nsys export --type sqlite run.nsys-rep" in message


@pytest.mark.parametrize("size", [3, 40, 200, 999, 5000])
def test_a_cut_file_is_not_half_a_trace(tmp_path, size):
    text = json.dumps(cut(ALEXNET))
    assert "truncated" in refusal_of(tmp_path, text[:size])
    assert "truncated" in refusal_of(tmp_path, text[:-size])


# Memory


def test_a_bomb_of_zeros_is_refused_at_its_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "MOST_BYTES", 0)
    assert "begins as no JSON" in refusal_of(tmp_path, gzip.compress(b"\x00" * 10**6, mtime=0))


def test_a_file_that_unpacks_to_more_than_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "MOST_BYTES", 10**5)
    monkeypatch.setattr(contents, "_CHUNK_BYTES", 10**4)
    packed = gzip.compress(b'{"traceEvents": [' + b" " * 10**7, mtime=0)
    assert len(packed) < 10**5
    assert "over 0.0001 GB unpacked: record fewer steps" in refusal_of(tmp_path, packed)


def test_more_objects_than_memory_has_room_for(tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "MOST_OBJECTS", 1000)
    text = '{"traceEvents": [' + ",".join(["{}"] * 1000) + "]}"
    assert "over 0.001 million objects: record fewer steps" in refusal_of(tmp_path, text)


def test_more_different_shapes_than_memory_has_room_for(tmp_path, monkeypatch):
    monkeypatch.setattr(kineto, "MOST_LIST_BYTES", 100)
    many = [event("cpu_op", args={"Input Dims": [[number]]}) for number in range(100)]
    text = json.dumps({"traceEvents": many})
    assert "different shapes: record fewer steps" in refusal_of(tmp_path, text)


def test_a_huge_list_in_one_value_is_left_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(kineto, "MOST_VALUE_BYTES", 100)
    path = tmp_path / "trace.json"
    args = {"Input Dims": [[1]] * 100, "Input type": ["float"]}
    file = {"traceEvents": [event("cpu_op", args=args)], "deviceProperties": [[]] * 100}
    path.write_text(json.dumps(file), encoding="utf-8")
    trace = read_trace(path)
    assert trace.host[0].dims is None
    assert trace.host[0].types == ("float",)
    assert trace.device_names == {}


def test_no_memory(tmp_path, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr("bench.profilers.traces.kineto_trace", full)
    assert "does not fit into memory: record fewer steps" in refusal_of(tmp_path, WHOLE)
