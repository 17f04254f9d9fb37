"""Numbers as C and en_US spell them are read exactly; others are refused with file and line."""

from decimal import Decimal

import pytest
from ncu_files import DRAM, DURATION, PERCENT, quoted

from bench.errors import UserError
from bench.profilers.ncu.read import read_counters
from bench.profilers.ncu.tables import NcuNumber, read_number, unit_power

HEADER = ["ID", "Process ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"]
SUMMARY = ["Process ID", "Kernel Name", "Invocations", *HEADER[3:5]]
SUMMARY += ["Minimum", "Maximum", "Average"]
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"


@pytest.mark.parametrize(
    ("text", "value", "shows_mark"),
    [
        ("4195712", "4195712", False),
        ("0", "0", False),
        ("4,195,712", "4195712", True),
        ("1,234.5", "1234.5", True),
        ("12,943,820,224.72", "12943820224.72", True),
        ("31.87", "31.87", True),
        ("0.125", "0.125", True),
        ("4195.712", "4195.712", True),
        ("31872.000000", "31872", True),
        (".500", "0.5", True),
        ("4.195712e+06", "4195712", False),
    ],
)
def test_a_number_of_one_meaning(text, value, shows_mark):
    assert read_number(text) == NcuNumber(Decimal(value), shows_mark)
    assert read_number(f"  {text} ") == read_number(text)


@pytest.mark.parametrize(
    ("text", "value"), [("31.872", "31.872"), ("31,872", "31872"), ("1.000", "1")]
)
def test_a_number_of_two_meanings(text, value):
    assert read_number(text) == NcuNumber(Decimal(value), doubtful=True)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "4.195.712",
            "4 195 712",
            "4\u00a0195\u00a0712",
            "4\u202f195\u202f712,50",
            "4'195'712.25",
        ),
        *("41,95,712", "1.234,5", "31,8", "0,125", "012,345", ",5", "1.2.3", "1,234,56"),
    ],
)
def test_a_number_of_another_locale(text):
    with pytest.raises(ValueError, match="locale C"):
        read_number(text)


@pytest.mark.parametrize("text", ["", "n/a", "N/A", " (!) n/a", "nan", "-nan", "inf"])
def test_no_number(text):
    assert read_number(text) is None


@pytest.mark.parametrize(
    "text",
    [
        *("-5", "+5", "1,23,4", "1,2345,678", "5x", "0x10", "1_000", "²", "٣", "4\\xa0195\\xa0712"),
        *("\n40123", "1\n2", "1 23", "1,234.567.8", "1.234.567,8,9", "1" * 61, "one", "--"),
        *("1,234,567.8.9", "1'2", "1.", "1,"),
    ],
)
def test_text_that_is_refused(text):
    with pytest.raises(ValueError, match=r".*"):
        read_number(text)


@pytest.mark.parametrize(
    ("metric", "unit", "power"),
    [
        (DURATION, "ns", -9),
        (DURATION, "nsecond", -9),
        (DURATION, "usecond", -6),
        (DURATION, "us", -6),
        (DURATION, "msecond", -3),
        (DURATION, "ms", -3),
        (DURATION, "second", 0),
        (DURATION, "s", 0),
        (DRAM, "byte", 0),
        (DRAM, "Kbyte", 3),
        (DRAM, "Mbyte", 6),
        (DRAM, "Gbyte", 9),
        (DRAM, "MB", 6),
        (FFMA, "inst", 0),
        (FFMA, "", 0),
        (FFMA, "Kinst", 3),
    ],
)
def test_units(metric, unit, power):
    assert unit_power(metric, unit) == power


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        *((DURATION, ""), (DURATION, "byte"), (DURATION, "cycle"), (DURATION, "s" * 99)),
        *((DRAM, ""), (DRAM, "ns"), (DRAM, "Mbit"), (DRAM, "byte/second"), (DRAM, "Kibyte")),
        *((FFMA, "%"), (FFMA, "inst/cycle")),
    ],
)
def test_a_unit_that_is_not_the_metrics_is_none(metric, unit):
    assert unit_power(metric, unit) is None


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


