"""Any table, printed in any form, locale and scale, is read back exactly; no input does harm."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ncu_files import (
    BYTES,
    DURATION,
    FORMS,
    LOCALES,
    SASS,
    TENSOR,
    Launch,
    Style,
    found,
    truth,
    written,
)
from ncu_fuzz import OPERATIONS, bases, check, mutated, outcome

from bench.errors import UserError
from bench.profilers.ncu.read import read_counters

METRICS = [DURATION, *BYTES, *TENSOR, *SASS]
COUNTS = st.one_of(st.integers(0, 2000), st.integers(0, 10**12), st.integers(10**15, 10**19))
KERNELS = st.sampled_from(
    ["gemm", "void f<int, 4>(T *, int)", 'k "x", y', "größer", "ID", "a,b", '"', "n/a"]
)
NOISE = st.sampled_from(["==PROF== 50%", "", "Epoch 1", '"a": 1,', "\r 10%|#  |", "==WARNING== x"])


@st.composite
def tables(draw, form):
    """Launches with whole metrics, some n/a; in a summary all launches of a kernel are alike."""
    metrics = draw(st.lists(st.sampled_from(METRICS), min_size=1, max_size=6, unique=True))
    metrics += draw(st.sampled_from([[], METRICS]))
    kernels = draw(st.lists(KERNELS, min_size=1, max_size=3, unique=True))
    figure = st.one_of(COUNTS, COUNTS, COUNTS, st.none())
    figures = st.fixed_dictionaries(dict.fromkeys(dict.fromkeys(metrics), figure))
    of_kernel = {kernel: draw(figures) for kernel in kernels}
    table = []
    for index in range(draw(st.integers(1, 5))):
        kernel = draw(st.sampled_from(kernels))
        values = of_kernel[kernel] if form == "summary" else draw(figures)
        table.append(Launch(index, kernel, values))
    return table


@st.composite
def files(draw, **fixed):
    """A form, its table and the style it is printed in."""
    form = draw(st.sampled_from(FORMS))
    style = Style(
        locale=draw(st.sampled_from(list(LOCALES))),
        unit_power=draw(st.sampled_from([0, 3, 6])),
        spelling=draw(st.sampled_from(["old", "new"])),
        line_end=draw(st.sampled_from(["\n", "\r\n"])),
        noise=draw(st.dictionaries(st.integers(0, 12), NOISE, max_size=3)),
        **fixed,
    )
    return form, draw(tables(form)), style


def outcome_of(path, text, encoding="utf-8"):
    """The record or the message."""
    path.write_bytes(text.encode(encoding))
    try:
        return read_counters(path)
    except UserError as error:
        return str(error)


@settings(max_examples=40)
@given(files(percent="87.53"), st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))
@pytest.mark.slow
def test_a_table_that_shows_its_locale_is_read_back_exactly(tmp_path, case, encoding):
    form, table, style = case
    record = outcome_of(tmp_path / "ncu.csv", written(table, form, style), encoding)
    assert not isinstance(record, str), record
    assert found(record) == truth(table, form)


@settings(max_examples=40)
@given(files(percent=None))
@pytest.mark.slow
def test_a_table_that_does_not_show_its_locale_is_read_exactly_or_refused(tmp_path, case):
    form, table, style = case
    record = outcome_of(tmp_path / "ncu.csv", written(table, form, style))
    if isinstance(record, str):
        assert "may mean" in record
        assert style.unit_power or "." in LOCALES[style.locale][0]
    else:
        assert found(record) == truth(table, form)


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(OPERATIONS),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from([0, 1, 2, 5, 30, 200]),
        st.integers(0, 10**6),
    ),
    max_size=6,
)


@settings(max_examples=80)
@given(st.integers(0, 10**6), CHANGES)
@pytest.mark.slow
def test_a_damaged_file_does_no_harm(tmp_path, base, changes):
    check(mutated(base, changes), tmp_path / "ncu.csv")


@settings(max_examples=60)
@given(st.one_of(st.binary(max_size=2000), st.text(max_size=1000).map(str.encode)))
@pytest.mark.slow
def test_arbitrary_bytes_do_no_harm(tmp_path, content):
    check(content, tmp_path / "ncu.csv")


@pytest.mark.slow
def test_every_whole_file_of_the_fuzzer_is_read(tmp_path):
    for content in bases():
        assert check(content, tmp_path / "ncu.csv") == bool(content)


def test_the_fuzzer_finds_a_zero_that_the_file_does_not_hold(tmp_path, monkeypatch):
    path = tmp_path / "ncu.csv"
    path.write_bytes(bases()[0])
    record = outcome(path).model_copy(update={"dram_bytes": 0})
    monkeypatch.setattr("ncu_fuzz.outcome", lambda *_: record)
    with pytest.raises(AssertionError, match="dram_bytes"):
        check(b'"5"', path)
