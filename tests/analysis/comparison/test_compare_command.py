"""`mlproject compare` as a user calls it: records, campaigns, run ids; its gate and its files."""

import json

import factories as make
import pytest
from observed import invoke, records_on_disk

import commands.compare
from bench.errors import UserError


def measured(name, batch=10, step_s=1.0, environment=None, **settings):
    """Three repeats of a configuration."""
    return [
        make.run_record(
            f"{name}{batch}-{repeat}",
            batch,
            step_s * wobble,
            settings={"repeat": repeat, **settings},
            environment=environment or make.environment(),
        )
        for repeat, wobble in enumerate((0.999, 1.0, 1.001), 1)
    ]


def on_disk(folder, a, b):
    """The two sides as the command takes them."""
    return [f"records={records_on_disk(folder / n, *runs)}" for n, runs in (("a", a), ("b", b))]


def words_of(*arguments):
    return " ".join(invoke(commands.compare, *arguments).output.split())


def test_the_files_hold_the_table_and_the_picture(tmp_path):
    sides = on_disk(tmp_path, measured("a"), measured("b", step_s=0.9, channels_last="false"))
    done = invoke(commands.compare, *sides, "--out", tmp_path / "out", "--format", "json")
    facts = json.loads(done.output)
    assert facts["told_apart_by"] == ["channels_last"]
    assert facts["comparisons"][0]["ratio"] == pytest.approx(1 / 0.9, rel=1e-3)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    table = {f"comparison.{suffix}" for suffix in ("csv", "md", "tex", "png", "svg")}
    assert names == table | {"compare.json", "compare.md"}
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot write there"):
        invoke(commands.compare, *sides, "--out", tmp_path / "file" / "x")


def test_a_disturbed_side_is_compared_by_its_pace_and_a_line_says_so(tmp_path):
    bursts = make.measurement(times_s=(1.0, 1.0, 1.6) * 10)
    sides = on_disk(tmp_path, measured("a"), [make.run_record("b", measurement=bursts)])
    said = words_of(*sides)
    assert "compared is the pace, samples per median iteration" in said
    assert "by pace_samples_per_s" in said
    assert "pace" not in words_of(*on_disk(tmp_path / "x", measured("a"), measured("b")))


def test_an_absolute_gate_fails_below_a_share_of_the_roof_and_passes_nothing_unknown(tmp_path):
    roofs = [make.ceilings_record()]  # under which a step of 1 s is at half, one of 0.9 s at 56 %
    slow = f"records={records_on_disk(tmp_path / 'a', *measured('a'), *roofs)}"
    fast = f"records={records_on_disk(tmp_path / 'b', *measured('b', step_s=0.9), *roofs)}"
    for sides, least, code in (
        ((slow,), "0.49", 0),
        ((slow,), "0.51", 1),
        ((slow, fast), "0.51", 0),  # of A and B that of B
        ((fast, slow), "0.51", 1),
    ):
        done = invoke(commands.compare, *sides, "--least-of-roof", least, "--fail-on", "none")
        assert done.return_value == code, done.output
        below = f"below {100 * float(least):g} % of its roof: lab resnet18 fp32 batch 10, 50 %"
        assert (below in done.output) is bool(code)
    done = invoke(commands.compare, slow, "--least-of-roof", "0.6", "--format", "json")
    [shares] = json.loads(done.output)["below_roof"].values()
    assert shares == pytest.approx([0.5, 0.5], rel=0.01)
    nowhere = f"records={records_on_disk(tmp_path / 'c', *measured('c'))}"
    with pytest.raises(
        UserError, match=r"least-of-roof: lab resnet18.*no place under a roof: no ce"
    ):
        invoke(commands.compare, nowhere, "--least-of-roof", "0.1")
    beyond = f"records={records_on_disk(tmp_path / 'd', *measured('d', step_s=0.4), *roofs)}"
    with pytest.raises(UserError, match="125 % of the compute ceiling: impossible"):
        invoke(commands.compare, beyond, "--least-of-roof", "0.1")


def test_one_machine_has_its_cost_where_a_price_is_given_and_only_by_images_per_s(tmp_path):
    sides = on_disk(tmp_path, measured("a"), measured("b", step_s=0.9))
    plain = words_of(*sides)
    assert "differ in no setting" in plain
    assert "MFU" not in plain
    priced = (*sides, "--price", "lab=1/h")
    assert "an image costs 0.9 times as much" in words_of(*priced)
    with pytest.raises(UserError, match="a cost follows from images/s"):
        invoke(commands.compare, *priced, "--metric", "real_s")
    with pytest.raises(UserError, match="no run is of a machine"):
        invoke(commands.compare, *sides, "--price", "other=1/h")
