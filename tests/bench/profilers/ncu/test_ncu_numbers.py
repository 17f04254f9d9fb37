"""Numbers as C and en_US spell them are read exactly; others are refused with file and line."""

import re
from decimal import Decimal
from functools import cache

import pytest
from damage import CHANGES, damaged
from hypothesis import given, settings
from hypothesis import strategies as st
from ncu_files import (
    BYTES,
    DRAM,
    DURATION,
    FORMS,
    LOCALES,
    PERCENT,
    SASS,
    TENSOR,
    Launch,
    Style,
    found,
    launches,
    quoted,
    truth,
    written,
)

from bench.errors import UserError
from bench.profilers.ncu.read import read_counters
from bench.profilers.ncu.tables import read_number, unit_power

HEADER = ["ID", "Process ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"]
SUMMARY = ["Process ID", "Kernel Name", "Invocations", *HEADER[3:5]]
SUMMARY += ["Minimum", "Maximum", "Average"]
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
IN_C = r"; write the file again: LC_ALL=C ncu --import FILE\.ncu-rep --csv"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("4195712", "4195712"), ("0", "0"), ("4.195712e+06", "4195712"), (".500", "0.5")),
        *((text, text.replace(",", "")) for text in (
            "4,195,712", "1,234.5", "12,943,820,224.72", "31.87", "0.125", "4195.712", "31.872")),
        *(("31872.000000", "31872"), ("31,872", "31872"), ("1.000", "1")),
    ],
)  # fmt: skip
def test_a_number(text, value):
    assert read_number(text) == read_number(f"  {text} ") == Decimal(value)


@pytest.mark.parametrize("text", ["", "n/a", "N/A", " (!) n/a", "nan", "-nan", "inf"])
def test_no_number(text):
    assert read_number(text) is None


OTHERS = ["4.195.712", "4 195 712", "4\u00a0195\u00a0712", "4\u202f195\u202f712,50", "4'195'712.25"]
OTHERS += ["41,95,712", "1.234,5", "31,8", "0,125", "012,345", ",5", "1.2.3", "1,234,56"]
NONE = ["-5", "+5", "1,23,4", "1,2345,678", "5x", "0x10", "1_000", "²", "٣", "4\\xa0195\\xa0712"]
NONE += ["\n40123", "1\n2", "1 23", "1,234.567.8", "1.234.567,8,9", "1" * 61, "one", "--"]


@pytest.mark.parametrize("text", [*OTHERS, *NONE, "1,234,567.8.9", "1'2", "1.", "1,"])
def test_text_that_is_refused(text):
    with pytest.raises(ValueError, match="locale C"):
        read_number(text)


@pytest.mark.parametrize(
    ("metric", "powers"),
    [
        (DURATION, {"ns": -9, "nsecond": -9, "us": -6, "usecond": -6, "ms": -3, "msecond": -3,
                    "s": 0, "second": 0, "": None, "byte": None, "cycle": None, "s" * 99: None}),
        (DRAM, {"byte": 0, "Kbyte": 3, "Mbyte": 6, "MB": 6, "Gbyte": 9, "": None, "ns": None,
                "Mbit": None, "byte/second": None, "Kibyte": None}),
        (FFMA, {"inst": 0, "": 0, "Kinst": 3, "%": None, "inst/cycle": None}),
    ],
)  # fmt: skip
def test_units(metric, powers):
    assert {unit: unit_power(metric, unit) for unit in powers} == powers


@pytest.fixture
def read_table(tmp_path):
    """Write a header and rows, and read them."""

    def write_and_read(*rows):
        path = tmp_path / "ncu.csv"
        path.write_text("\n".join(map(quoted, rows)) + "\n", encoding="utf-8")
        return read_counters(path)

    return write_and_read


@pytest.fixture
def read(read_table):
    """Write rows of (metric, unit, text), one launch each, and read them."""

    def write_and_read(*figures):
        return read_table(HEADER, *([index, 1, "k", *one] for index, one in enumerate(figures)))

    return write_and_read


