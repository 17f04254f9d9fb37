"""Every form of Nsight Compute's files, what surrounds a table, damage, and what is missing."""

import codecs
import re

import pytest
from ncu_files import (
    ALL,
    BYTES,
    DRAM,
    DURATION,
    FORMS,
    LONG_FORMS,
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
from bench.profilers.ncu.metrics import (
    CHIPS,
    MEMBERS,
    WANTED,
    chip_of_capability,
    metrics_for_chip,
    metrics_listed_in,
)
from bench.profilers.ncu.read import OTHER_TENSOR, read_counters

TABLE = launches(6)
BASIC_FORMS = ("new", "raw", "summary")


@pytest.fixture
def read(tmp_path):
    """Write a file and read it."""

    def write_and_read(content):
        path = tmp_path / "ncu.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_counters(path)

    return write_and_read


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_figures(read, form):
    record = read(written(TABLE, form))
    assert found(record) == truth(TABLE)
    assert {kernel.name: kernel.launches for kernel in record.per_kernel} == {"gemm": 3, "relu": 3}
    assert sum(kernel.dram_bytes for kernel in record.per_kernel) == record.dram_bytes
    assert sum(kernel.flops for kernel in record.per_kernel) == record.flops
    assert record.intensity_dram == record.flops / record.dram_bytes


@pytest.mark.parametrize("form", BASIC_FORMS)
@pytest.mark.parametrize("locale", ["C", "en_US"])
@pytest.mark.parametrize("power", [0, 3, 6])
def test_each_locale_and_scale_gives_the_same_figures(read, form, locale, power):
    style = Style(locale=locale, unit_power=power, spelling="old" if power else "new")
    assert found(read(written(TABLE, form, style))) == truth(TABLE)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_windows_files_are_read(read, form, encoding):
    content = written(TABLE, form, Style(line_end="\r\n")).encode(encoding)
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    assert found(read(mark + content)) == truth(TABLE)


@pytest.mark.parametrize("form", FORMS)
def test_output_of_the_program_and_of_ncu_is_passed_over(read, form):
    noise = {
        0: '==PROF== Connected to process 4711 (/usr/bin/python3)\n"step" 1, "loss" 2.5\n\n',
        1: '==PROF== Profiling "gemm": 0%....50%....100% - 12 passes',
        2: 'Epoch 1, "loss": 0.5\n{"a": 1, "b": [1,2,3,4]}',
        3: "\rEpoch 1:  50%|#####     | 5/10 [00:01<00:01]\r",
        5: '"he said ""yes""", 12',
    }
    text = written(TABLE, form, Style(noise=noise)) + "==PROF== Disconnected from process 4711\n"
    assert found(read(text)) == truth(TABLE)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "summary"])
def test_output_without_a_line_end_before_header_and_rows_is_passed_over(read, form):
    lines = written(TABLE, form, Style()).split("\n")
    lines[0] = "loading" + lines[0]
    lines[4] = '\rstep "4" of 10 ' + lines[4]
    assert found(read("\n".join(lines))) == truth(TABLE)


def test_tables_of_several_processes_and_forms_are_added_up(read):
    more = [Launch(one.id, "conv", one.values, 42) for one in TABLE[:2]]
    for form in ("new", "raw"):
        assert found(read(written([*TABLE, *more], form))) == truth([*TABLE, *more])
    text = written(TABLE, "new") + "second run\n" + written(more, "raw")
    assert found(read(text)) == truth([*TABLE, *more])


def test_rows_over_several_lines_and_behind_other_output_stay_with_their_launch(read):
    lines = written(TABLE, "rules").split("\n")  # rows over several lines
    last = max(number for number, line in enumerate(lines) if line.startswith('"0","4711"'))
    lines[last] = "step " + lines[last]  # a row of the first launch behind other output
    assert found(read("\n".join(lines))) == truth(TABLE)


@pytest.mark.parametrize("text", ["1,234", "1234"])
def test_an_id_may_be_grouped(read, text):
    assert read(written(TABLE[:1]).replace('"0","4711"', f'"{text}","4711"')).kernels == 1


def test_metrics_behind_their_label_and_counts_per_sm_are_known(read):
    text = written(TABLE).replace(f'"{DRAM}"', f'"DRAM Traffic ({DRAM})"')
    assert found(read(text.replace("smsp__sass", "sm__sass"))) == truth(TABLE)


def test_a_table_that_a_spreadsheet_saved_without_quotes_is_read(read):
    lines = [f"{index},4711,gemm,{DRAM},byte,{100 + index}" for index in range(4)]
    header = "ID,Process ID,Kernel Name,Metric Name,Metric Unit,Metric Value"
    record = read("\n".join([header, "noise, of, some, kind", *lines]) + "\n")
    assert (record.kernels, record.dram_bytes) == (4, 406)


