"""`mlproject compare` as a user calls it: records, campaigns, run ids; its gate and its files."""

import json

import factories as make
import pytest
from observed import Server, invoke, published_records, records_on_disk

import commands.compare
from analysis.comparison import read_side, read_sides
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


# What a side names: short forms, run ids, filters; and what it says to a typo


@pytest.fixture
def published(monkeypatch):
    """A server with the 48 published configurations of 7 machines."""
    records = published_records().values()
    return Server(monkeypatch, {f"{n:032x}": one for n, one in enumerate(records)})


def test_campaigns_run_ids_and_filters_are_asked_for(monkeypatch):
    ids = ["0" * 32, "1" * 32]
    first, second, *_ = published_records().values()
    of_night = [one.replaced(campaign="night") for one in (first, second)]
    server = Server(monkeypatch, dict(zip(ids, of_night, strict=True)))
    named, of_campaign = read_sides(", ".join(ids), "campaign=night")
    assert [one.name for one in named] == [one.name for one in of_campaign] == ids
    read_sides("params.arch = 'vgg16'", f"run={','.join(ids)}")
    asked = [query for query, *_ in server.asked]
    assert len(asked) == 12  # for each side measurements, imported runs and ceilings
    assert f"attributes.run_id IN ('{ids[0]}', '{ids[1]}')" in asked[0]
    assert "tags.`mlproject.campaign` = 'night'" in asked[3]
    assert asked[6].endswith("params.arch = 'vgg16'")
    assert asked[9] == asked[0]


@pytest.mark.parametrize(
    ("side", "count", "asked"),
    [
        ("env=rtx4090", 18, "tags.`mlproject.env` = 'rtx4090'"),
        ("env='rtx4090' , arch=resnet50", 6,
         "tags.`mlproject.env` = 'rtx4090' and params.arch = 'resnet50'"),
        ("env=rtx4090,arch=resnet50,precision=amp,batch_size=128", 1, "params.arch = 'resnet50'"),
        ("arch=resnet50,arch=vgg16,env=rtx4090", 12, "tags.`mlproject.env` = 'rtx4090'"),
        ("device=Apple M3 Max CPU", 6, "tags.`mlproject.device` = 'Apple M3 Max CPU'"),
        ("campaign=none,precision=amp", 10, "tags.`mlproject.campaign` = 'none'"),
    ],
)  # fmt: skip
def test_short_forms_choose_runs_and_ask_the_server_for_few(published, side, count, asked):
    found = read_side(side)
    assert len(found) == count
    assert published.asked[0][0].endswith(asked)


@pytest.mark.parametrize(
    ("side", "message"),
    [
        ("env=gcp-l4", "'env=gcp-l4': no measurement matches; env is one of colab_t4, gcp_l4, i9_"),
        ("batch_size=8", "batch_size is one of 16, 32, 64, 128, 256$"),
        ("env=mac_cpu,precision=amp", "; precision is one of fp32$"),
        ("compile=default", "no measurement matches; compile is one of none"),
        ("campaign=none-such", "'campaign=none-such': no measurement matches; campaign is one of"),
        ("envi=lab", "'envi' is no setting of a run; give env=, device=, campaign=, user=, .*run="),
        ("env=", "env='' is no value"),
        ("env=it's", "is no value that a run can have"),
        ("run=1,env=lab", "run='1': give the 32 digits"),
        ("records=a,records=b", "records='a': no such folder"),
        ("records=a,baseline=main", "records= and baseline= each name their own runs; give one"),
        (f"baseline=main,run={'0' * 32}", "run= and baseline= each name their own runs"),
        ("f" * 32, f"run {'f' * 32}: no tracked measurement has this id"),
        (" ", "a side is empty: give env="),
        ("records={empty}", "'records=.*empty': no measurement matches$"),
        ("records=/no/such/folder", "no such folder"),
    ],
)
def test_a_side_that_names_nothing_is_one_line(published, tmp_path, side, message):
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=message) as refusal:
        read_side(side.format(empty=empty))
    assert "\n" not in str(refusal.value)


def test_a_value_is_what_ran_or_what_was_asked_for(tmp_path):
    bf16 = {"math_mode": "bf16", "autocast_dtype": "bf16", "depthwise_fp32": True}
    folder = records_on_disk(
        tmp_path / "records",
        make.run_record("auto", 64, settings={"batch_size": "auto"},
                        resolved=make.resolved(batch_size=64)),
        make.run_record("amp", settings={"precision": "amp"}, resolved=make.resolved(**bf16)),
        make.run_record("bf16", settings={"precision": "amp-bf16", "campaign": "night"},
                        resolved=make.resolved(**bf16)),
    )  # fmt: skip

    def named(*forms):
        return {run.name for run in read_side(",".join((f"records={folder}", *forms)))}

    assert named("batch_size=64") == named("batch_size=auto") == {"auto"}
    assert named("precision=amp") == named("precision=amp-bf16") == {"amp", "bf16"}
    assert named("precision=fp32") == {"auto"}
    assert named("campaign=night") == named("run=bf16") == {"bf16"}
    assert named("channels_last=true") == {"auto", "amp", "bf16"}
    with pytest.raises(UserError, match=r"; batch_size is one of 10$"):
        named("precision=amp", "batch_size=64")