@pytest.mark.parametrize("text", ["2.508.800", "2\\xff508\\xff800", "2,50,800"])
def test_one_number_of_another_locale_refuses_the_file(read, text):
    with pytest.raises(UserError, match=rf"ncu\.csv:3: .*{IN_C}"):
        read((DURATION, "ns", "5"), (DRAM, "byte", text), (PERCENT, "%", "65.77"))


@pytest.mark.parametrize(
    ("metric", "unit", "text", "value"),
    [
        (DURATION, "us", "117.344", 117.344e-6),
        (DURATION, "us", "31.87", 31.87e-6),
        (DURATION, "ns", "117,344", 117344e-9),
        (DURATION, "us", "1,117.344", 1117.344e-6),
        # a fraction of the least unit, or a scaled figure without its decimals
        *((DURATION, *figure, None) for figure in (("ns", "117.344"), ("us", "117,344"))),
        *((DRAM, *figure, None) for figure in (("byte", "1.234"), ("Mbyte", "1,234"))),
        (FFMA, "inst", "1.234", None),
    ],
)
def test_a_number_of_two_meanings_is_read_where_ncu_prints_one_of_them(
    read, metric, unit, text, value
):
    if value is None:
        with pytest.raises(UserError, match=rf"ncu\.csv:2: .*may mean .*{IN_C}"):
            read((metric, unit, text))
    else:
        assert read((metric, unit, text)).duration_s == pytest.approx(value, rel=1e-12)


def test_grouped_plain_huge_and_scaled_numbers_add_up_exactly(read):
    texts = ["999,999,999,999", "1,000", "7", "12,345,678", "999", "123456789012", "5,000"]
    figures = [(DRAM, "byte", text) for text in [*texts, *["9223372036854775807"] * 3]]
    scaled = [("Kbyte", "1.5"), ("Mbyte", "4.195712"), ("Gbyte", "2.000000001")]
    figures += [(DRAM, *figure) for figure in scaled]
    total = 999999999999 + 1000 + 7 + 12345678 + 999 + 123456789012 + 5000
    total += 3 * 9223372036854775807 + 1500 + 4195712 + 2000000001
    assert read(*figures).dram_bytes == total
    lacking = f"{DRAM}: no number (n/a, nan) in 1 of 14 launches"
    assert read(*figures, (DRAM, "byte", "n/a")).missing["dram_bytes"] == lacking
    with pytest.raises(UserError, match=r"ncu\.csv:15: dram__bytes\.sum: '12x' is not a number"):
        read(*figures, (DRAM, "byte", "12x"))


def test_nought_is_nought_in_any_unit_and_an_unknown_unit_is_refused(read):
    assert read((DRAM, "", "0")).dram_bytes == 0
    with pytest.raises(UserError, match=r"ncu\.csv:3: dram__bytes\.sum: unknown unit 'furlong'"):
        read((DRAM, "byte", "0"), (DRAM, "furlong", "5"))


@pytest.mark.parametrize(
    ("launches", "mean", "percent", "total"),
    [
        ("1,000", "1,234", "65.77", 1234000),
        ("1,000", "23,990,083,863.04", "99", 23990083863040),
        ("1,000", "1.5", "99", 1500),
        ("1,000", "1.234", "65.77", "may mean"),
        ("1.000", "5", "99", r"Invocations: '1\.000' is not a whole number"),
    ],
)
def test_a_summarys_means_may_be_fractions(read_table, launches, mean, percent, total):
    figures = [DRAM, "byte", 1, 9, mean], [PERCENT, "%", 1, 9, percent]
    table = SUMMARY, *([1, "k", launches, *figure] for figure in figures)
    if isinstance(total, str):
        with pytest.raises(UserError, match=rf"ncu\.csv:2: .*{total}"):
            read_table(*table)
    else:
        record = read_table(*table)
        assert (record.kernels, record.dram_bytes) == (1000, total)