def rows(*cells):
    """A file of these rows."""
    return "\n".join(map(quoted, cells)) + "\n"


def test_columns_may_come_in_another_order(read):
    header = ["ID", "Metric Name", "Metric Value", "Metric Unit", "Kernel Name", "CC", "Process ID"]
    row = [0, DRAM, 5, "byte", "gemm", "8.0", 1]
    assert read(rows(header, row)).dram_bytes == 5
    with pytest.raises(UserError, match=r"ncu\.csv:2: the row has 4 cells"):
        read(rows(header, row[:4]))


def test_the_duration_of_the_speed_of_light_section_counts(read):
    section, figure = (
        "GPU Speed Of Light Throughput",
        ["Section Name", "Metric Name", "Metric Unit"],
    )
    long = rows(
        ["ID", "Process ID", "Kernel Name", *figure, "Metric Value"],
        [0, 4711, "gemm", section, "Duration", "ns", "2,848"],
        [0, 4711, "gemm", section, "Memory Throughput", "%", "12.50"],
        [0, 4711, "gemm", "Memory Workload", "Memory Throughput", "byte/s", "12,943,820,224.72"],
        [0, 4711, "gemm", "Another Section", "Duration", "cycle", "99"],
    )
    assert read(long).duration_s == pytest.approx(2848e-9)
    summary = rows(
        ["Process ID", "Kernel Name", "Invocations", *figure, "Minimum", "Maximum", "Average"],
        [1, "gemm", 2, "Another Section", "Duration", "ns", 1, 1, 1],
        [1, "gemm", 2, section, "Duration", "us", 1, 3, 2],
    )
    assert read(summary).duration_s == pytest.approx(4e-6)


@pytest.mark.parametrize("form", LONG_FORMS)
def test_a_figure_that_comes_twice_counts_once(read, form):
    lines = written(TABLE, form).split("\n")
    assert found(read("\n".join([*lines[:3], lines[2], *lines[3:]]))) == truth(TABLE)


def test_quotes_within_a_cell(read):
    row = [[0, 7, 'a"b",', DRAM, "byte", 5], [2, 7, "b", DRAM, "byte", 9]]
    assert read(rows(LONG, *row)).dram_bytes == 14


# What is refused, with its line

LONG = ["ID", "Process ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"]
ODD_IDS = ["1.234", "1.000", "1\u202f234", "1,2", "12, x", "0x10", "1e3", "12x", "9" * 20]


def changed(text, number, change):
    """`text` with one of its lines, counted from 1, changed."""
    lines = text.split("\n")
    lines[number - 1] = change(lines[number - 1])
    return "\n".join(lines)


def refused_rows():
    """Texts with a row, and the words that refuse it."""
    one, in_raw = written(TABLE[:1]), written(TABLE[:1], "raw")
    for form in ("new", "raw"):
        yield written(TABLE, form) * 2, r":\d+: launch 0 of process 4711 appears twice"
    yield changed(one, 3, lambda row: row.replace("gemm", "relu")), ":3: a second row for launch"
    yield in_raw + in_raw.split("\n")[-2] + "\n", ":4: a second row for launch 0"
    for text in ODD_IDS:
        yield one.replace('"0","4711"', f'"{text}","4711"'), ":2: "
    # what only looks like units or a number
    raw = written(TABLE, "raw", Style(percent=None))
    yield changed(raw, 2, lambda row: row.replace('"', "0", 1)), ":2: a damaged row"
    for odd in ('"4\t"', '"\t4"', '"0x4"', '"4"6'):
        yield changed(raw, 7, lambda row, odd=odd: row.replace('"4"', odd, 1)), ":7: a damaged row"
    # quotes that are not where they belong, though as many
    for cells in ('a","{}","byte",","5"', '",","{}","byte,5"', '"a"b","{}","byte","5"',
                  '"a","{}","byte","1"5'):  # fmt: skip
        row = f'"1","7",{cells.format(DRAM)}'
        yield f"{quoted(LONG)}\n{row}\n" + rows([2, 7, "b", DRAM, "byte", 9]), ":2: "
    for form in LONG_FORMS:
        lines = written(TABLE, form).split("\n")
        lines.insert(3, lines[2].replace("1001000", "1001001"))
        yield "\n".join(lines), r":4: dram__bytes.sum is '1001000' and then"
    for form in ("nvtx", "raw nvtx"):  # a header glued to a row
        lines = written(TABLE, form).split("\n")
        lines[4] = lines[4][: lines[4].rindex(",") + 1] + lines[0]
        yield "\n".join(lines), r":5: the row has \d+ cells"