@pytest.mark.parametrize(
    ("metric", "unit", "text"),
    [
        *(("some__metric.sum", "byte", text) for text in ("27.595.520", "41,95,712", "27 595 520")),
        *((PERCENT, "%", text) for text in ("65,77", "0,125")),
        *((DRAM, "byte", text) for text in ("2.508.800", "2\\xff508\\xff800", "2,50,800")),
    ],
)
def test_one_number_of_another_locale_refuses_the_file(read, metric, unit, text):
    remedy = r"LC_ALL=C ncu --import FILE\.ncu-rep --csv"
    with pytest.raises(UserError, match=rf"ncu\.csv:3: .*; write the file again: {remedy}"):
        read((DURATION, "ns", "5"), (metric, unit, text), (PERCENT, "%", "65.77"))


@pytest.mark.parametrize(
    ("metric", "unit", "text", "percent", "expected"),
    [
        (DURATION, "us", "117.344", "65.77", 117.344e-6),
        (DURATION, "us", "117.344", "1,234,567", 117.344e-6),
        (DURATION, "us", "117,344", "65.77", 117344e-6),
        (DURATION, "ns", "117,344", "65.77", 117344e-9),
        (DURATION, "ns", "117,344", "99", 117344e-9),
        (DURATION, "ns", "117,344", None, 117344e-9),
        (DURATION, "us", "31.87", None, 31.87e-6),
    ],
)
def test_a_locale_that_the_table_shows_decides(read_table, metric, unit, text, percent, expected):
    other = [[0, 1, "k", PERCENT, "%", percent]] if percent else []
    record = read_table(HEADER, [0, 1, "k", metric, unit, text], *other)
    assert record.duration_s == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("metric", "unit", "text", "others"),
    [
        # a fraction of the least unit: something rewrote it
        (DURATION, "ns", "117.344", ["65.77"]),
        (DURATION, "us", "117.344", []),
        (DURATION, "us", "117,344", []),
        (DRAM, "Mbyte", "1.234", ["1.234", "99"]),
        (DRAM, "Mbyte", "1,234", []),
        (DRAM, "byte", "1.234", []),
        (FFMA, "inst", "1.234", ["65.77"]),
    ],
)
def test_what_nothing_decides_is_refused(read_table, metric, unit, text, others):
    rows = [[0, 1, "k", f"m{other}", "%", other] for other in others]
    rows.append([0, 1, "k", "version", "", "12.5"])  # without a unit it does not show the locale
    with pytest.raises(UserError, match=r"ncu\.csv:2: .*may mean .*LC_ALL=C ncu"):
        read_table(HEADER, [0, 1, "k", metric, unit, text], *rows)


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


# A summary's means may be fractions


@pytest.mark.parametrize(
    ("mean", "percent", "expected"),
    [
        ("1,234", "65.77", 1234),
        ("1.234", "65.77", Decimal("1.234")),
        ("23,990,083,863.04", "99", Decimal("23990083863.04")),
    ],
)
def test_the_table_decides_what_a_mean_is(read_table, mean, percent, expected):
    figures = [DRAM, "byte", 1, 9, mean], [PERCENT, "%", 1, 9, percent]
    record = read_table(SUMMARY, *([1, "k", "1,000", *figure] for figure in figures))
    assert (record.kernels, record.dram_bytes) == (1000, round(expected * 1000))


@pytest.mark.parametrize("mean", ["1,234", "1.234"])
def test_a_mean_that_nothing_decides_is_refused(read_table, mean):
    with pytest.raises(UserError, match=r"ncu\.csv:2: .* may mean"):
        read_table(SUMMARY, [1, "k", 4, DRAM, "byte", "0", "5000", mean])


def test_a_count_of_launches_with_a_dot_is_refused(read_table):
    with pytest.raises(UserError, match=r"ncu\.csv:2: Invocations: '1\.000' is not a whole"):
        read_table(SUMMARY, [1, "k", "1.000", DRAM, "byte", "5", "5", "5"])
