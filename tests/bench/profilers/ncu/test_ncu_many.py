"""Files of many rows."""

import pytest
from ncu_files import DRAM, DURATION, Launch, Style, found, launches, truth, written
from worker_processes import output_of

from bench.errors import UserError
from bench.profilers.ncu.read import read_counters

TABLE = launches(1500)
FEW = launches(400)


@pytest.mark.parametrize("form", ["2020", "new", "details", "nvtx", "raw", "raw nvtx", "rules"])
@pytest.mark.parametrize("locale", ["C", "en_US", "de_DE"])
@pytest.mark.slow
def test_many_launches_are_added_up_exactly(tmp_path, form, locale):
    path = tmp_path / "ncu.csv"
    noise = {3000: "==PROF== 50%", 100: "output"}
    style = Style(locale=locale, percent=None, noise=noise)
    path.write_text(written(FEW, form, style), encoding="utf-8")
    assert found(read_counters(path)) == truth(FEW)


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
    ("row", "number"),
    [
        ('"1","7","a","dram__bytes.sum","byte","5"', 5),
        ('"1","7","a""b"",","dram__bytes.sum","byte","5"', 5),
        ('"1","7",a","dram__bytes.sum","byte",","5"', None),  # a quote lost, and one too many
        ('"1","7",",","dram__bytes.sum","byte,5"', None),
        ('"1","7","a"b","dram__bytes.sum","byte","5"', None),
        ('"1","7","a","dram__bytes.sum","byte","1"5', None),
    ],
)
def test_quotes_are_where_they_belong_and_not_only_as_many(tmp_path, row, number):
    path = tmp_path / "ncu.csv"
    header = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    path.write_text("\n".join([header, row, '"2","7","b","dram__bytes.sum","byte","9"', ""]))
    if number:
        assert read_counters(path).dram_bytes == number + 9
    else:
        with pytest.raises(UserError, match=r"ncu\.csv:2: "):
            read_counters(path)


ID, BYTES = '"798"', f'"{TABLE[798].values[DRAM]}"'


@pytest.mark.parametrize(
    ("cell", "odd"), [(ID, '"798\t"'), (ID, '"\t798"'), (ID, '"0x31e"'), (BYTES, '"5"6')]
)
def test_what_only_looks_like_a_number_is_refused_with_its_line(tmp_path, cell, odd):
    text = written(TABLE, "raw", Style(percent=None)).split("\n")
    assert cell in text[800]
    text[800] = text[800].replace(cell, odd)
    path = tmp_path / "ncu.csv"
    path.write_text("\n".join(text))
    with pytest.raises(UserError, match=r"ncu\.csv:801: a damaged row"):
        read_counters(path)


def test_to_read_a_file_imports_neither_pandas_nor_pyarrow(tmp_path):
    path = tmp_path / "ncu.csv"
    path.write_text(written(launches(3)))
    code = "import sys, pathlib; from bench.profilers.ncu.read import read_counters as read;"
    code += f" read(pathlib.Path({str(path)!r}));"
    code += " print([name for name in ('pandas', 'pyarrow') if name in sys.modules])"
    assert output_of(code).strip() == "[]"