# Any table, in any form, locale and scale, is read back exactly; no input does harm


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
def files(draw):
    """A form, its table and the style it is printed in."""
    form = draw(st.sampled_from(FORMS))
    style = Style(
        locale=draw(st.sampled_from(["C", "en_US", *LOCALES])),
        unit_power=draw(st.sampled_from([0, 3, 6])),
        spelling=draw(st.sampled_from(["old", "new"])),
        percent=draw(st.sampled_from(["87.53", None])),
        line_end=draw(st.sampled_from(["\n", "\r\n"])),
        noise=draw(st.dictionaries(st.integers(0, 12), NOISE, max_size=3)),
    )
    return form, draw(tables(form)), style


def outcome(path, content):
    """The record, or the message that refuses it."""
    path.write_bytes(content)
    try:
        return read_counters(path)
    except UserError as error:
        message = str(error)
    assert str(path) in message
    assert "\n" not in message
    return message


@settings(max_examples=80)
@given(files(), st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))
@pytest.mark.slow
def test_a_table_of_c_or_en_us_is_read_exactly_any_other_so_or_refused(tmp_path, case, encoding):
    form, table, style = case
    record = outcome(tmp_path / "ncu.csv", written(table, form, style).encode(encoding))
    if isinstance(record, str):
        assert "LC_ALL=C ncu" in record
        assert style.locale not in ("C", "en_US")
    else:
        assert found(record) == truth(table, form)


# Damage

TOKENS = [
    *(b'"', b'""', b",", b'","', b'",', b"\n", b"\r\n", b"\r", b"\n\n", b" ", b"\t", b"\x00"),
    *(b"n/a", b"nan", b"-", b"0", b"1", b"9", b".", b"1.234", b"1,234", b"1.234.567", b"0x1F"),
    *(b"\xa0", b"\xc2\xa0", b"\xe2\x80\xaf", b"\xff\xfe", b"\xef\xbb\xbf", b"\xe9", b"1e5"),
    *(b"byte", b"Mbyte", b"ns", b"usecond", b"%", b"==PROF== ", b"==ERROR== no", b"Epoch 1 "),
    *(b'"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n',),
    *(b'"ID","Process ID","Kernel Name","dram__bytes.sum"\n', b'"","","","byte"\n'),
    *(b'"0","1","k","dram__bytes.sum","byte","5"\n', b'"0","1","k","7"\n', b"ID,Kernel Name,"),
    *(DRAM.encode(), DURATION.encode(), b"flop_count_sp", b"Duration", b"Invocations"),
]
#: A cell that reads as zero, alone or rounded.
_ZERO = re.compile(rb"(?<![1-9.,])0+(?:[.,][0-9]+)?(?![0-9])")
_FIGURES = ("duration_s", "flops", "tensor_flops", "dram_bytes", "l2_bytes", "l1_bytes")


@cache
def bases():
    """Whole files of few launches in every form and locale, none of whose figures is zero."""
    metrics = [DURATION, DRAM, TENSOR[0], *list(SASS)[:3]]
    values = {name: 1234567 + 1111 * index for index, name in enumerate(metrics)}
    table = launches(3, values)
    styles = [Style(locale=locale, percent="65.77") for locale in LOCALES]
    styles += [Style(unit_power=6, spelling="old", percent=None), Style(line_end="\r\n")]
    files = [written(table, form, style).encode() for form in FORMS for style in styles]
    return [*files, files[0].decode().encode("utf-16"), b"\xef\xbb\xbf" + files[1], b""]


@settings(max_examples=120)
@given(st.integers(0, 10**6), CHANGES)
@pytest.mark.slow
def test_a_damaged_file_is_refused_or_read_without_a_zero_that_it_does_not_hold(
    tmp_path, base, changes
):
    content = damaged(bases()[base % len(bases())], TOKENS, changes)
    record = outcome(tmp_path / "ncu.csv", content)
    if isinstance(record, str):
        return
    assert record.kernels > 0
    for row in (record, *record.per_kernel):
        for name in _FIGURES:
            value = getattr(row, name)
            assert value != 0 or _ZERO.search(content.replace(b"\x00", b"")), name
            assert value is not None or row.missing[name], name
