"""What the two renderers make of a chart: the same on paper and on a page, whole, and safe."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import samples
from observed import DRIFT, observation
from test_scenes import CHARTS, ROOF, TIMES_S, of_kernels, of_ops, point, used

from analysis.figures import (
    draw_chart,
    draw_roofline,
    figure_html,
    interactive_chart,
    kernel_chart,
    op_chart,
    run_chart,
    save_figure,
    single_axes,
)
from analysis.figures.batches import batch_charts
from analysis.figures.chart import Axis, Marks, Panel, panel_chart
from analysis.figures.rows import models_chart, real_synthetic_chart, variability_chart
from analysis.figures.static import Names, draw_panel
from analysis.figures.times import distributions_chart, trace_panel
from analysis.findings.differences import scatter_rows
from analysis.profiles import place_kernels, place_ops
from analysis.runs.groups import Runs, group_runs

HOSTILE = '</script><img src=x onerror="alert(1)">$x^2$ %{y} &amp;'


def drawn(chart):
    """The axes of the chart on paper, and the chart on a page; both are laid out."""
    figure = draw_chart(chart)
    figure.draw_without_rendering()
    page = interactive_chart(chart)
    page.to_json()
    return figure.axes, page


@pytest.mark.slow
def test_paper_and_page_show_the_same():
    """A chart of each kind; a person wrote the name of the model."""
    runs = Runs(
        observation(f"{batch}-{repeat}", 10.0 * batch + repeat, batch_size=batch, arch=HOSTILE)
        for batch in (8, 16, 32)
        for repeat in (1, 2)
    )
    groups = group_runs(runs)
    timed = observation("t", times_s=TIMES_S, findings=(DRIFT,), arch=HOSTILE)
    for chart in (
        batch_charts(runs, "throughput", {})["lab"],
        models_chart(groups, {}),
        variability_chart(scatter_rows(runs)),
        real_synthetic_chart([(groups[0], groups[1])], {}),
        distributions_chart([timed], {}),
        panel_chart([trace_panel(timed)] * 3),
        CHARTS["ratios"]["every verdict"](),
    ):
        axes, page = drawn(chart)
        assert len(axes) == len(chart.panels)
        for number, (one, panel) in enumerate(zip(axes, chart.panels, strict=True), start=1):
            suffix = "" if number == 1 else f"{number}"
            traces = [t for t in page.data if t.xaxis in (None, f"x{suffix}") and t.mode != "none"]
            limits = np.log10(panel.y.limits) if panel.y.scale == "log" else panel.y.limits
            assert page.layout[f"yaxis{suffix}"].range == pytest.approx(tuple(limits))
            assert one.get_ylim() == pytest.approx(panel.y.limits)
            assert one.get_xlim() == pytest.approx(panel.x.limits)
            paths = [line.get_xydata().tolist() for line in one.lines]
            points = {point for t in traces for point in zip(t.x, t.y, strict=True)}
            for series in panel.series:
                places = np.column_stack([series.xs, series.ys]).tolist()
                assert places in paths
                assert points >= set(map(tuple, places))
                assert len(series.hover) in (0, len(places))
        named = [trace.name for trace in page.data if trace.showlegend]
        assert len(named) == len(set(named))
        assert "<img" not in page.to_json()


def test_of_a_crowd_every_point_is_drawn_and_those_of_one_look_at_once():
    looks = [Marks("", colour, "circle") for colour in ("#000000", "#FFFFFF")]
    series = [replace(looks[n % 2], xs=(n + 1.0,), ys=(2.0 * n,)) for n in range(400)]
    _, axes = single_axes()
    draw_panel(axes, Panel(x=Axis(label="", limits=(0, 1)), y=Axis(label="", limits=(0, 1)),
                           series=tuple(series)))  # fmt: skip
    lines = [np.array(line.get_xydata()) for line in axes.lines]
    points = {tuple(xy) for line in lines for xy in line[~np.isnan(line[:, 0])].tolist()}
    assert (len(lines), points) == (2, {(n + 1.0, 2.0 * n) for n in range(400)})


def test_an_axis_has_the_ticks_that_its_kind_needs():
    chart = models_chart(group_runs([observation("a", 320.0)]), {})
    page = interactive_chart(chart)
    low, high = (10**end for end in page.layout.xaxis.range)
    assert low < 300 < 400 < high
    assert page.layout.xaxis.dtick == "D1"  # 300 and 400; of D2's, 200 and 500, none
    history = CHARTS["history"]["changed"]()
    axes, page = drawn(history)
    day = history.panels[0].series[0].xs[0]
    assert (page.layout.xaxis.type, page.data[0].x[0]) == ("date", 86_400_000 * day)
    assert "2025" in axes[0].xaxis.get_offset_text().get_text()


def test_labels_stand_at_the_roofs_and_the_legend_below_the_axes():
    figure, axes = single_axes()
    draw_roofline(axes, [point()])
    figure.canvas.draw()
    labels = {text.get_text(): text for text in axes.texts}
    assert {"fp32\n200 GFLOP/s", "50 GB/s"} <= set(labels)
    (x0, y0), (x1, y1) = axes.transData.transform([(1, 50), (2, 100)])
    along = math.degrees(math.atan2(y1 - y0, x1 - x0))
    assert labels["50 GB/s"].get_rotation() == pytest.approx(along)
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0


def named_marks(names, size_in=4.0):
    figure, axes = single_axes(size_in, size_in)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    places = [(0.1 * (n % 9 + 0.5), 0.1 * (n // 9 + 0.5)) for n in range(len(names))]
    xs, ys = zip(*places, strict=True)
    marks = Marks("", "#000000", "circle", xs=xs, ys=ys, names=tuple(names), size_pt=6.0)
    written = Names(axes, [marks])
    figure.canvas.draw()
    return figure, axes, written.placed, places


@pytest.mark.slow
def test_no_name_covers_another_name_or_a_marker_or_leaves_the_axes():
    figure, axes, placed, places = named_marks([f"name {n}" for n in range(80)])
    assert len(placed) > 5
    page, radius = axes.get_window_extent(), 3 * figure.dpi / 72
    for index, (name, box) in enumerate(placed):
        assert page.x0 <= box.x0 < box.x1 <= page.x1
        assert page.y0 <= box.y0 < box.y1 <= page.y1
        assert not any(box.overlaps(other) for _, other in placed[:index])
        for number, at in enumerate(places):
            if name != f"name {number}":
                x, y = axes.transData.transform(at)
                beside = box.x1 <= x - radius or x + radius <= box.x0
                assert beside or box.y1 <= y - radius or y + radius <= box.y0
    assert named_marks(["a very long name " * 9], 1.5)[2] == []  # one without room is left out


def chart_of(kind, count):
    if kind == "ops":
        phases = ("forward", "backward")
        return of_ops(*(
            samples.op_time(f"convolution {n}x{n} with a long name", phases[n % 2],
                            0.01 + 0.001 * n, flops=10**8 * (1 + n % 9),
                            eager_bytes=10**7 * (1 + n % 7))
            for n in range(count)
        ))  # fmt: skip
    if kind == "kernels":
        long = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_{}_kernel_cudnn"
        return of_kernels(*(
            samples.kernel(long.format(n), 0.01 + 0.001 * n, flops=10**8 * (1 + n % 9),
                           dram_bytes=10**7 * (1 + n % 5))
            for n in range(count)
        ), mode="bf16")  # fmt: skip
    archs = ["resnet18", "resnet50", "vgg16", "mobilenet_v2"]
    return run_chart([point(f"run-{n}", arch=archs[n % 4]) for n in range(count)])


@pytest.mark.parametrize(
    ("count", "size"), [(0, (3.5, 3.4)), (1, (6.5, 4.5)), (60, (3.5, 3.4)), (60, (6.5, 4.5))]
)
@pytest.mark.parametrize("kind", ["ops", "kernels", "runs"])
@pytest.mark.slow
def test_none_one_and_many_fit_the_page_and_a_file_is_the_same_each_time(
    tmp_path, kind, count, size
):
    chart = chart_of(kind, count)
    figure, axes = single_axes(*size)
    draw_panel(axes, chart.panels[0])
    png, svg = save_figure(figure, tmp_path, "figure")
    assert png.stat().st_size > 0
    text = svg.read_text(encoding="utf-8")
    assert "<svg" in text
    figure.canvas.draw()
    box, page = axes.get_tightbbox(), figure.bbox
    assert page.x0 - 1 <= box.x0 < box.x1 <= page.x1 + 1
    assert page.y0 - 1 <= box.y0 < box.y1 <= page.y1 + 1
    if count == 1:
        again, axes = single_axes(*size)
        draw_panel(axes, chart.panels[0])
        assert save_figure(again, tmp_path, "again")[1].read_text("utf-8") == text
    values = [value for one in interactive_chart(chart).data for value in (*one.x, *one.y)]
    assert all(value is None or (math.isfinite(value) and value > 0) for value in values)


@pytest.mark.slow
def test_a_page_is_self_contained_and_hostile_names_are_shown_as_text():
    counters, under = samples.counters(samples.kernel(HOSTILE)), used(device=HOSTILE)
    for chart in (
        op_chart(place_ops([samples.op_time(HOSTILE)], ROOF), under),
        kernel_chart(place_kernels(counters), under, math_mode="fp32"),
        run_chart([point(label=HOSTILE, device=HOSTILE), point("run-2", label="b")]),
    ):
        draw_chart(chart).draw_without_rendering()
        figure = interactive_chart(chart)
        shown = [f"{trace.hovertext}{trace.name}{trace.text}" for trace in figure.data]
        assert not any("<img" in text for text in shown)
        assert any("&lt;img src=x" in text for text in shown)
        assert not any("&quot;" in text for text in shown)  # Plotly does not know it
    markup = figure_html(figure, "roofline")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", markup)
    assert len(markup) < 50_000  # a page has the script once
    assert 'id="roofline"' in markup
    assert "<img src=x" not in markup
    config = json.loads(re.search(r"\{[^{}]*\"displaylogo\"[^{}]*\}", markup)[0])
    assert config["showSendToCloud"] is False
    assert "plotlyServerURL" not in markup
