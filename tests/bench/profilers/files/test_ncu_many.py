"""Files large enough that their rows are read by columns, in blocks and in threads."""

import subprocess
import sys

import pytest
from ncu_files import DRAM, DURATION, Launch, Style, found, launches, truth, written

from bench.errors import UserError
from bench.profilers.files import read_counters
from bench.profilers.files.quotes import well_quoted
from bench.profilers.files.rows import Rows

TABLE = launches(1500)


@pytest.fixture
def rows_read(monkeypatch):
    """How many rows were read one by one."""
    taken = []
    take = Rows._take
    monkeypatch.setattr(Rows, "_take", lambda self, *row: (taken.append(row), take(self, *row)))
    return taken


@pytest.mark.parametrize("form", ["2020", "new", "details", "nvtx", "raw", "raw nvtx"])
@pytest.mark.parametrize("locale", ["C", "en_US", "de_DE"])
def test_regular_rows_are_read_by_columns(tmp_path, rows_read, form, locale):
    path = tmp_path / "ncu.csv"
    noise = {9000: "==PROF== 50%", 100: "output"}
    style = Style(locale=locale, percent=None, noise=noise)
    path.write_text(written(TABLE, form, style), encoding="utf-8")
    assert path.stat().st_size > 256 << 10
    assert found(read_counters(path)) == truth(TABLE)
    assert len(rows_read) <= 1 + len(TABLE[0].values)  # units, and the launch that ends the file


def test_a_number_in_doubt_is_named_with_its_line_however_far_down(tmp_path):
    table = [Launch(index, "k", {DURATION: 5, DRAM: 7}) for index in range(4000)]
    text = written(table, style=Style(percent=None)).split("\n")
    text[7000] = text[7000].replace('"7"', '"1.234"').replace('"5"', '"1.234"')
    path = tmp_path / "ncu.csv"
    path.write_text("\n".join(text))
    with pytest.raises(UserError, match=r"ncu\.csv:7001: .*'1\.234'"):
        read_counters(path)
    text[7000] = text[7000].replace('"1.234"', '"x"')
    path.write_text("\n".join(text))
    with pytest.raises(UserError, match=r"ncu\.csv:7001: .*'x' is not a number"):
        read_counters(path)


@pytest.mark.parametrize("at", [5000, 9000])
def test_a_launch_that_comes_again_far_below_is_named_with_its_line(tmp_path, at):
    table = [Launch(index, "k", {DRAM: 7}) for index in range(9000)]
    table.insert(at, Launch(17, "k", {DRAM: 7}))
    path = tmp_path / "ncu.csv"
    path.write_text(written(table, "raw"))
    where = rf"ncu\.csv:{at + 3}: launch 17 of process 4711 appears twice"
    with pytest.raises(UserError, match=where):
        read_counters(path)


@pytest.mark.parametrize(
    ("row", "well"),
    [
        (b'"1","a","b","5"', True),
        (b'"1","a""b","","5"', True),
        (b'"1",a","b",","5"', False),  # a quote lost and one too many, by number all right
        (b'"1","a","b","5', False),
        (b'"1","a"b","c","5"', False),
    ],
)
def test_quotes_are_where_they_belong_and_not_only_as_many(row, well):
    assert well_quoted(row + b"\n", 1, 4) == well
    assert well_quoted(b'"0","a","b","5"\n' + row + b"\n", 2, 4) == well


def test_glued_text_is_not_taken_for_a_digit(tmp_path):
    text = written(TABLE, "raw", Style(percent=None)).split("\n")
    text[800] = text[800].replace(f'"{TABLE[798].values[DRAM]}"', '"5"6')
    path = tmp_path / "ncu.csv"
    path.write_text("\n".join(text))
    with pytest.raises(UserError, match=r"ncu\.csv:801: a damaged row"):
        read_counters(path)


@pytest.mark.parametrize("odd", ["798\t", "\t798", "0x31e"])
def test_an_id_that_pyarrow_alone_takes_for_a_number_is_refused(tmp_path, odd):
    text = written(TABLE, "raw", Style(percent=None)).split("\n")
    text[800] = f'"{odd}"' + text[800][text[800].index(",") :]
    path = tmp_path / "ncu.csv"
    path.write_text("\n".join(text))
    with pytest.raises(UserError, match=r"ncu\.csv:801: a damaged row"):
        read_counters(path)


def test_hexadecimal_is_no_number(tmp_path):
    text = written(TABLE, "raw", Style(percent=None)).split("\n")
    text[800] = text[800].replace(f'"{TABLE[798].values[DRAM]}"', '"0x10"')
    path = tmp_path / "ncu.csv"
    path.write_text("\n".join(text))
    with pytest.raises(UserError, match=r"ncu\.csv:801: dram__bytes\.sum: '0x10' is not a number"):
        read_counters(path)


def test_pyarrow_is_imported_for_large_files_alone(tmp_path):
    path = tmp_path / "ncu.csv"
    path.write_text(written(launches(3)))
    code = (
        "import sys; from pathlib import Path; from bench.profilers.files import read_counters;"
        f"read_counters(Path({str(path)!r})); print('pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
