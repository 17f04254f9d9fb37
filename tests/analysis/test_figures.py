"""What the figures show; their looks were checked by eye."""

import json
import math
import re
from dataclasses import replace

import factories as make
import pytest
from matplotlib.colors import same_color

from analysis.figures import (
    draw_roofline,
    figure_html,
    interactive_roofline,
    model_colours,
    save_figure,
    single_axes,
)
from analysis.figures.roof_labels import spread
from analysis.figures.roofs import collect_roofs
from analysis.figures.style import OTHER_MODELS
from analysis.runs.points import roofline_point
from bench.config import RunConfig
from bench.records import RunRecord

HOSTILE = "</script><img src=x onerror=alert(1)>$x^2$ %{y} &amp;"


def point(record_id="run-1", *, arch="resnet18", mode="fp32", label="lab", device="Example CPU"):
    environment = make.environment(label=label, device=make.device(name=device))
    record: RunRecord = make.run_record(
        record_id,
        config=RunConfig(arch=arch, batch_size=10),
        resolved=make.resolved(math_mode=mode),
        environment=environment,
    )
    roof = make.ceiling(device=device, math_mode=mode)
    return roofline_point(record, [make.ceilings_record(environment=environment, ceilings=(roof,))])


def drawn(points, width_in=6.5, height_in=4.5, **options):
    figure, axes = single_axes(width_in, height_in)
    draw_roofline(axes, points, **options)
    figure.canvas.draw()
    return figure, axes


def run_lines(axes):
    """Lines with a marker: the runs; roofs have none."""
    return [line for line in axes.lines if line.get_marker() not in ("", "None", None)]


def test_without_counters_a_run_is_an_open_interval():
    _, axes = drawn([point()])
    (line,) = run_lines(axes)
    assert list(line.get_xdata()) == [4, 10]
    assert list(line.get_ydata()) == [100, 100]  # GFLOP/s
    assert line.get_markerfacecolor() == "white"


def test_a_counted_run_is_one_filled_marker():
    counted = replace(point(), intensity_counted=6.0)
    _, axes = drawn([counted])
    (line,) = run_lines(axes)
    assert list(line.get_xdata()) == [6]
    assert same_color(line.get_markerfacecolor(), model_colours(["resnet18"])["resnet18"])


def test_the_legend_tells_counted_from_modelled_bytes_where_any_were_counted():
    def entries(*points):
        return [text.get_text() for text in drawn(points)[1].get_legend().get_texts()]

    counted = replace(point("run-2"), intensity_counted=6.0)
    assert entries(point(), counted)[2:4] == ["bytes counted", "bytes modelled"]
    assert entries(counted)[2:] == ["bytes counted", "measured roof"]
    assert entries(point())[2:] == ["measured roof"]


def test_axes_are_logarithmic_and_hold_every_run_and_ridge():
    _, axes = drawn([point()])
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert axes.get_xlim()[0] < 4 < 10 < axes.get_xlim()[1]
    assert axes.get_ylim()[0] < 100 < 200 < axes.get_ylim()[1]
    assert axes.get_ylabel() == "Attained GFLOP/s"


def test_roofs_carry_their_rates():
    _, axes = drawn([point()])
    labels = {text.get_text() for text in axes.texts}
    assert {"fp32 200 GFLOP/s", "50 GB/s"} <= labels


def test_a_slopes_label_runs_along_its_line():
    _, axes = drawn([point()])
    (label,) = [text for text in axes.texts if text.get_text() == "50 GB/s"]
    (x0, y0), (x1, y1) = axes.transData.transform([(1, 50), (2, 100)])
    assert label.get_rotation() == pytest.approx(math.degrees(math.atan2(y1 - y0, x1 - x0)))


def test_measured_roofs_are_solid_and_datasheet_roofs_dashed():
    sheet = make.ceiling(kind="datasheet", math_mode="bf16", peak_flops_per_s=400e9)
    _, axes = drawn([point()], ceilings=[sheet])
    styles = {
        max(line.get_ydata()): line.get_linestyle()
        for line in axes.lines
        if line not in run_lines(axes) and line.get_transform() == axes.transData
    }
    assert styles == {200: "-", 400: "--"}


def test_math_modes_that_share_a_roof_share_its_label():
    roofs = collect_roofs([], [make.ceiling(), make.ceiling(math_mode="tf32")])
    assert [roof.modes for roof in roofs.flat] == [("fp32", "tf32")]
    assert len(roofs.sloped) == 1


@pytest.mark.parametrize("device", ["Example CPU", "Other CPU"])
def test_several_machines_are_named_at_their_roofs_and_their_runs(device):
    _, axes = drawn([point(), point("run-2", label="b", device=device)])
    labels = [text.get_text() for text in axes.texts]
    assert {"M1 fp32 200 GFLOP/s", "M2 fp32 200 GFLOP/s"} <= set(labels)
    assert labels.count("M1") == labels.count("M2") == 1
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names[-2:] == ["M1: lab", "M2: b"]


def test_one_machine_needs_no_name():
    _, axes = drawn([point(), point("run-2", arch="vgg16")], ceilings=[make.ceiling()])
    assert not any("M1" in text.get_text() for text in axes.texts)


def test_the_legend_names_models_and_arithmetic_below_the_axes():
    _, axes = drawn([point(), point("run-2", arch="vgg16", mode="bf16")])
    legend = axes.get_legend()
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["resnet18", "vgg16", "fp32", "bf16", "measured roof"]
    assert legend.get_window_extent().y1 < axes.get_window_extent().y0


