"""Files of perf stat, in the forms that its versions have had: the lines, and their figures."""

import re
from dataclasses import astuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.errors import UserError
from bench.profilers.perf.stat import Collection, is_perf_stat, read_perf_stat, read_rows

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
    def read(text, reader=read_rows, *known):
        path = tmp_path / "stat.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return reader(path, *known)

    return read


def facts(path):
    """What each row says, but for its line."""
    return [astuple(row)[1:] for row in read_rows(path)]


@pytest.fixture
def read(rows_of):
    return lambda text, collection=None: rows_of(text, read_perf_stat, collection)


BOTH = "user and kernel"


def test_fields_and_json_of_perf_6_1(rows_of):
    assert rows_of(PERF_6_1, facts) == [
        ("", "task-clock", "user", 1195.40, 1.0),
        ("", "page-faults", BOTH, 1, 1.0),
        ("", "cycles", "user", "not supported", 1.0),
    ]
    assert rows_of(PERF_6_1_JSON, facts) == [
        ("", "task-clock", BOTH, 1195.762408, 1.0),
        ("", "cycles", "user", "not supported", 1.0),
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
    assert rows_of(line + "\n", facts) == [expected]


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


def test_the_same_event_twice_and_no_file_are_refused(rows_of, tmp_path):
    with pytest.raises(UserError, match=r"line 3: 'cycles' again, after line 1.*single perf stat"):
        rows_of("5,,cycles,9,100.00,,\n\n6,,cycles:u,9,100.00,,\n")
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


TOKENS = [
    *(",", ";", "|", "\n", '{"', '"}', ": ", "12", "1.5", "1,5", "<not counted>", "100.00", "9%"),
    *(
        "cycles",
        "cpu/a",
        "b/",
        '"counter-value"',
        '"event"',
        '"pcnt-running"',
        '"cpu"',
        "\ufeff",
        "٣",
    ),
]
contents = st.one_of(
    st.binary(max_size=300),
    st.lists(st.one_of(st.sampled_from(TOKENS), st.text(max_size=5)), max_size=40).map(
        lambda parts: "".join(parts).encode("utf-8", "surrogatepass")
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
        shown = "" if isinstance(row.count, str) else f"{row.count}".rstrip("0") or "0"
        assert shown.replace(".", "") in digits
        assert row.share is None or 0 <= row.share <= 1


# Figures

CORES = """\
1000;;cycles:u;900;100.00;;
2500;;instructions:u;900;100.00;;
80;;cache-references:u;900;100.00;;
20;;cache-misses:u;900;100.00;;
400;;branches:u;900;75.00;;
4;;branch-misses:u;900;10.00;;
"""
INTEL = {
    "scalar_single": 1,
    "scalar_double": 1,
    "128b_packed_single": 4,
    "128b_packed_double": 2,
    "256b_packed_single": 8,
    "256b_packed_double": 4,
    "512b_packed_single": 16,
    "512b_packed_double": 8,
}
WINDOW = ("perf 6.1.192", 20, 1.5)
PROFILE = Collection(*WINDOW)


def intel_rows(**counts):
    counts = dict.fromkeys(INTEL, 10) | counts
    return "".join(
        f"{n};;fp_arith_inst_retired.{name}:u;9;100.00;;\n" for name, n in counts.items()
    )


def test_figures_of_a_window(read):
    counters = read(CORES, PROFILE)
    assert (counters.source, counters.iterations, counters.window_s) == WINDOW
    assert counters.scope == "user"
    assert (counters.cycles, counters.instructions) == (1000, 2500)
    assert (counters.cache_references, counters.cache_misses) == (80, 20)
    assert (counters.branches, counters.branch_misses) == (400, 4)
    assert (counters.ipc, counters.cpi) == (2.5, 0.4)
    shares = counters.running_share
    assert (shares["branches"], shares["branch-misses"], shares["cycles"]) == (0.75, 0.1, 1.0)
    assert counters.missing == {"flops": "perf was not asked for it"}
    alone = read(CORES + "7;;an_event_of_no_figure:k;9;100.00;;\n")
    assert alone.scope == "user"
    assert (alone.source, alone.iterations) == ("perf stat", None)
    assert alone.missing["window_s"] == "a file of perf stat does not have it"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "<not supported>;;cycles:u;0;100.00;;\n<not supported>;;instructions:u;0;100.00;;\n",
            r"stat\.csv: .*nothing.*: not supported; mlproject doctor",
        ),
        ("5;msec;task-clock;9;100.00;;\n", "no cycles, instructions, cache-references"),
        (
            "5;;cycles:u;9;100.00;;\n7;;instructions;9;100.00;;\n",
            "line 1 counts user mode, line 2 user and kernel mode",
        ),
        ("5;;cycles;9;100.00;;\n6;;cpu-cycles;9;100.00;;\n", "lines 1 and 2 count the same"),
        ("10;;fp_scale_ops_spec;9;100.00;;\n5;;fp_fixed_ops_spec;9;100.00;;\n",
         "length of the vectors is unknown"),
        ("100,,cpu_atom/cycles/u,1,40.00,,\n100,,cpu_core/cycles/u,1,40.00,,\n",
         "account for 80 % of the time"),
        ("<not supported>,,cpu_atom/cycles/u,0,100.00,,\n"
         "<not supported>,,cpu_core/cycles/u,0,100.00,,\n", "not supported"),
    ],
)  # fmt: skip
def test_a_file_without_a_certain_number_is_refused(read, text, words):
    with pytest.raises(UserError, match=words):
        read(text)


