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
    WANTED,
    chip_of_capability,
    metrics_for_chip,
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


NOISE = {
    0: '==PROF== Connected to process 4711 (/usr/bin/python3)\n"step" 1, "loss" 2.5\n\n',
    1: '==PROF== Profiling "gemm": 0%....50%....100% - 12 passes',
    2: 'Epoch 1, "loss": 0.5\n{"a": 1, "b": [1,2,3,4]}',
    3: "\rEpoch 1:  50%|#####     | 5/10 [00:01<00:01]\r",
    5: '"he said ""yes""", 12',
}


def alike():
    """Files that hold the same table: by scale, on Windows, within output, with rows twice."""
    for form in BASIC_FORMS:
        for locale in ("C", "en_US"):
            for power in (0, 3, 6):
                spelling = "old" if power else "new"
                style = Style(locale=locale, unit_power=power, spelling=spelling)
                yield f"{form} {locale} {power}", written(TABLE, form, style)
    for form in FORMS:
        windows = written(TABLE, form, Style(line_end="\r\n"))
        for encoding in ("utf-8", "utf-8-sig", "utf-16"):
            yield f"{form} {encoding}", windows.encode(encoding)
        yield f"{form} utf-16-be", codecs.BOM_UTF16_BE + windows.encode("utf-16-be")
        noisy = written(TABLE, form, Style(noise=NOISE))
        yield f"{form} in output", f"{noisy}==PROF== Disconnected from process 4711\n"
        first, *lines = written(TABLE, form).split("\n")
        if form in LONG_FORMS:
            yield f"{form} twice", "\n".join([first, *lines[:2], lines[1], *lines[2:]])
        if form != "summary":  # behind output that did not end its line
            yield f"{form} behind output", "\n".join(["loading" + first, *lines])
    lines = written(TABLE, "rules").split("\n")  # rows over several lines
    yield "rows over several lines", "\n".join(lines)
    labelled = written(TABLE).replace(f'"{DRAM}"', f'"DRAM Traffic ({DRAM})"')
    yield "labels, counts per SM", labelled.replace("smsp__sass", "sm__sass")


CONTENTS = dict(alike())


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())
def test_files_that_hold_the_same_table(read, content):
    assert found(read(content)) == truth(TABLE)


def test_tables_of_several_processes_and_forms_are_added_up(read):
    more = [Launch(one.id, "conv", one.values, 42) for one in TABLE[:2]]
    for form in ("new", "raw"):
        assert found(read(written([*TABLE, *more], form))) == truth([*TABLE, *more])
    text = written(TABLE, "new") + "second run\n" + written(more, "raw")
    assert found(read(text)) == truth([*TABLE, *more])


def rows(*cells):
    """A file of these rows."""
    return "\n".join(map(quoted, cells)) + "\n"


LONG = ["ID", "Process ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"]
MOVED = ["ID", "Metric Name", "Metric Value", "Metric Unit", "Kernel Name", "CC", "Process ID"]
UNQUOTED = "\n".join(
    [",".join(LONG), "noise, of, some, kind"]
    + [f"{index},4711,gemm,{DRAM},byte,{100 + index}" for index in range(4)]
)
HALVES = [f"dram__bytes{infix}.sum" for infix in ("_read", "_write", "_op_read", "_op_write")]


@pytest.mark.parametrize(
    ("text", "launches", "dram"),
    [
        (rows(MOVED, [0, DRAM, 5, "byte", "gemm", "8.0", 1]), 1, 5),
        (rows(LONG, [0, 7, 'a"b",', DRAM, "byte", 5], [2, 7, "b", DRAM, "byte", 9]), 2, 14),
        *((rows(LONG, [number, 7, "k", DRAM, "byte", 5]), 1, 5) for number in ("1,234", "1234")),
        (f"{UNQUOTED}\n", 4, 406),  # as a spreadsheet saves it
        *(
            (rows(LONG, [0, 7, "k", read, "byte", 30], [0, 7, "k", wrote, "byte", 12]), 1, 42)
            for read, wrote in (HALVES[:2], HALVES[2:])
        ),
    ],
)
def test_a_table_of_the_traffic_of_device_memory(read, text, launches, dram):
    record = read(text)
    assert (record.kernels, record.dram_bytes) == (launches, dram)


def test_half_of_the_traffic_is_none_and_a_short_row_is_refused(read):
    for read_bytes, written_bytes in (HALVES[:2], HALVES[2:]):
        why = read(rows(LONG, [0, 7, "k", read_bytes, "byte", 30])).missing["dram_bytes"]
        assert f"{written_bytes}: not in the file" in why
    with pytest.raises(UserError, match=r"ncu\.csv:2: the row has 4 cells"):
        read(rows(MOVED, [0, DRAM, 5, "byte"]))


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


# What is refused, with its line

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
    for form in ("new", "raw nvtx"):  # a header glued to a row
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
        last = text.count("\n")
        for end in (1 - len(text.split("\n")[-2]), -3):
            yield text.rstrip("\n")[:end], rf":{last}: .*(damaged row|has \d+ cells|cut off)"
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


def test_nought_of_one_kind_of_tensor_work_proves_nothing_of_the_others(read):
    table = [Launch(0, "gemm", {**dict.fromkeys(SASS, 7), TENSOR[0]: 0, DRAM: 1})]
    record = read(written(table))
    assert record.tensor_flops is None
    assert record.flops is None
    assert "sm__ops_path_tensor_src_tf32_dst_fp32.sum" in record.missing["tensor_flops"]
    table[0].values |= dict.fromkeys(TENSOR, 0)
    assert read(written(table)).tensor_flops == 0


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


# Files that are none


@pytest.mark.parametrize("name", ["step.ncu-rep", "renamed.csv"])
def test_a_report_is_refused_with_the_command_that_makes_its_csv(tmp_path, name):
    (tmp_path / name).write_bytes(b"NVR\0rest")
    with pytest.raises(UserError, match=rf"ncu --import {re.escape(name)} --csv --page raw"):
        read_counters(tmp_path / name)


@pytest.mark.parametrize(
    "text",
    [
        "==4711== NVPROF is profiling process 4711\n==4711== Metric result:\n",
        "# metrics\nflop_count_sp\ndram_read_bytes\n",
    ],
)
def test_a_file_of_nvprof_is_named_for_what_it_is(read, text):
    with pytest.raises(UserError, match=r"ncu\.csv: names of nvprof, .*--print-metrics CHIP"):
        read(text)


def test_every_chip_has_its_metrics_and_nothing_else_of_the_others():
    assert (chip_of_capability((9, 0)), chip_of_capability((7, 0))) == ("gh100", None)
    fp16 = "sm__ops_path_tensor_src_fp16"
    for chip in CHIPS:
        metrics = metrics_for_chip(chip)
        assert {*metrics} <= WANTED
        assert sum("sass" in name for name in metrics) == (12 if chip in ("gb100", "gb110") else 9)
        assert (f"{fp16}_dst_fp32.sum" in metrics) == (chip not in ("gh100", "tu10x"))
        assert (f"{fp16}.sum" in metrics) == (chip == "gh100")
