"""The worker's journal, as its launcher reads it while it grows."""

from hypothesis import given
from hypothesis import strategies as st

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
