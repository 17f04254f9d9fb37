"""Any table, printed in any form, locale and scale, is read back exactly; no input does harm."""

import re
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
    SASS,
    TENSOR,
    Launch,
    Style,
    found,
    launches,
    truth,
    written,
)

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
