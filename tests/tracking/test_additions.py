"""What a run carries beside its record, and the means of repeats, on a real server."""

from types import SimpleNamespace

import pytest
import samples
from click.testing import CliRunner
from mlflow.exceptions import MlflowException
from stored_runs import filed, night

from analysis import compare, place_runs, pull_points, pull_records, pull_runs
from analysis.comparison.machines.prices import gather_prices
from analysis.runs.tracked.additions import RoofsBeside, addition_of, summaries_of
from commands.analyse.report import command as report
from commands.views.filled_in import fill_in
from commands.views.options import WantedRuns
from tracking import log_record, schema
from tracking.reading.tracked_runs import search_runs
from tracking.store import open_client
from tracking.upload import additions
from tracking.upload.additions import add_to_runs
from tracking.upload.copy_runs import Copier
from tracking.upload.delivery import Delivery
from tracking.upload.summary_runs import write_summaries
from tracking.upload.upload import upload

pytestmark = pytest.mark.slow
PLACE = ("fraction_of_roof_min", "fraction_of_roof_max", "fraction_of_peak")


@pytest.fixture
def here(server, monkeypatch, request):
    """The server as MLflow's own, and an experiment of this test's."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    return request.node.name


@pytest.fixture
def campaign(here, tmp_path):
    """Roofs, and two repeats in a campaign of this test's: the records, and the run ids."""
    roofs, *runs = night(here)
    records = tmp_path / "records"
    kept = [filed(records, record)[1] for record in (roofs, *runs[:2])]
    return SimpleNamespace(
        name=here,
        records=records,
        run_ids=[log_record(record, records) for record in kept][1:],
    )


def make_report(campaign, filter_string="", *prices):
    """Return the line that a report of the campaign has on what is on the server now."""
    found, known = pull_records(filter_string, campaign=campaign.name), gather_prices(prices, None)
    return fill_in(found, found.runs(), WantedRuns(filter_string, campaign.name, ()), known)


