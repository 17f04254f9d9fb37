"""The worker's journal, as its launcher reads it while it grows."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker_processes import output_of

from bench.records.journal import JournalReader, JournalWriter


def test_events_arrive_once_in_order_with_their_clock(tmp_path):
    path = tmp_path / "journal.jsonl"
    reader = JournalReader(path)
    assert reader.new_events() == []
    ticks = iter([1.0, 2.0, 3.0])
    writer = JournalWriter(path, lambda: next(ticks))
    writer.note("started")
    writer.note("warmup", seconds=0.5)
    first = reader.new_events()
    writer.note("window_started")
    second = reader.new_events()
    assert [(e.name, e.clock_s) for e in first + second] == [
        ("started", 1.0),
        ("warmup", 2.0),
        ("window_started", 3.0),
    ]
    assert first[1].facts == {"seconds": 0.5}
    assert reader.new_events() == []


@given(st.lists(st.integers(0, 400), max_size=8))
def test_a_line_read_while_it_is_written_is_read_once_it_is_whole(tmp_path_factory, cuts):
    folder = tmp_path_factory.mktemp("journal")
    whole = folder / "whole"
    for number in range(5):
        JournalWriter(whole, lambda: 1.0).note("event", number=number)
    content = whole.read_bytes()
    growing = folder / "growing"
    reader = JournalReader(growing)
    seen = []
    for cut in [*sorted(min(cut, len(content)) for cut in cuts), len(content)]:
        growing.write_bytes(content[:cut])
        seen += [event.facts["number"] for event in reader.new_events()]
    assert seen == list(range(5))


def test_a_journal_that_cannot_be_written_does_not_end_the_measurement(tmp_path):
    JournalWriter(tmp_path / "missing" / "journal.jsonl").note("started")


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on this kind of machine")
def test_a_line_that_a_full_disk_cut_is_lost_and_no_other(tmp_path):
    program = """
import resource, signal, sys
from pathlib import Path
from bench.records.journal import JournalWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
writer = JournalWriter(path, lambda: 1.0)
writer.note("started")
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, resource.RLIM_INFINITY))
writer.note("imported")
writer.note("device")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.note("ended")
"""
    path = tmp_path / "journal.jsonl"
    output_of(program, str(path))
    assert len(path.read_text().splitlines()) > 2  # ten bytes of a line are there
    assert [event.name for event in JournalReader(path).new_events()] == ["started", "ended"]


@pytest.mark.parametrize("line", ["{", "null", "3", '{"event": "a"}', "\x00", "", '["event"]'])
def test_a_line_that_is_no_event_is_passed_over(tmp_path, line):
    path = tmp_path / "journal.jsonl"
    path.write_text(f'{line}\n{{"event": "ended", "clock_s": 1.0}}\n')
    assert [event.name for event in JournalReader(path).new_events()] == ["ended"]
