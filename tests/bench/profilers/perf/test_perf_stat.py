"""From the rows of perf stat to a record: weights, scopes, kinds of cores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import UserError
from bench.profilers.perf.stat import Collection, read_perf_stat

CORES = """\
1000;;cycles:u;900;100.00;;
2500;;instructions:u;900;100.00;;
80;;cache-references:u;900;100.00;;
20;;cache-misses:u;900;100.00;;
400;;branches:u;900;75.00;;
4;;branch-misses:u;900;75.00;;
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
WHOLE = Collection(whole=True)


@pytest.fixture
def read(tmp_path):
    def write_and_read(text, *known, collection=None):
        path = tmp_path / "stat.csv"
        path.write_text(text)
        return read_perf_stat(path, *known, collection=collection)

    return write_and_read


def intel_rows(**counts):
    counts = dict.fromkeys(INTEL, 10) | counts
    return "".join(
        f"{n};;fp_arith_inst_retired.{name}:u;9;100.00;;\n" for name, n in counts.items()
    )


def test_figures_of_a_window(read):
    counters = read(CORES, 20, 1.5, collection=Collection(source="perf 6.1.192"))
    assert (counters.source, counters.scope) == ("perf 6.1.192", "user")
    assert (counters.iterations, counters.window_s) == (20, 1.5)
    assert (counters.cycles, counters.instructions) == (1000, 2500)
    assert (counters.cache_references, counters.cache_misses) == (80, 20)
    assert (counters.branches, counters.branch_misses) == (400, 4)
    assert (counters.ipc, counters.cpi) == (2.5, 0.4)
    assert counters.running_share["branches"] == 0.75
    assert counters.running_share["cycles"] == 1.0
    assert counters.missing == {
        "flops": "perf was not asked for it",
    }


def test_a_file_alone_has_neither_iterations_nor_time(read):
    counters = read(CORES)
    assert counters.iterations is None
    assert counters.missing["window_s"] == "a file of perf stat does not have it"


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


def test_an_event_of_no_figure_may_be_counted_in_any_mode(read):
    assert read("5;;cycles:u;9;100.00;;\n7;;a:k;9;100.00;;\n").scope == "user"


def test_intels_events_add_up_each_with_its_own_weight(read):
    counts = {name: 100**place for place, name in enumerate(INTEL)}
    expected = sum(number * INTEL[name] for name, number in counts.items())
    assert read(CORES + intel_rows(**counts)).flops == expected


def test_a_processor_without_a_width_needs_no_event_of_it(read):
    text = CORES + "".join(line for line in intel_rows().splitlines(True) if "512b" not in line)
    assert read(text, collection=WHOLE).flops == 10 * (1 + 1 + 4 + 2 + 8 + 4)
    missing = read(text).missing["flops"]
    assert "not asked for fp_arith_inst_retired.512b_packed_double" in missing


def test_arms_scalable_vectors_count_by_their_length(read):
    text = "100;;fp_fixed_ops_spec;9;100.00;;\n10;;fp_scale_ops_spec;9;100.00;;\n"
    assert read(text, collection=Collection(vector_bits=256)).flops == 120
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


def test_only_one_kind_of_core_used_needs_no_other(read):
    text = "508381,,cpu_atom/cycles/u,6,100.00,,\n<not counted>,,cpu_core/cycles/u,0,0.00,,\n"
    assert read(text).cycles == 508381


ON_ONE_KIND = "".join(f"10,,cpu_core/fp_arith_inst_retired.{n}/u,9,98.11,,\n" for n in INTEL)
WITHOUT_MISSES = CORES.replace("20;;cache-misses", "0;;cache-misses")


@pytest.mark.parametrize(
    ("text", "collection", "figure", "reason"),
    [
        (CORES.replace("20;;cache-m", "<not supported>;;cache-m"), None, "cache_misses",
         "not supported"),
        (CORES.replace("900;75.00", "900;9.99"), None, "branches",
         "counted for 10.0 % of the time, too little to scale up"),
        (CORES.replace("4;;branch-m", "<not counted>;;branch-m"), None, "branch_misses",
         "not counted"),
        (CORES + intel_rows(scalar_single="<not counted>"), WHOLE, "flops",
         "fp_arith_inst_retired.scalar_single: not counted"),
        (CORES + intel_rows(), Collection(withheld={"flops": "AMX is not counted"}), "flops",
         "AMX is not counted"),
        (HYBRID + ON_ONE_KIND, None, "flops", "on cpu_atom, where 1.9 % of the time was spent"),
        (WITHOUT_MISSES, Collection(computed=True), "cache_misses",
         "counted 0 while a step was trained"),
        (CORES + intel_rows(**dict.fromkeys(INTEL, 0)), Collection(computed=True), "flops",
         "counted 0 while a step was trained"),
    ],
)  # fmt: skip
def test_an_uncertain_figure_is_missing_with_the_reason_and_spares_the_others(
    read, text, collection, figure, reason
):
    counters = read(text, collection=collection)
    assert getattr(counters, figure) is None
    assert reason in counters.missing[figure]
    assert counters.cycles is not None


def test_a_file_alone_may_have_counted_none_at_all(read):
    counters = read(WITHOUT_MISSES + intel_rows(**dict.fromkeys(INTEL, 0)))
    assert (counters.flops, counters.cache_misses) == (0, 0)


NAMES = ["cycles", "instructions", "branches", "branch-misses", "cache-misses", "cache-references"]


@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.tuples(st.one_of(st.none(), st.integers(0, 2**62)), st.integers(0, 10000)),
        min_size=1,
    )
)
def test_a_figure_is_the_printed_number_or_none_with_a_reason(read, table):
    text = "".join(
        f"{'<not counted>' if count is None else count};;{name};9;{share / 100:.2f};;\n"
        for name, (count, share) in table.items()
    )
    expected = {
        name.replace("-", "_"): count if share >= 1000 else None
        for name, (count, share) in table.items()
    }
    if not any(count is not None for count in expected.values()):
        with pytest.raises(UserError):
            read(text)
        return
    counters = read(text)
    assert counters.running_share.keys() == {name for name in table if table[name][0] is not None}
    for name in (name.replace("-", "_") for name in NAMES):
        assert getattr(counters, name) == expected.get(name)
        assert (name in counters.missing) == (expected.get(name) is None)
