"""Files of perf stat, as a profile has them made: the lines, and their figures."""

from dataclasses import astuple

import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import UserError
from bench.profilers.perf import read_perf_stat, read_rows
from bench.records import Account

# Written by perf 6.1.192 on a virtual machine without counters.
PERF_6_1 = """\
# started on Sat Nov 21 12:57:24 2026

1195.40;msec;task-clock:u;1195397376;100.00;0.265;CPUs utilized
1;;page-faults;1195397376;100.00;0.837;/sec
;;;;;2.1;per cycle
<not supported>;;cycles:u;0;100.00;;
"""
BOTH = "user and kernel"
WINDOW = ("perf 6.1.192", 20, 1.5)


def step(**changes):
    """The account of a worker whose window ended."""
    ended = {"outcome": "ok", "resolved": samples.resolved(), "iterations": 20, "window_s": 1.5}
    return samples.facts(Account, **ended | changes)


@pytest.fixture
def file_of(tmp_path):
    def write(text):
        path = tmp_path / "stat.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def read(file_of):
    def write_and_read(text, **resolved):
        ended = step(resolved=samples.resolved(**resolved))
        return read_perf_stat(file_of(text), WINDOW[0], ended)

    return write_and_read


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (PERF_6_1, [("", "task-clock", "user", 1195.40, 1.0), ("", "page-faults", BOTH, 1, 1.0),
                    ("", "cycles", "user", "not supported", 1.0)]),
        ("58;;cpu_atom/cycles/u;9;42.00;0.66;insn", [("cpu_atom", "cycles", "user", 58, 0.42)]),
        ("7;;cpu/event=0x7,umask=0x2/u;9;100.00;;", [("cpu", "event=0x7,umask=0x2", "user", 7, 1)]),
        ("7;;cycles:k;9;100.00;;", [("", "cycles", "kernel", 7, 1.0)]),
        ("7;;cycles:ukP;9;100.00;;", [("", "cycles", BOTH, 7, 1.0)]),
        ("3;;sched:sched_switch;9;100.00;;", [("", "sched:sched_switch", BOTH, 3, 1.0)]),
        ("9;;FP_ARITH_INST_RETIRED.SCALAR_SINGLE;9;50.00;;",
         [("", "fp_arith_inst_retired.scalar_single", BOTH, 9, 0.5)]),
    ],
)  # fmt: skip
def test_rows_of_perf(file_of, text, rows):
    assert [*map(astuple, read_rows(file_of(text)))] == rows


@pytest.mark.parametrize(
    "line",
    [
        "12345;;cycles",
        "12345;;cycles;9;103.00;;",
        "1.234.567;;cycles;9;100.00;;",
        "nan;;cycles;9;100.00;;",
        "12345;;cycles;9;100,00;;",
        "    1,234,567      cycles:u                  #    0.299 GHz",  # the table for people
    ],
)
def test_what_is_not_certain_is_refused_with_its_line(file_of, line):
    with pytest.raises(UserError, match=r"stat\.csv, line 3: .* is no row of perf stat"):
        read_rows(file_of("# started on Sat\n5;;branches;9;100.00;;\n" + line + "\n"))


@given(st.one_of(st.binary(max_size=300), st.text(";\n1.5 <not counted>cycles:u#", max_size=60)))
@pytest.mark.slow
def test_no_content_crashes_the_reader(file_of, content):
    try:
        rows = read_rows(file_of(content))
    except UserError:
        return
    assert all(0 <= row.share <= 1 for row in rows)


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


def intel_rows(**counts):
    counts = dict.fromkeys(INTEL, 10) | counts
    return "".join(
        f"{n};;fp_arith_inst_retired.{name}:u;9;100.00;;\n" for name, n in counts.items()
    )


def test_figures_of_a_window(read):
    counters = read(CORES)
    assert (counters.source, counters.iterations, counters.window_s) == WINDOW
    assert counters.scope == "user"
    assert (counters.cycles, counters.instructions) == (1000, 2500)
    assert (counters.cache_references, counters.cache_misses) == (80, 20)
    assert (counters.branches, counters.branch_misses) == (400, 4)
    assert (counters.ipc, counters.cpi) == (2.5, 0.4)
    shares = counters.running_share
    assert (shares["branches"], shares["branch-misses"], shares["cycles"]) == (0.75, 0.1, 1.0)
    assert counters.missing == {"flops": "perf knows no floating-point events of this processor"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "<not supported>;;cycles:u;0;100.00;;\n<not supported>;;instructions:u;0;100.00;;\n",
            r"stat\.csv: .*nothing.*: not supported; .*; mlproject doctor",
        ),
        ("100;;cpu_atom/cycles/u;1;40.00;;\n100;;cpu_core/cycles/u;1;40.00;;\n",
         "account for 80 % of the time"),
        ("<not supported>;;cpu_atom/cycles/u;0;100.00;;\n"
         "<not supported>;;cpu_core/cycles/u;0;100.00;;\n", "not supported"),
    ],
)  # fmt: skip
def test_a_file_without_a_certain_number_is_refused(read, text, words):
    with pytest.raises(UserError, match=words):
        read(text)


