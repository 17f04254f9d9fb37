"""What a reader of a shared server sees: MLflow's own pages in a real Chromium, without network.

The pictures lie in the test's temporary folder.
"""

import math
import shutil

import pytest
import samples
from click.testing import CliRunner
from stored_runs import filed

from bench.config import RunConfig
from bench.records import SampledSeries
from commands.report import Report
from tracking.connection import Server
from tracking.upload.upload import upload

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which("chromium") is None, reason="no chromium here: apt-get install chromium"
    ),
]
ONE = "sample-cpu_resnet18_fp32_bs16_run1"
#: Seconds of a step at batch size 16.
STEPS_S = {"mobilenet_v2": 0.25, "resnet18": 0.33, "vgg16": 1.8}
THREE = [f"sample-cpu_{arch}_fp32_bs16_run1" for arch in STEPS_S]


def record_of(arch, repeat):
    """A run of a hundred steps that waver a little, of which a neighbour held one up."""
    config = RunConfig(arch=arch, batch_size=16, campaign="night", repeat=repeat)
    times = [STEPS_S[arch] * (1 + 0.03 * math.sin(step * repeat)) for step in range(100)]
    times[40] *= 1.4
    at = tuple(1000 + second for second in range(41))
    series = (
        SampledSeries(name="cpu_percent", source="psutil", times_s=at, values=(92.0,) * 41),
        SampledSeries(name="memory_used_bytes", source="psutil", times_s=at, values=(2e9,) * 41),
    )
    return samples.run_record(
        config=config,
        resolved=samples.resolved(batch_size=16),
        measurement=samples.measurement(times, images=16),
        telemetry=samples.telemetry(series=series),
        complexity=samples.complexity(arch=arch, batch_size=16),
    )


@pytest.fixture(scope="module")
def campaign(server, tmp_path_factory):
    """A swept campaign and its report in an experiment of their own; run ids by name."""
    folder = tmp_path_factory.mktemp("campaign")
    with pytest.MonkeyPatch.context() as patch:
        server.log_in(patch, "writer")
        patch.setenv("MLFLOW_EXPERIMENT_NAME", "night")
        upload(*filed(folder / "records", samples.ceilings_record()))
        runs = {
            f"sample-cpu_{arch}_fp32_bs16_run{repeat}": upload(
                *filed(folder / "records", record_of(arch, repeat))
            )
            for arch in STEPS_S
            for repeat in (1, 2)
        }
        options = ["--campaign", "night", "--out", str(folder / "report")]
        done = CliRunner().invoke(Report.command(), options)
        assert done.exit_code == 0, done.output
        runs["report"] = done.output.rpartition("logged as run ")[2].split()[0]
        runs["experiment"] = Server().client.get_run(runs[ONE]).info.experiment_id
    return runs


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # a sandbox of its own needs more rights than containers give
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def page(browser, server, campaign):
    """A reader's page; it has asked nobody but the server when the tests are over."""
    context = browser.new_context(
        http_credentials={"username": "reader", "password": server.passwords["reader"]},
        viewport={"width": 1280, "height": 900},
    )
    page = context.new_page()
    page.set_default_timeout(30_000)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(server.url)
    page.get_by_role("link", name="default").click()  # the workspace
    page.locator("[data-component-id='mlflow.assistant.chat_panel.close']").click()
    page.get_by_text("Model training", exact=True).click()
    yield page
    own = (server.url, "data:", "blob:", "about:")
    assert [url for url in asked if not url.startswith(own)] == []
    context.close()


@pytest.fixture
def opened(page, server, campaign, tmp_path):
    """Open a page of the experiment; and keep a picture of what the test made of it."""

    def open_page(path):
        page.goto(f"{server.url}/#{path.format(**campaign)}")
        return page

    yield open_page
    page.mouse.move(1, 1)
    page.screenshot(path=tmp_path / "page.png")


def chart(page, metric):
    """The values that the chart of a metric shows, by the run's name."""
    card = page.get_by_test_id("experiment-view-compare-runs-card").filter(
        has=page.get_by_text(metric, exact=True)
    )
    card.locator(".js-plotly-plot .scatterlayer .trace").first.wait_for()
    drawn = card.locator(".js-plotly-plot").evaluate("plot => plot.data")
    return {line["name"]: line["y"] for line in drawn if line.get("name") and line["y"]}


def test_the_table_of_runs_shows_our_columns(opened, page):
    opened("/experiments/{experiment}/runs?workspace=default")
    page.get_by_role("link", name=ONE).wait_for()
    page.get_by_role("button", name="Columns").click()
    listed = page.locator("[class*='tree-treenode']")
    for column in ("Dataset", "Source", "Models"):
        listed.get_by_text(column, exact=True).click()
    for column in ("throughput_images_per_s", "arch", "precision", "mlproject.device"):
        page.get_by_placeholder("Search columns").fill(column)
        listed.get_by_text(column, exact=True).click()
    page.keyboard.press("Escape")
    heads = page.get_by_role("columnheader")
    for column in ("throughput_images_per_s", "arch", "precision", "mlproject.device"):
        heads.filter(has_text=column).first.wait_for()
    page.get_by_role("gridcell", name="Sample CPU").first.wait_for()
    page.get_by_role("gridcell", name="mobilenet_v2").first.wait_for()


def test_iteration_times_of_three_runs_in_one_chart(opened, page, campaign):
    wanted = "tags.`mlproject.campaign` = 'night' AND params.precision = 'fp32' "
    wanted += "AND params.repeat = '1'"
    opened(
        "/experiments/{experiment}/runs?workspace=default&compareRunsMode=CHART&searchFilter="
        + wanted.replace("'", "%27").replace(" ", "%20").replace("`", "%60").replace("=", "%3D")
    )
    page.get_by_placeholder("Search metric charts").fill("^iteration_time_ms$")
    lines = chart(page, "iteration_time_ms")
    assert lines.keys() == set(THREE)
    assert {len(times_ms) for times_ms in lines.values()} == {100}
    slowest_ms = max(map(max, lines.values()))
    assert slowest_ms == pytest.approx(1.8 * 1000 * 1.4, rel=0.05)


def test_the_report_is_shown_in_the_page(opened, page):
    opened("/experiments/{experiment}/runs/{report}/artifacts/report/report.html?workspace=default")
    shown = page.frame_locator("iframe")
    shown.get_by_role("heading", name="Training steps under their roofs").wait_for()
    roofline = shown.locator(".js-plotly-plot").first
    roofline.evaluate("plot => plot.scrollIntoView({block: 'center'})")
    roofline.locator(".scatterlayer .trace").first.wait_for()
