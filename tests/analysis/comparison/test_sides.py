"""What a side of a comparison names: short forms, run ids, filters; and what it says to a typo."""

import factories as make
import pytest
from observed import Server, published_records, records_on_disk

from analysis.comparison import read_side, read_sides
from bench.errors import UserError


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