def refused_files():
    """Texts of whole files, and the words that refuse them."""
    for form in BASIC_FORMS:
        text = written(TABLE, form)
        for damage in (
            lambda row: row[3:],
            lambda row: row.replace('","', '"",', 1),
            "{}56".format,
        ):
            yield changed(text, 6, damage), ":6: .*copy or write"
        cut_off = ":8: " if form == "raw" else "the file is cut off"
        for end in (1 - len(text.split("\n")[-2]), -3):
            yield text.rstrip("\n")[:end], cut_off
        for locale in ("de_DE", "fr_FR", "cs_CZ", "de_CH"):
            line = 3 if form == "raw" else 2
            yield written(TABLE, form, Style(locale=locale)), f":{line}: .*LC_ALL=C ncu --import"
    # the locale of one table is not that of the next
    german = Style(locale="de_DE", percent=None)
    five, small = ([Launch(0, "k", {DURATION: value}, value)] for value in (5, 31872))
    yield written(five) + written(small, "new", german), r":5: .*'31\.872' ns may mean 31872"
    for text in ("", "hello\n", '"a","b"\n"1","2"\n', "\x00\x01\x02" * 100):
        yield text, "no table of Nsight Compute"
    for form in FORMS:
        yield written(TABLE, form).split("\n")[0] + "\n", "no launch below it"


@pytest.mark.parametrize(("text", "words"), [*refused_rows(), *refused_files()])
def test_what_is_refused(read, text, words):
    with pytest.raises(UserError, match=rf"ncu\.csv.*{words}"):
        read(text)


# What is missing


@pytest.mark.parametrize("form", BASIC_FORMS)
@pytest.mark.parametrize("metric", ALL)
def test_a_metric_that_is_absent_is_missing_by_name(read, form, metric):
    table = launches(6, {name: 10**6 for name in ALL if name != metric})
    record = read(written(table, form))
    lacking = {name for name, value in found(record).items() if value is None}
    if metric in TENSOR:  # the others still give a total, with a word on the one that is not in it
        assert not lacking
        assert metric in record.missing[OTHER_TENSOR]
    else:
        assert lacking
        assert all(metric in record.missing[name] for name in lacking)
        of_kernels = [
            one.missing[name] for one in record.per_kernel for name in lacking & {*one.missing}
        ]
        assert {*of_kernels} <= {"as in the total"}
    assert ("flops" in lacking) == (metric in SASS)


@pytest.mark.parametrize("form", BASIC_FORMS)
@pytest.mark.parametrize("metric", [DRAM, DURATION, TENSOR[0], *list(SASS)[:2]])
def test_a_metric_that_some_launches_lack_is_missing_with_their_number(read, form, metric):
    table = launches(6)
    for one in table[1::2]:
        one.values[metric] = None  # of relu
    record = read(written(table, form))
    lacking = {name for name, value in found(record).items() if value is None}
    assert lacking == {name for name, value in truth(table).items() if value is None}
    why = f"{metric}: no number (n/a, nan) in 3 of 6 launches"
    assert all(why in record.missing[one] for one in lacking)
    relu, gemm = sorted(record.per_kernel, key=lambda kernel: kernel.name, reverse=True)
    for field in lacking:
        assert getattr(relu, field) is None
        assert getattr(gemm, field) is not None


def test_a_mean_over_units_is_no_sum(read):
    record = read(written([Launch(0, "gemm", {"dram__bytes.avg": 1234, DURATION: 1})]))
    assert record.missing["dram_bytes"] == (
        "dram__bytes.sum: not in the file, and dram__bytes.avg is no sum"
    )


def test_nought_of_one_kind_of_tensor_work_proves_nothing_of_the_others(read):
    table = [Launch(0, "gemm", {**dict.fromkeys(SASS, 7), TENSOR[0]: 0, DRAM: 1})]
    record = read(written(table))
    assert record.tensor_flops is None
    assert record.flops is None
    assert "sm__ops_path_tensor_src_tf32_dst_fp32.sum" in record.missing["tensor_flops"]
    table[0].values |= dict.fromkeys(TENSOR, 0)
    assert read(written(table)).tensor_flops == 0


def test_reads_and_writes_make_up_the_traffic_of_device_memory(read):
    for infix in ("", "op_"):
        parts = {f"dram__bytes_{infix}read.sum": 30, f"dram__bytes_{infix}write.sum": 12}
        text = written([Launch(0, "gemm", parts)], style=Style(percent=None))
        assert read(text.replace('"","', '"byte","')).dram_bytes == 42
        half = "\n".join(text.replace('"","', '"byte","').split("\n")[:2])
        assert f"dram__bytes_{infix}write.sum: not in the file" in read(half).missing["dram_bytes"]