@pytest.mark.parametrize("size", [(3.5, 3.0), (7.0, 5.0)])
@pytest.mark.parametrize("count", [0, 1, 200])
def test_none_one_and_many_runs_fit_the_page(tmp_path, size, count):
    archs = ["resnet18", "resnet50", "vgg16", "mobilenet_v2"]
    points = [point(f"run-{i}", arch=archs[i % 4]) for i in range(count)]
    figure, axes = drawn(points, *size)
    png, svg = save_figure(figure, tmp_path, "roofline")
    assert png.stat().st_size > 0
    assert "<svg" in svg.read_text(encoding="utf-8")
    page = figure.bbox
    box = axes.get_tightbbox()
    assert box.x0 >= page.x0 - 1
    assert box.x1 <= page.x1 + 1
    assert box.y0 >= page.y0 - 1
    assert len(run_lines(axes)) == count
    if not count:
        assert "no run has a place here" in {text.get_text() for text in axes.texts}


def test_an_svg_is_the_same_each_time(tmp_path):
    texts = []
    for name in ("a", "b"):
        figure, _ = drawn([point()])
        texts.append(save_figure(figure, tmp_path, name)[1].read_bytes())
    assert texts[0] == texts[1]


def test_a_model_keeps_its_colour_and_the_eighth_shares_grey():
    colours = model_colours(f"model{n}" for n in range(9))
    assert len(set(colours.values())) == 8
    assert colours["model8"] == colours["model7"] == OTHER_MODELS
    assert model_colours(["b", "a", "b"]) == model_colours(["a", "b"])


@pytest.mark.parametrize(
    ("heights", "expected"),
    [
        ([], []),
        ([0.2, 0.8], [0.2, 0.8]),
        ([0.5, 0.55], [0.5, 0.6]),
        ([0.9, 0.95, 0.97], [0.8, 0.9, 1.0]),
    ],
)
def test_labels_are_spread_no_further_than_needed(heights, expected):
    assert spread(heights, 0.1) == pytest.approx(expected)


def test_hostile_names_are_drawn_as_text():
    drawn([point(device=HOSTILE)])
    drawn([point(), point("run-2", label="b", device=HOSTILE)])  # named on its roof


def test_interactive_hover_holds_the_numbers():
    figure = interactive_roofline([point()], names={"run-1": "abc123"})
    (runs,) = [trace for trace in figure.data if trace.mode == "lines+markers"]
    text = runs.text[0]
    for part in (
        "lab resnet18 fp32 (fp32) batch 10",
        "run abc123",
        "attained 100 GFLOP/s",
        "intensity 4 to 10 (eager to fused bytes) FLOP/byte",
        "bytes not counted: not profiled",
        "attainable 200 GFLOP/s",
        "50 % of the roof, 50 % of the compute peak",
        "traffic 200 to 500 ms, data wait 0.0 %",
        "bound: compute",
        make.MEASURED,
    ):
        assert part in text
    assert runs.x[0] == 4
    assert runs.x[4] == pytest.approx(10)
    assert runs.x[5] is None  # the next run does not hang on to it


def test_interactive_hover_of_a_counted_run_holds_all_three_intensities():
    counted = replace(
        point(),
        intensity_counted=5.0,
        intensity_counted_missing="",
        traffic_amplification=2.0,
        executed_flops=126e9,
    )
    (runs,) = [
        trace for trace in interactive_roofline([counted]).data if trace.mode == "lines+markers"
    ]
    assert list(runs.x) == [5, None]
    assert runs.marker.symbol[0] == "circle"  # filled
    assert "intensity 5 counted, 4 to 10 (eager to fused bytes) FLOP/byte" in runs.text[0]
    assert (
        "counted bytes are 2 times the fused ones, executed FLOP 1.26 times the algorithmic"
        in (runs.text[0])
    )


def test_interactive_hover_shows_markup_as_text():
    figure = interactive_roofline([point(label=HOSTILE, device=HOSTILE)])
    hovers = [str(trace.hovertemplate) + str(trace.text) for trace in figure.data]
    assert all("&lt;img src=x" in hover and "<img" not in hover for hover in hovers)


def test_the_interactive_legend_filters_by_machine_model_and_arithmetic():
    points = [point(), point("run-2", arch="vgg16"), point("run-3"), point("run-4", mode="bf16")]
    figure = interactive_roofline(points)
    names = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert names == [
        "roof: lab (measured)",
        "lab resnet18 fp32",
        "lab vgg16 fp32",
        "lab resnet18 bf16",
    ]


def test_an_interactive_roofline_without_runs_says_so():
    (note,) = interactive_roofline([]).layout.annotations
    assert note.text == "no run has a place here"


def test_interactive_html_is_self_contained_and_safe():
    markup = figure_html(
        interactive_roofline([point(device=HOSTILE)]), "roofline", with_script=True
    )
    assert "<img src=x" not in markup
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", markup)
    assert len(markup) > 3_000_000  # the script is inside
    assert markup.count("</script>") == markup.count("<script")
    config = json.loads(re.search(r"\{[^{}]*\"displaylogo\"[^{}]*\}", markup)[0])
    assert config["showSendToCloud"] is False
    assert "plotlyServerURL" not in markup.split("Plotly.newPlot")[-1]