def test_intels_events_add_up_each_with_its_own_weight(read):
    counts = {name: 100**place for place, name in enumerate(INTEL)}
    expected = sum(number * INTEL[name] for name, number in counts.items())
    assert read(CORES + intel_rows(**counts)).flops == expected
    narrow = [line for line in intel_rows().splitlines(True) if "512b" not in line]
    assert read(CORES + "".join(narrow)).flops == 10 * (1 + 1 + 4 + 2 + 8 + 4)


# Shares of a run on a processor with two kinds of cores, which perf has scaled as if each row had
# been multiplexed.
HYBRID = """\
12640094118;;cpu_atom/cycles/u;1;1.89;;
25549986034;;cpu_core/cycles/u;9;98.11;;
9000;;cpu_atom/instructions/u;1;1.89;;
44840214030;;cpu_core/instructions/u;9;98.11;;
<not counted>;;cpu_lowpower/cycles/u;0;0.00;;
<not counted>;;cpu_lowpower/instructions/u;0;0.00;;
1000000;;cpu_core/branches/u;9;49.05;;
20000;;cpu_atom/branches/u;1;1.89;;
"""


def test_kinds_of_cores_are_weighted_by_the_time_spent_on_each(read):
    counters = read(HYBRID)
    assert counters.cycles == round(12640094118 * 0.0189 + 25549986034 * 0.9811)
    assert counters.instructions == round(9000 * 0.0189 + 44840214030 * 0.9811)
    assert counters.branches == round(1000000 * 0.9811 + 20000 * 0.0189)
    assert counters.running_share["cpu_core/cycles/"] == 1.0
    assert counters.running_share["cpu_core/branches/"] == pytest.approx(49.05 / 98.11)
    assert "cpu_lowpower/cycles/" not in counters.running_share
    one_used = "508381;;cpu_atom/cycles/u;6;100.00;;\n<not counted>;;cpu_core/cycles/u;0;0.00;;\n"
    assert read(one_used).cycles == 508381


ON_ONE_KIND = "".join(f"10;;cpu_core/fp_arith_inst_retired.{n}/u;9;98.11;;\n" for n in INTEL)
WITHOUT_MISSES = CORES.replace("20;;cache-misses", "0;;cache-misses")
NO_FLOP = intel_rows(**dict.fromkeys(INTEL, 0))


@pytest.mark.parametrize(
    ("text", "figure", "reason"),
    [
        (CORES.replace("900;75.00", "900;9.99"), "branches",
         "counted for 10.0 % of the time, too little to scale up"),
        (CORES + intel_rows(scalar_single="<not counted>"), "flops",
         "fp_arith_inst_retired.scalar_single: not counted"),
        (HYBRID + ON_ONE_KIND, "flops", "on cpu_atom, where 1.9 % of the time was spent"),
        (WITHOUT_MISSES, "cache_misses", "counted 0 while a step was trained"),
        (CORES + NO_FLOP, "flops", "counted 0 while a step was trained"),
    ],
)  # fmt: skip
def test_an_uncertain_figure_is_missing_with_the_reason_and_spares_the_others(
    read, text, figure, reason
):
    counters = read(text)
    assert getattr(counters, figure) is None
    assert reason in counters.missing[figure]
    assert counters.cycles is not None


AMD = "7;;fp_ret_sse_avx_ops.all;9;100.00;;\n"


@pytest.mark.parametrize(
    ("events", "mode", "native", "flops"),
    [
        (intel_rows(), "fp32", True, 440),
        (intel_rows(), "bf16", False, 440),
        (intel_rows(), "bf16", True, None),
        (intel_rows(), "fp16", True, None),
        (AMD, "bf16", True, 7),
        (AMD, "fp16", True, None),
    ],
)
def test_flop_of_16_bit_products_are_given_where_they_are_counted(
    read, events, mode, native, flops
):
    counters = read(CORES + events, math_mode=mode, native_math=native)
    assert counters.flops == flops
    assert flops or "events do not count products of" in counters.missing["flops"]