def test_intels_events_add_up_each_with_its_own_weight(read):
    counts = {name: 100**place for place, name in enumerate(INTEL)}
    expected = sum(number * INTEL[name] for name, number in counts.items())
    assert read(CORES + intel_rows(**counts)).flops == expected


def test_a_processor_without_a_width_needs_no_event_of_it(read):
    text = CORES + "".join(line for line in intel_rows().splitlines(True) if "512b" not in line)
    assert read(text, PROFILE).flops == 10 * (1 + 1 + 4 + 2 + 8 + 4)
    missing = read(text).missing["flops"]
    assert "not asked for fp_arith_inst_retired.512b_packed_double" in missing


def test_arms_scalable_vectors_count_by_their_length(read):
    text = "100;;fp_fixed_ops_spec;9;100.00;;\n10;;fp_scale_ops_spec;9;100.00;;\n"
    assert read(text, Collection(*WINDOW, vector_bits=256)).flops == 120
    assert read(text.replace("\n10;", "\n0;")).flops == 100


# Shares of a run on a processor with two kinds of cores, which perf has scaled as if each row had
# been multiplexed.
HYBRID = """\
12640094118,,cpu_atom/cycles/u,1,1.89,,
25549986034,,cpu_core/cycles/u,9,98.11,,
9000,,cpu_atom/instructions/u,1,1.89,,
44840214030,,cpu_core/instructions/u,9,98.11,,
<not counted>,,cpu_lowpower/cycles/u,0,0.00,,
<not counted>,,cpu_lowpower/instructions/u,0,0.00,,
1000000,,cpu_core/branches/u,9,49.05,,
20000,,cpu_atom/branches/u,1,1.89,,
"""


def test_kinds_of_cores_are_weighted_by_the_time_spent_on_each(read):
    counters = read(HYBRID)
    assert counters.cycles == round(12640094118 * 0.0189 + 25549986034 * 0.9811)
    assert counters.instructions == round(9000 * 0.0189 + 44840214030 * 0.9811)
    assert counters.branches == round(1000000 * 0.9811 + 20000 * 0.0189)
    assert counters.running_share["cpu_core/cycles/"] == 1.0
    assert counters.running_share["cpu_core/branches/"] == pytest.approx(49.05 / 98.11)
    assert "cpu_lowpower/cycles/" not in counters.running_share
    one_used = "508381,,cpu_atom/cycles/u,6,100.00,,\n<not counted>,,cpu_core/cycles/u,0,0.00,,\n"
    assert read(one_used).cycles == 508381


ON_ONE_KIND = "".join(f"10,,cpu_core/fp_arith_inst_retired.{n}/u,9,98.11,,\n" for n in INTEL)
WITHOUT_MISSES = CORES.replace("20;;cache-misses", "0;;cache-misses")
NO_FLOP = intel_rows(**dict.fromkeys(INTEL, 0))


@pytest.mark.parametrize(
    ("text", "collection", "figure", "reason"),
    [
        (CORES.replace("900;75.00", "900;9.99"), None, "branches",
         "counted for 10.0 % of the time, too little to scale up"),
        (CORES + intel_rows(scalar_single="<not counted>"), PROFILE, "flops",
         "fp_arith_inst_retired.scalar_single: not counted"),
        (CORES + intel_rows(), Collection(*WINDOW, withheld={"flops": "AMX"}), "flops", "AMX"),
        (HYBRID + ON_ONE_KIND, None, "flops", "on cpu_atom, where 1.9 % of the time was spent"),
        (WITHOUT_MISSES, PROFILE, "cache_misses",
         "counted 0 while a step was trained"),
        (CORES + NO_FLOP, PROFILE, "flops",
         "counted 0 while a step was trained"),
    ],
)  # fmt: skip
def test_an_uncertain_figure_is_missing_with_the_reason_and_spares_the_others(
    read, text, collection, figure, reason
):
    counters = read(text, collection)
    assert getattr(counters, figure) is None
    assert reason in counters.missing[figure]
    assert counters.cycles is not None
    alone = read(WITHOUT_MISSES + NO_FLOP)  # of no profile: may have counted none at all
    assert (alone.flops, alone.cache_misses) == (0, 0)