def by_command(campaign, *more):
    """The same as a user does it, or None where the report says nothing of it."""
    out = str(campaign.records.parent / "report")
    done = CliRunner().invoke(
        report, ["--campaign", campaign.name, "--out", out, *more], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    lines = [line for line in done.output.splitlines() if line.startswith("on the server: ")]
    return lines[0].removeprefix("on the server: ") if lines else None


def summaries_there(campaign):
    kind = schema.runs_filter("", campaign.name, kind=schema.SUMMARY)
    return search_runs(kind)


def test_an_upload_places_a_run_under_the_roof_beside_its_record(here, tmp_path, store):
    roofs, run, *_ = night(here)
    place = RoofsBeside()
    alone = upload(*filed(tmp_path, run), place=place)
    assert not {key for key, *_ in store.metrics(alone)} & set(PLACE)
    folder, measured = filed(tmp_path, roofs)
    upload(folder, measured, place=place)
    run_id = upload(*filed(tmp_path, run), place=place)
    metrics = {key: value for key, step, at, value in store.metrics(run_id)}
    assert metrics["fraction_of_peak"] == pytest.approx(8e9 / 0.0505 / 4e11)
    tags = store.tags(run_id)
    assert tags[schema.BOUND].rstrip("?") in ("memory", "compute", "overhead")
    assert tags[schema.ROOF_RECORD_ID] == measured.record_id
    assert tags[schema.ROOF] == "measured, 2026-11-20: matmul"
    [placed] = pull_points("attributes.run_id = '" + run_id + "'").to_dict("records")
    assert {name: placed[name] for name in PLACE} == {name: metrics[name] for name in PLACE}


def test_a_sweep_places_what_it_delivers(here, tmp_path, store):
    roofs, run, *_ = night(here)
    filed(tmp_path, roofs)
    folder, record = filed(tmp_path, run)
    Delivery(here, place=RoofsBeside()).deliver(folder, record)
    [run_id] = store.runs_of(record.record_id)
    assert schema.BOUND in store.tags(run_id)


def test_a_report_fills_in_places_and_means_and_writes_nothing_twice(campaign, store):
    assert by_command(campaign, "--no-log") is None
    line = by_command(campaign)
    assert line == "bound and share of the roof: new on 2 runs; means of repeats: 1 new"
    [mean] = summaries_there(campaign)
    rates = pull_runs(campaign=campaign.name)["throughput_images_per_s"]
    estimate = summaries_of(pull_records(campaign=campaign.name).runs())[0]
    assert mean.metrics == estimate.metrics
    assert mean.metrics["repeats"] == 2
    assert rates.min() < mean.metrics["images_per_s_mean"] < rates.max()
    assert mean.metrics["images_per_s_low"] < rates.min()
    assert mean.status == "FINISHED"
    assert (mean.name, mean.params["arch"]) == (
        "sample-cpu_resnet18_fp32_bs8_mean_of_2",
        "resnet18",
    )
    assert mean.tags[schema.NOTE].count(campaign.run_ids[0]) == 1
    before = [store.metrics(run_id) for run_id in (*campaign.run_ids, mean.run_id)]
    assert make_report(campaign) == ""
    assert before == [store.metrics(run_id) for run_id in (*campaign.run_ids, mean.run_id)]
    assert len(summaries_there(campaign)) == 1


def test_another_roof_takes_the_place_of_the_first_and_is_named(campaign, store):
    make_report(campaign)
    first = store.tags(campaign.run_ids[0])[schema.ROOF_RECORD_ID]
    higher = samples.ceilings_record(
        ceilings=(samples.ceiling(peak_flops_per_s=8e11),),
        created=samples.NOW.replace(year=2027),
    )
    log_record(filed(campaign.records, higher)[1], campaign.records)
    assert make_report(campaign) == "bound and share of the roof: changed on 2 runs"
    run = open_client().get_run(campaign.run_ids[0])
    assert run.data.metrics["fraction_of_peak"] == pytest.approx(8e9 / 0.0505 / 8e11)
    assert run.data.tags[schema.ROOF_RECORD_ID] != first
    history = open_client().get_metric_history(campaign.run_ids[0], "fraction_of_peak")
    assert len(history) == 2  # what was there before can still be seen


def test_a_mean_follows_its_repeats(campaign):
    make_report(campaign)
    third = night(campaign.name)[1].model_copy(update={"measurement": samples.measurement((0.06,))})
    added = log_record(filed(campaign.records, third)[1], campaign.records)
    assert make_report(campaign).endswith("; means of repeats: 1 changed")
    [mean] = summaries_there(campaign)
    assert mean.metrics["repeats"] == 3
    assert mean.name.endswith("_mean_of_3")
    for run_id in (added, campaign.run_ids[0]):
        open_client().delete_run(run_id)
    assert make_report(campaign) == "means of repeats: 1 removed"
    assert summaries_there(campaign) == []


def test_a_price_gives_a_cost_and_another_price_another(campaign, store):
    make_report(campaign)
    cost = "bound, share of the roof and cost: {} on 2 runs"
    assert make_report(campaign, "", "sample-cpu=0.72/h") == cost.format("new")
    assert make_report(campaign, "", "sample-cpu=0.72/h") == ""
    assert make_report(campaign) == ""
    row = pull_runs(campaign=campaign.name).iloc[0]
    per_s = row["throughput_images_per_s"]
    assert row["cost_per_million_images"] == pytest.approx(0.72 / 3600 / per_s * 1e6)
    assert row["price"] == "0.72 USD/h, undated, given by --price"
    assert make_report(campaign, "", "sample-cpu=1.44/h spot") == cost.format("changed")
    assert store.tags(row["run_id"])[schema.PRICE] == "1.44 USD/h spot, undated, given by --price"
    again = pull_runs(campaign=campaign.name).iloc[0]
    assert again["cost_per_million_images"] == pytest.approx(2 * row["cost_per_million_images"])


def test_a_choice_that_may_cut_a_group_leaves_its_mean(campaign):
    make_report(campaign)
    one = f"attributes.run_id = '{campaign.run_ids[0]}'"
    assert make_report(campaign, one) == ""
    assert summaries_there(campaign)[0].metrics["repeats"] == 2


def test_two_reports_at_once_leave_one_mean(campaign):
    runs = pull_records(campaign=campaign.name).runs()
    means = summaries_of(runs)
    write_summaries(means, {campaign.name})
    client = open_client()
    [first] = summaries_there(campaign)
    where = client.get_run(first.run_id).info.experiment_id
    tags = {name: text for name, text in first.tags.items() if name.startswith("mlproject.")}
    client.create_run(where, tags=tags)  # as another process that made it too
    assert write_summaries(means, {campaign.name}).removed == 1
    assert len(summaries_there(campaign)) == 1
    assert write_summaries([], {"another"}).removed == 0


def test_nothing_that_counts_runs_counts_a_mean(campaign, embedded, tmp_path):
    counts = counted(campaign, tmp_path)
    make_report(campaign)
    [mean] = summaries_there(campaign)
    assert counted(campaign, tmp_path) == counts
    open_client().update_run(mean.run_id, status="RUNNING")  # as if its writer had died
    assert make_report(campaign) == "means of repeats: 1 changed"


def counted(campaign, tmp_path):
    """How many runs of the campaign each part that counts runs finds."""
    name, server = campaign.name, open_client().tracking_uri
    records = pull_records(campaign=name)
    return [
        len(pull_runs(campaign=name, roofs=True)),
        len(pull_points(campaign=name)),
        len(records.measurements),
        len(records.imported),
        len(compare(f"campaign={name}", night_elsewhere(name))),
        len(Delivery(name).runs_elsewhere()),
        len(Copier(server, f"sqlite:///{tmp_path}/mlflow.db").runs(schema.runs_filter("", name))),
    ]


def night_elsewhere(name):
    roofs, *runs = night(name)
    faster = [
        run.model_copy(
            update={
                "record_id": f"other-{number}",
                "environment": samples.environment(label="other"),
            }
        )
        for number, run in enumerate(runs)
    ]
    return place_runs(faster, [roofs])


def test_a_server_that_refuses_is_asked_once_an_experiment(campaign, monkeypatch):
    [*runs] = pull_records(campaign=campaign.name).runs()
    known = {run.run_id: addition_of(run) for run in runs}
    asked = []

    def refuse(*arguments, **named):
        asked.append(arguments)
        raise MlflowException("API request failed with error code 403 != 200: denied")

    monkeypatch.setattr(additions, "log_all", refuse)
    added = add_to_runs(known)
    assert (added.new, added.refused, len(asked)) == (0, 2, 1)
    assert "(403)" in added.why
    assert make_report(campaign) == (
        "bound and share of the roof not put on 2 runs (these credentials may not do that (403): "
        "ask for the right to write)"
    )


def test_what_is_not_done_in_time_is_left_for_the_next_report(campaign):
    known = {run.run_id: addition_of(run) for run in pull_records(campaign=campaign.name).runs()}
    readings = iter((0.0, 0.0, 61.0))
    added = add_to_runs(known, clock=lambda: next(readings))
    assert (added.new, added.left) == (1, 1)
    assert add_to_runs(known).new == 1


def test_a_single_run_and_records_on_disk_have_no_mean():
    roofs, *runs = night("c")
    ids = {"20261120T100000Z-00000001": "r1"}
    [single] = place_runs(runs[:1], [roofs], run_ids=ids)
    assert summaries_of([single]) == []
    assert summaries_of(place_runs(runs[:2], [roofs])) == []  # from disk: no runs of a server
