"""The lines that perf stat writes, in the forms that its versions have had, and anything else."""

import json
import re
import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.errors import UserError
from bench.profilers.perf.rows import is_perf_stat, read_rows

# Written by perf 6.1.192 on a virtual machine without counters.
PERF_6_1 = """\
# started on Sat Nov 21 12:57:24 2026

1195.40;msec;task-clock:u;1195397376;100.00;0.265;CPUs utilized
1;;page-faults;1195397376;100.00;0.837;/sec
<not supported>;;cycles:u;0;100.00;;
"""
PERF_6_1_JSON = """\
# started on Sat Nov 21 12:57:28 2026

{"counter-value" : "1195.762408", "unit" : "msec", "event" : "task-clock", "event-runtime" : \
1195762408, "pcnt-running" : 100.00, "metric-value" : 0.265773, "metric-unit" : "CPUs utilized"}
{"counter-value" : "<not supported>", "unit" : "", "event" : "cycles:u", "event-runtime" : 0, \
"pcnt-running" : 100.00, "metric-value" : 0.000000, "metric-unit" : ""}
"""


@pytest.fixture
def rows_of(tmp_path):
    def read(text):
        path = tmp_path / "stat.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_rows(path)

    return read


def short(row):
    return (row.pmu, row.event, row.scope, row.count, row.why, row.share)


BOTH = "user and kernel"


def test_fields_and_json_of_perf_6_1(rows_of):
    assert [short(row) for row in rows_of(PERF_6_1)] == [
        ("", "task-clock", "user", 1195.40, "", 1.0),
        ("", "page-faults", BOTH, 1, "", 1.0),
        ("", "cycles", "user", None, "not supported", 1.0),
    ]
    assert [short(row) for row in rows_of(PERF_6_1_JSON)] == [
        ("", "task-clock", BOTH, 1195.762408, "", 1.0),
        ("", "cycles", "user", None, "not supported", 1.0),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("12345,,instructions:u,500000,100.00,,", ("", "instructions", "user", 12345, 1.0)),
        ("12345,,instructions", ("", "instructions", BOTH, 12345, None)),  # perf 3
        ("12345,,instructions,,,", ("", "instructions", BOTH, 12345, None)),
        ("12345,,cycles,0.50%,500000,62.11,1.2,GHz", ("", "cycles", BOTH, 12345, 0.6211)),  # -r
        ("58,,cpu_atom/cycles/u,9,42.00,0.66,insn", ("cpu_atom", "cycles", "user", 58, 0.42)),
        ("7,,cpu/event=0x7,umask=0x2/u,9,100.00,,", ("cpu", "event=0x7,umask=0x2", "user", 7, 1)),
        ("7,,cycles:k,9,100.00,,", ("", "cycles", "kernel", 7, 1.0)),
        ("7,,cycles:ukP,9,100.00,,", ("", "cycles", BOTH, 7, 1.0)),
        ("3,,sched:sched_switch,9,100.00,,", ("", "sched:sched_switch", BOTH, 3, 1.0)),
        ("87.12|MiB|uncore_imc_0/cas_count_read/|9|100.00||",
         ("uncore_imc_0", "cas_count_read", BOTH, 87.12, 1.0)),
        ("9,,FP_ARITH_INST_RETIRED.SCALAR_SINGLE,9,50.00,,",
         ("", "fp_arith_inst_retired.scalar_single", BOTH, 9, 0.5)),
        ("87,12;MiB;a/b/;9;99,50;;", ("a", "b", BOTH, 87.12, 0.995)),  # plainly a decimal comma
        (f"{2**63 + 1},,cycles,9,100.00,,", ("", "cycles", BOTH, 2**63 + 1, 1.0)),
        ("\ufeff5,,cycles,9,100.00,,", ("", "cycles", BOTH, 5, 1.0)),  # a byte order mark
    ],
)  # fmt: skip
def test_one_row(rows_of, line, expected):
    (row,) = rows_of(line + "\n")
    assert (row.pmu, row.event, row.scope, row.count, row.share) == expected


@pytest.mark.parametrize(
    "line",
    [
        "12,34,,cycles,9,100.00,,",  # a decimal comma where a comma parts the fields
        "1234,,cycles,9,100,00,,",
        "1.234.567,,cycles,9,100.00,,",
        "1 234,,cycles,9,100.00,,",
        "     1.000108 ,12345,,cycles,9,100.00,,",  # -I
        "CPU0,12345,,cycles,9,100.00,,",  # -A
        "S0-D0-C1,2,12345,,cycles,9,100.00,,",  # --per-core
        "12345,,cycles,my.group,9,100.00,,",  # a cgroup
        "12345,,cycles,9,103.00,,",
        "nan,,cycles\n12345,,,9,100.00,,",
        "12345,,cycles,9",
        "12345,",
        "    1,234,567      cycles:u                  #    0.299 GHz",  # the table for people
        "9" * 40 + ",,cycles,9,100.00,,",
        '{"counter-value" : "1,5", "unit" : "", "event" : "cycles", "pcnt-running" : 100.00}',
        '{"counter-value" : "15", "unit" : "", "event" : "cycles", "pcnt-running" : 99,50}',
        '{"interval" : 1.0, "counter-value" : "15", "unit" : "", "event" : "cycles"}',
        '{"cpu" : "0", "counter-value" : "15", "unit" : "", "event" : "cycles"}',
        '{"counter-value" : null, "unit" : "", "event" : "cycles"}',
        '{"counter-value" : "15"',
    ],
)
def test_what_is_not_certain_is_refused_with_its_line(rows_of, line):
    with pytest.raises(UserError, match=rf"stat\.csv, line {3 + line.count(chr(10))}: .*-x"):
        rows_of("# started on Sat\n5,,branches,9,100.00,,\n" + line + "\n")


