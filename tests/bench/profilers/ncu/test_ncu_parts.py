"""Merged passes, metrics by chip, and nvprof's names."""

import re

import pytest
from ncu_files import (
    BYTES,
    DRAM,
    DURATION,
    SASS,
    TENSOR,
    Launch,
    found,
    launches,
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
from bench.profilers.ncu.read import read_counters

TABLE = launches(6)


def part_of(table, metrics, process=4711):
    return [
        Launch(one.id, one.kernel, {name: one.values[name] for name in metrics}, process)
        for one in table
    ]


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def passes(folder, *texts):
    return [write(folder / f"{number}.csv", text) for number, text in enumerate(texts)]


# Passes over the same launches


@pytest.mark.parametrize("forms", [("raw", "raw"), ("new", "raw"), ("raw", "summary")])
def test_two_passes_give_what_one_would(tmp_path, forms):
    hardware = part_of(TABLE, [DURATION, *BYTES, *TENSOR])
    sass = part_of(TABLE, SASS, process=42)
    paths = passes(tmp_path, written(hardware, forms[0]), written(sass, forms[1]))
    record = read_counters(*paths)
    assert found(record) == truth(TABLE)
    assert record.files == tuple(map(str, paths))
    assert found(read_counters(*paths[::-1])) == truth(TABLE)


def test_a_metric_of_both_passes_counts_once_from_the_first_that_has_it_whole(tmp_path):
    lacking = part_of(TABLE, [DURATION, DRAM])
    lacking[3].values[DRAM] = None
    again = part_of(TABLE, [DURATION, DRAM], process=42)
    for one in again:
        one.values[DURATION] += 7
    record = read_counters(*passes(tmp_path, written(lacking), written(again)))
    assert record.duration_s == truth(TABLE)["duration_s"]
    assert record.dram_bytes == truth(TABLE)["dram_bytes"]
    assert record.kernels == 6


@pytest.mark.parametrize(
    "other", [launches(5), launches(7), launches(6, kernels=("gemm", "tanh"))], ids=len
)
def test_passes_over_other_work_are_refused(tmp_path, other):
    with pytest.raises(UserError, match=r"not the same work: .*launched \d times and \d"):
        read_counters(*passes(tmp_path, written(TABLE), written(other)))


def test_passes_on_other_chips_are_refused(tmp_path):
    other = [Launch(one.id, one.kernel, one.values, 1, capability="9.0") for one in TABLE]
    with pytest.raises(UserError, match="different chips: ga100, gh100"):
        read_counters(*passes(tmp_path, written(TABLE), written(other)))


def test_a_chip_that_is_not_known_is_none_with_its_capability(tmp_path):
    volta = [Launch(one.id, one.kernel, one.values, 1, capability="7.0") for one in TABLE]
    record = read_counters(write(tmp_path / "ncu.csv", written(volta)))
    assert record.chip is None
    assert "7.0" in record.missing["chip"]
    assert found(record) == truth(TABLE)


@pytest.mark.parametrize("name", ["step.ncu-rep", "renamed.csv"])
def test_a_report_is_refused_with_the_command_that_makes_its_csv(tmp_path, name):
    (tmp_path / name).write_bytes(b"NVR\0rest")
    with pytest.raises(UserError, match=rf"ncu --import {re.escape(name)} --csv --page raw"):
        read_counters(tmp_path / name)


# Metrics by chip, and nvprof's names


def test_every_chip_has_its_metrics_and_nothing_else_of_the_others():
    assert {*CHIPS} == {*MEMBERS}  # each has a member that ncu can be asked for
    assert chip_of_capability((9, 0)) == "gh100"
    assert chip_of_capability((7, 0)) is None
    for chip in CHIPS:
        metrics = metrics_for_chip(chip)
        assert {*metrics} <= WANTED
        assert sum("sass" in name for name in metrics) == (12 if chip in ("gb100", "gb110") else 9)
        assert ("sm__ops_path_tensor_src_fp16_dst_fp32.sum" in metrics) == (
            chip not in ("gh100", "tu10x")
        )
        assert ("sm__ops_path_tensor_src_fp16.sum" in metrics) == (chip == "gh100")


@pytest.mark.parametrize("text", ["", "# nothing\n", "hello world\n", '"ID","Process ID"\n', "a,b"])
def test_other_text_is_no_list_of_metrics(text):
    assert metrics_listed_in(text) == ()


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.profilers.ncu.tables._LONGEST_LINE", 1000)
    with pytest.raises(UserError, match="no table of Nsight Compute"):
        read_counters(write(tmp_path / "ncu.csv", "x" * 5000))
