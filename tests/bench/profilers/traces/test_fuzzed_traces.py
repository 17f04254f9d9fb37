"""Whatever a file holds, reading it does no harm."""

import pytest
import trace_fuzz
from trace_fuzz import bases, check, tried

from bench.errors import UserError


@pytest.mark.slow
def test_damaged_files_do_no_harm(tmp_path):
    read, harm, _ = tried(1500, "short", tmp_path / "trace.json")
    assert harm == []
    assert 200 < read < 1300


@pytest.mark.long
def test_many_damaged_files_do_no_harm(tmp_path):
    assert tried(30_000, "long", tmp_path / "trace.json")[1] == []


@pytest.mark.slow
def test_every_whole_file_of_the_fuzzer_is_read(tmp_path):
    assert all(check(content, tmp_path / "trace.json") for content in bases())


@pytest.mark.slow
def test_the_fuzzer_finds_an_error_that_is_no_refusal(tmp_path, monkeypatch):
    def broken(path):
        raise UserError("no path here") if path.stat().st_size % 2 else KeyError("ts")

    monkeypatch.setattr(trace_fuzz, "read_trace", broken)
    assert len(tried(10, 0, tmp_path / "trace.json")[1]) == 10