def test_packed_operations_of_blackwell_count_twice(read):
    values = dict.fromkeys(SASS, 1) | dict.fromkeys(TENSOR, 1)
    values |= {
        f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum": 1
        for op in ("fadd2", "fmul2", "ffma2")
    }
    table = [Launch(0, "gemm", values, capability="10.0")]
    record = read(written(table))
    assert record.chip == "gb100"
    assert record.flops == 3 * 4 + len(TENSOR) + 2 + 2 + 4
    del values["smsp__sass_thread_inst_executed_op_ffma2_pred_on.sum"]
    assert "op_ffma2_pred_on.sum" in read(written(table)).missing["flops"]


# Passes over the same launches


def part_of(table, metrics, process=4711):
    return [
        Launch(one.id, one.kernel, {name: one.values[name] for name in metrics}, process)
        for one in table
    ]


@pytest.fixture
def read_passes(tmp_path):
    """Write a file per text and read them together."""

    def write_and_read(*texts):
        paths = [tmp_path / f"{number}.csv" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text, encoding="utf-8")
        return read_counters(*paths)

    return write_and_read


@pytest.mark.parametrize("forms", [("raw", "raw"), ("new", "raw"), ("raw", "summary")])
def test_two_passes_give_what_one_would(read_passes, forms):
    hardware = part_of(TABLE, [DURATION, *BYTES, *TENSOR])
    sass = part_of(TABLE, SASS, process=42)
    texts = written(hardware, forms[0]), written(sass, forms[1])
    record = read_passes(*texts)
    assert found(record) == truth(TABLE)
    assert [path.rpartition("/")[2] for path in record.files] == ["0.csv", "1.csv"]
    assert found(read_passes(*texts[::-1])) == truth(TABLE)


def test_a_metric_of_both_passes_counts_once_from_the_first_that_has_it_whole(read_passes):
    lacking = part_of(TABLE, [DURATION, DRAM])
    lacking[3].values[DRAM] = None
    again = part_of(TABLE, [DURATION, DRAM], process=42)
    for one in again:
        one.values[DURATION] += 7
    record = read_passes(written(lacking), written(again))
    expected = truth(TABLE)
    assert (record.kernels, record.duration_s) == (6, expected["duration_s"])
    assert record.dram_bytes == expected["dram_bytes"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (launches(5), r"not the same work: .*launched \d times and \d"),
        (launches(6, kernels=("gemm", "tanh")), r"not the same work: .*launched \d times and \d"),
        (launches(6, capability="9.0"), "different chips: ga100, gh100"),
    ],
)
def test_passes_over_other_work_or_on_other_chips_are_refused(read_passes, other, words):
    with pytest.raises(UserError, match=words):
        read_passes(written(TABLE), written(other))


def test_a_chip_that_is_not_known_is_none_with_its_capability(read):
    record = read(written(launches(6, capability="7.0")))
    assert record.chip is None
    assert "7.0" in record.missing["chip"]
    assert found(record) == truth(TABLE)


# Files that are none, and lists of metrics


@pytest.mark.parametrize("name", ["step.ncu-rep", "renamed.csv"])
def test_a_report_is_refused_with_the_command_that_makes_its_csv(tmp_path, name):
    (tmp_path / name).write_bytes(b"NVR\0rest")
    with pytest.raises(UserError, match=rf"ncu --import {re.escape(name)} --csv --page raw"):
        read_counters(tmp_path / name)


def test_a_line_without_end_is_refused(read, monkeypatch):
    monkeypatch.setattr("bench.profilers.ncu.tables._LONGEST_LINE", 1000)
    with pytest.raises(UserError, match="no table of Nsight Compute"):
        read("x" * 5000)


def test_every_chip_has_its_metrics_and_nothing_else_of_the_others():
    assert {*CHIPS} == {*MEMBERS}  # each has a member that ncu can be asked for
    assert (chip_of_capability((9, 0)), chip_of_capability((7, 0))) == ("gh100", None)
    fp16 = "sm__ops_path_tensor_src_fp16"
    for chip in CHIPS:
        metrics = metrics_for_chip(chip)
        assert {*metrics} <= WANTED
        assert sum("sass" in name for name in metrics) == (12 if chip in ("gb100", "gb110") else 9)
        assert (f"{fp16}_dst_fp32.sum" in metrics) == (chip not in ("gh100", "tu10x"))
        assert (f"{fp16}.sum" in metrics) == (chip == "gh100")


@pytest.mark.parametrize("text", ["", "# nothing\n", "hello world\n", '"ID","Process ID"\n', "a,b"])
def test_other_text_is_no_list_of_metrics(text):
    assert metrics_listed_in(text) == ()
