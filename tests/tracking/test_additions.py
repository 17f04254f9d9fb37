"""What a run carries beside its record, on a real server."""

from types import SimpleNamespace

import pytest
import samples
from click.testing import CliRunner
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from stored_runs import filed, night

from analysis import pull_points, pull_records, pull_runs
from analysis.comparison.machines import gather_prices
from analysis.server.pull import LocalRoofs, addition_of
from commands.report import Report, fill_in
from tracking import log_record, schema
from tracking.connection import Server
from tracking.upload.delivery import Delivery, add_to_runs
from tracking.upload.upload import upload

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unpainted")]
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
    return fill_in(found.runs(), known)


def by_command(campaign, *more):
    """The same as a user does it, or None where the report says nothing of it."""
    out = str(campaign.records.parent / "report")
    done = CliRunner().invoke(
        Report.command(), ["--campaign", campaign.name, "--out", out, *more], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    lines = [line for line in done.output.splitlines() if line.startswith("on the server: ")]
    return lines[0].removeprefix("on the server: ") if lines else None


def placing():
    roofs = LocalRoofs()

    def place(folder, record):
        run = roofs.run_of(folder, record)
        return addition_of(run) if run else None

    return place


def test_an_upload_places_a_run_under_the_roof_beside_its_record(here, tmp_path, store):
    roofs, run, *_ = night(here)
    place = placing()
    alone = upload(*filed(tmp_path, run), place=place)
    assert not {key for key, *_ in store.metrics(alone)} & set(PLACE)
    folder, measured = filed(tmp_path, roofs)
    upload(folder, measured, place=place)
    run_id = upload(*filed(tmp_path, run), place=place)
    metrics = {key: value for key, step, at, value in store.metrics(run_id)}
    assert metrics["fraction_of_peak"] == pytest.approx(8e9 / 0.0505 / 4e11)
    tags = store.tags(run_id)
    assert tags[schema.BOUND] == "not known"  # no step of it was profiled
    assert tags[schema.ROOF_RECORD_ID] == measured.record_id
    assert tags[schema.ROOF] == "measured, 2026-11-20: matmul"
    [placed] = pull_points("attributes.run_id = '" + run_id + "'").to_dict("records")
    assert {name: placed[name] for name in PLACE} == {name: metrics[name] for name in PLACE}


def test_a_sweep_places_what_it_delivers(here, tmp_path, store):
    roofs, run, *_ = night(here)
    filed(tmp_path, roofs)
    folder, record = filed(tmp_path, run)
    Delivery(here, place=placing()).deliver(folder, record)
    [run_id] = store.runs_of(record.record_id)
    assert schema.BOUND in store.tags(run_id)


def test_a_report_fills_in_places_and_writes_nothing_twice(campaign, store):
    assert by_command(campaign, "--no-log") is None
    assert by_command(campaign) == "bound and share of the roof of runs: 2 new"
    before = [store.metrics(run_id) for run_id in campaign.run_ids]
    assert make_report(campaign) == ""
    assert before == [store.metrics(run_id) for run_id in campaign.run_ids]


def test_another_roof_takes_the_place_of_the_first_and_is_named(campaign, store):
    make_report(campaign)
    first = store.tags(campaign.run_ids[0])[schema.ROOF_RECORD_ID]
    higher = samples.ceilings_record(
        ceilings=(samples.ceiling(peak_flops_per_s=8e11),),
        created=samples.NOW.replace(year=2027),
    )
    log_record(filed(campaign.records, higher)[1], campaign.records)
    assert make_report(campaign) == "bound and share of the roof of runs: 2 changed"
    run = Server().client.get_run(campaign.run_ids[0])
    assert run.data.metrics["fraction_of_peak"] == pytest.approx(8e9 / 0.0505 / 8e11)
    assert run.data.tags[schema.ROOF_RECORD_ID] != first
    history = Server().client.get_metric_history(campaign.run_ids[0], "fraction_of_peak")
    assert len(history) == 2  # what was there before can still be seen


def test_a_price_gives_a_cost_and_another_price_another(campaign, store):
    make_report(campaign)
    cost = "bound, share of the roof and cost of runs: 2 {}"
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


def test_a_server_that_refuses_is_asked_once_an_experiment(campaign, monkeypatch):
    [*runs] = pull_records(campaign=campaign.name).runs()
    known = {run.run_id: addition_of(run) for run in runs}
    asked = []

    def refuse(*arguments, **named):
        asked.append(arguments)
        raise MlflowException("API request failed with error code 403 != 200: denied")

    monkeypatch.setattr(MlflowClient, "log_batch", refuse)
    added = add_to_runs(known)
    assert (added.new, added.refused, len(asked)) == (0, 2, 1)
    assert "(403)" in added.why
    assert "not put on 2 runs" in make_report(campaign)


def test_what_is_not_done_in_time_is_left_for_the_next_report(campaign):
    known = {run.run_id: addition_of(run) for run in pull_records(campaign=campaign.name).runs()}
    readings = iter((0.0, 0.0, 61.0))
    added = add_to_runs(known, clock=lambda: next(readings))
    assert (added.new, added.left) == (1, 1)
    assert add_to_runs(known).new == 1