def test_the_same_event_twice_is_refused(rows_of):
    with pytest.raises(UserError, match=r"line 3: 'cycles' again, after line 1.*single perf stat"):
        rows_of("5,,cycles,9,100.00,,\n\n6,,cycles:u,9,100.00,,\n")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"none\.csv: cannot be read \(No such file"):
        read_rows(tmp_path / "none.csv")


def test_output_of_the_program_and_metrics_are_no_events(rows_of):
    text = "loading...\r\nEvents enabled\r\n5,,cycles,9,100.00,,\r\n,,,,,2.1,per cycle\r\n"
    text += '{"metric-value" : 1.0, "metric-unit" : "x"}\n'
    assert [row.count for row in rows_of(text)] == [5]


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (PERF_6_1, True),
        (PERF_6_1_JSON, True),
        ("noise\n<not counted>,,cycles,0,0.00,,", True),
        ('"ID","Process ID","Process Name"\n"0","123","python"\n', False),
        ("==PROF== Connected to process 123\n0,123,python\n", False),
        ('{"kind": "profile", "record_id": "x"}\n', False),
        ("1,2,3\n", False),
        ("", False),
    ],
)
def test_files_of_perf_stat_are_known_by_their_beginning(text, is_one):
    assert is_perf_stat(text) is is_one


events = st.sampled_from(
    ["cycles", "cycles:u", "cpu_core/cycles/", "uncore_imc/cas_count_read/", "x.y-z", "l2_a.b:u"]
)
counts = st.one_of(
    st.none(),
    st.integers(0, 2**64 - 1),
    st.integers(0, 10**12).map(lambda hundredths: hundredths / 100),
)
tables = st.lists(
    st.tuples(events, counts, st.integers(0, 10000), st.sampled_from(["", "MiB", "msec", "K/sec"])),
    min_size=1,
    max_size=6,
    unique_by=lambda entry: entry[0].replace(":u", ""),
)


def printed(table, form, comma, end, noise):
    """Print a table as perf does; a decimal comma only where it is no separator."""

    def number(value):
        text = "<not counted>" if value is None else str(value)
        text = f"{value:.2f}" if isinstance(value, float) else text
        return text.replace(".", ",") if comma and form not in (",", "json") else text

    lines = ["# started on Sat Nov 21", ""]
    for event, count, share, unit in table:
        percent = number(share / 100.0)
        if form == "json":
            row = f'{{"counter-value" : "{number(count)}", "unit" : "{unit}", "event" : "{event}", '
            lines.append(row + f'"event-runtime" : 12, "pcnt-running" : {percent}}}')
        else:
            lines.append(form.join([number(count), unit, event, "12", percent, "0.1", "K/sec"]))
        lines += noise
    return end.join(lines)


@given(
    table=tables,
    form=st.sampled_from([",", ";", "|", "\t", "json"]),
    comma=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    noise=st.lists(st.sampled_from(["epoch 3", "", ",,,,,1.0,per", "Events enabled"]), max_size=2),
)
@pytest.mark.slow
def test_every_form_of_a_table_reads_back_as_the_table(rows_of, table, form, comma, end, noise):
    rows = rows_of(printed(table, form, comma, end, noise))
    assert [(row.count, row.share) for row in rows] == [
        (count, pytest.approx(share / 10000)) for _, count, share, _ in table
    ]
    assert all(row.event in event for row, (event, *_) in zip(rows, table, strict=True))


fields = st.text(alphabet=string.printable + "\ufeff٣é\x00", max_size=12)
near_rows = st.builds(
    lambda parts, separator: separator.join(parts),
    st.lists(
        st.one_of(
            fields,
            st.sampled_from(
                ["12", "1.5", "1,5", "<not counted>", "", "cycles", "cpu/a", "b/", "9%"]
            ),
        ),
        max_size=9,
    ),
    st.sampled_from(",;|\t"),
)
near_json = st.dictionaries(
    st.sampled_from(["counter-value", "unit", "event", "pcnt-running", "cpu", "metric-unit"]),
    st.one_of(fields, st.integers(), st.floats(), st.none(), st.lists(st.integers(), max_size=2)),
).map(json.dumps)


contents = st.one_of(
    st.binary(max_size=300),
    st.lists(st.one_of(st.text(max_size=60), near_rows, near_json), max_size=8).map(
        lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass")
    ),
)


@given(contents)
@example(b'{"a": ' + b"[" * 100_000)
@example(b"9" * 5000 + b",,cycles")
@settings(max_examples=200)
@pytest.mark.slow
def test_no_content_crashes_the_reader_or_makes_up_a_number(rows_of, content):
    try:
        rows = rows_of(content)
    except UserError:
        return
    read = content.decode("utf-8-sig", "replace").splitlines()
    for row in rows:
        digits = re.sub(r"\D", "", read[row.line - 1])
        shown = "" if row.count is None else str(row.count).rstrip("0").replace(".", "") or "0"
        assert shown in digits
        assert row.share is None or 0 <= row.share <= 1
