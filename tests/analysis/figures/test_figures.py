"""The rooflines of runs, ops and kernels as charts, and what both renderers make of them.

Their looks were checked by eye.
"""

import json
import math
import re
from dataclasses import replace
from itertools import pairwise

import factories as make
import pytest
import samples

from analysis.figures import (
    draw_chart,
    draw_roofline,
    figure_html,
    interactive_chart,
    kernel_chart,
    model_colours,
    op_chart,
    run_chart,
    save_figure,
    single_axes,
)
from analysis.figures.chart import OTHER_MODELS, spread
from analysis.figures.names import Names, Spot
from analysis.figures.roofline_of_steps import LEVEL_COLOURS, size_pt
from analysis.figures.static import draw_panel
from analysis.profiles import place_kernels, place_ops
from analysis.roofs.ceilings import UsedCeiling
from analysis.roofs.roof import Roof
from analysis.runs.place import place

HOSTILE = '</script><img src=x onerror="alert(1)">$x^2$ %{y} &amp;'


def point(record_id="run-1", *, arch="resnet18", mode="fp32", label="lab", device="Example CPU"):
    environment = make.environment(label=label, device=make.device(name=device))
    record = make.run_record(
        record_id,
        settings={"arch": arch},
        resolved=make.resolved(math_mode=mode),
        environment=environment,
    )
    roof = make.ceiling(device=device, math_mode=mode)
    return place(record, [make.ceilings_record(environment=environment, ceilings=(roof,))])


def counted_point(record_id="run-1"):
    run, counted = point(record_id), {"intensity_counted": 5.0, "intensity_counted_missing": ""}
    counted |= {"traffic_amplification": 2.0, "executed_per_algorithmic_flop": 1.26}
    return replace(run, place=replace(run.point, **counted))


def of_runs(*points, **options):
    (panel,) = run_chart(points, **options).panels
    return panel


def legend(panel):
    return [entry.group for entry in panel.legend]


def marks(panel):
    return [one for one in panel.series if one.shape]


def places(panel):
    return [(x, y) for one in marks(panel) for x, y in zip(one.xs, one.ys, strict=True)]


def names(panel):
    return [name for one in panel.series for name in one.names if name]


def roofs(panel):
    return [one for one in panel.series if one.end_label]


def slopes(panel):
    return [one for one in panel.series if one.slope_label]


def ridges(panel):
    """The slopes, with their labels or without."""
    return [one for one in panel.series if "ridge" in one.hover[0] and not one.end_label]


def lines(panel):
    """Those of runs, ops and kernels."""
    return [one for one in panel.series if one.line_pt and "ridge" not in one.hover[0]]


# Runs: 100 GFLOP/s at 4 to 10 FLOP/byte under 200 GFLOP/s and 50 GB/s


def test_a_run_is_an_open_interval_or_where_it_was_counted_one_filled_marker():
    panel = of_runs(point())
    (line,), (ends,) = lines(panel), marks(panel)
    assert places(panel) == [(4, 100), (10, 100)]
    assert (line.xs[0], line.xs[-1], set(line.ys)) == (4, pytest.approx(10), {100})
    assert not ends.filled
    counted = of_runs(counted_point())
    assert (places(counted), lines(counted)) == ([(5, 100)], [])
    assert marks(counted)[0].filled
    assert marks(counted)[0].colour == model_colours(["resnet18"])["resnet18"]


def test_the_legend_explains_what_is_there():
    assert legend(of_runs(point(), point("run-2", arch="vgg16", mode="bf16"))) == [
        "resnet18", "vgg16", "fp32", "bf16", "batch 10", "measured roof",
    ]  # fmt: skip
    both = legend(of_runs(point(), counted_point("run-2")))
    assert both[3:5] == ["bytes counted", "bytes modelled"]
    assert legend(of_runs(counted_point()))[3:] == ["bytes counted", "measured roof"]


def test_a_marker_grows_with_the_batch_size_and_the_legend_is_its_key():
    sizes = (8, 16, 32, 64, 128)
    run = point()
    of_sizes = ({**run.settings, "batch_size": f"{size}"} for size in sizes)
    panel = of_runs(*(replace(run, settings=settings) for settings in of_sizes))
    diameters = [one.size_pt for one in marks(panel)]  # small ones are drawn on top, so last
    steps = [larger - smaller for larger, smaller in pairwise(diameters)]
    assert steps == pytest.approx([steps[0]] * 4)  # a doubling adds the same everywhere
    assert steps[0] > 0.5
    keys = {entry.group: entry.size_pt for entry in panel.legend if "batch" in entry.group}
    assert list(keys) == ["batch 8", "batch 16", "batch 64", "batch 128"]
    assert [keys["batch 128"], keys["batch 8"]] == pytest.approx([diameters[0], diameters[-1]])


def test_the_axes_hold_every_run_and_ridge_in_a_unit_that_fits():
    panel = of_runs(point())
    (low, high), (bottom, top) = panel.x.limits, panel.y.limits
    assert low < 4 < 10 < high
    assert bottom < 100 < 200 < top
    assert panel.y.label == "Attained GFLOP/s"
    fast = of_runs(ceilings=[make.ceiling(peak_flops_per_s=989e12)])
    assert (fast.y.label, roofs(fast)[0].ys[-1]) == ("Attained TFLOP/s", pytest.approx(989))


@pytest.mark.parametrize(
    ("other", "labels", "ends", "slope_ends"),
    [
        ({"math_mode": "tf32"}, ["fp32/tf32"], [200], (4, 200)),  # one roof, one label
        ({"math_mode": "bf16", "peak_flops_per_s": 8e11}, ["fp32", "bf16"], [200, 800], (16, 800)),
        ({"math_mode": "bf16", "kind": "datasheet"}, ["fp32", "bf16"], [200, 200], (4, 200)),
    ],
)
def test_roofs_have_their_rates_and_datasheets_are_dashed(other, labels, ends, slope_ends):
    panel = of_runs(ceilings=[make.ceiling(), make.ceiling(**other)])
    assert [one.end_label[0] for one in roofs(panel)] == labels
    assert [one.ys[0] for one in roofs(panel)] == ends
    slope = slopes(panel)[-1]
    assert (slope.xs[-1], slope.ys[-1]) == pytest.approx(slope_ends)
    assert (slope.ys[0] / slope.xs[0], slope.slope_label) == (pytest.approx(50), "50 GB/s")
    sheet = other.get("kind") == "datasheet"
    assert [one.dashed for one in roofs(panel)][1:] == [sheet] * (len(ends) - 1)
    assert ("datasheet roof" in legend(panel)) == sheet
    assert len(slopes(panel)) == 1 + sheet


@pytest.mark.parametrize("device", ["Example CPU", "Other CPU"])
def test_several_machines_are_named_at_their_roofs_and_their_runs(device):
    panel = of_runs(point(), point("run-2", label="b", device=device))
    assert [one.end_label[0] for one in roofs(panel)] == ["M1 fp32", "M2 fp32"]
    assert [one.names for one in marks(panel)] == [("", "M1"), ("", "M2")]
    assert legend(panel)[-2:] == ["M1: lab", "M2: b"]
    assert roofs(panel)[0].colour != roofs(panel)[1].colour
    alone = of_runs(point(), point("run-2", arch="vgg16"), ceilings=[make.ceiling()])
    assert names(alone) == []
    assert not any("M1" in label for label in legend(alone))


def test_a_crowd_is_drawn_thinner_and_without_names():
    few = of_runs(point(), point("b", label="b"))
    crowd = of_runs(*(point(f"run-{n}", label="ab"[n % 2]) for n in range(41)))
    assert marks(crowd)[0].size_pt < marks(few)[0].size_pt
    assert marks(crowd)[0].opacity < marks(few)[0].opacity
    assert names(crowd) == []


def test_a_model_keeps_its_colour_and_the_eighth_shares_grey():
    colours = model_colours(f"model{n}" for n in range(9))
    assert len(set(colours.values())) == 8
    assert colours["model8"] == colours["model7"] == OTHER_MODELS
    assert model_colours(["b", "a", "b"]) == model_colours(["a", "b"])


# Ops: 10 GFLOP/s at 10 to 20 FLOP/byte for 90 % of the time; 1 GFLOP/s elementwise at 0.1 and up

ROOF = Roof(200e9, 50e9)
BLUE = "#0072B2"
CONV = samples.op_time("convolution 1x1", "forward", 0.09, flops=9 * 10**8, eager_bytes=9 * 10**7,
                       fused_bytes=45 * 10**6)  # fmt: skip
NORM = samples.op_time("batch_norm", "backward", 0.01, flops=0, elementwise_flops=10**7,
                       eager_bytes=10**8, fused_bytes=0)  # fmt: skip


def used(caches=(), **changes):
    return UsedCeiling(make.ceiling(**changes), ROOF, "c", None, (), caches)


def of_ops(*ops, roof=ROOF, caches=()):
    under = used(caches) if roof else None
    (panel,) = op_chart(place_ops(ops, roof), under, colour=BLUE).panels
    return panel


def test_an_op_stands_at_its_eager_bytes_and_reaches_to_its_fused_ones():
    panel = of_ops(CONV, NORM)
    assert places(panel) == [pytest.approx((10, 10)), pytest.approx((0.1, 1))]
    assert [one.xs[-1] for one in lines(panel)] == pytest.approx([20, panel.x.limits[1]])
    assert [(one.filled, one.colour) for one in marks(panel)] == [(True, BLUE), (False, BLUE)]
    groups = ["forward, algorithmic FLOP", "backward, elementwise FLOP"]
    assert (legend(panel)[:2], legend(of_ops(CONV))[:1]) == (groups, groups[:1])
    assert panel.y.label == "Attained GFLOP/s"


def test_area_is_the_share_of_time_and_the_shape_the_phase():
    conv, norm = marks(of_ops(CONV, NORM))
    assert (conv.size_pt / norm.size_pt) ** 2 == pytest.approx(9)
    assert size_pt(0.0) > 0  # the shortest can be seen
    phases = ("forward", "backward", "optimizer", None)
    panel = of_ops(*(samples.op_time(phase=phase) for phase in phases))
    assert len({one.shape for one in marks(panel)}) == 4


def many(count):
    names = (f"convolution {n}x{n} with a long name" for n in range(count))
    phases, work = ("forward", "backward"), range(10**8, 10**9, 10**8)
    return [
        samples.op_time(name, phases[n % 2], 0.01 + 0.001 * n, flops=work[n % 9],
                        eager_bytes=10**7 * (1 + n % 7))
        for n, name in enumerate(names)
    ]  # fmt: skip


def test_the_long_ops_are_named_and_a_note_says_where_the_rest_of_the_time_went():
    copy = samples.op_time("copy", time_s=0.05, flops=0)
    view = samples.op_time("view", time_s=0.05, flops=None)
    panel = of_ops(CONV, NORM, copy, view)
    assert names(panel) == ["conv 1x1 fwd 45 %", "batch_norm bwd 5 %"]
    assert panel.title == (
        "Placed: 50 % of the ops' time. Ops without FLOP (copies, fills): 25 %. "
        "Not in the cost model: 25 %."
    )
    assert len(names(of_ops(*many(60)))) == 12


def test_the_roof_is_the_devices_own_with_its_memory_and_its_last_cache():
    panel = of_ops(CONV)
    assert [one.end_label for one in roofs(panel)] == [("fp32", "200 GFLOP/s")]
    assert [one.slope_label for one in slopes(panel)] == ["DRAM 50 GB/s"]
    cached = of_ops(CONV, caches=[make.cache_roof("L3", 90e9), make.cache_roof("L2", 99e9)])
    assert [one.slope_label for one in slopes(cached)] == ["DRAM 50 GB/s", "L3 90 GB/s"]
    bare = of_ops(CONV, roof=None)
    assert places(bare) == [pytest.approx((10, 10))]
    assert slopes(bare) == roofs(bare) == []


def test_ops_faster_than_dram_get_a_shade():
    fast = of_ops(samples.op_time(time_s=0.001))  # 100 MB in 1 ms: 100 GB/s
    (band,), low = fast.bands, fast.x.limits[0]
    assert band.label == "faster than DRAM: from a cache"
    assert (band.xs, band.lows, band.highs) == ((low, 4), (low * 50, 200), (200, 200))
    assert of_ops(samples.op_time(time_s=0.01)).bands == ()


def test_the_shortest_ops_do_not_stretch_the_axes():
    tiny = samples.op_time("increment", time_s=1e-5, flops=1)
    assert of_ops(CONV, tiny).y.limits[0] > 1
    assert of_ops(tiny).y.limits[0] < 1e-4


# Kernels: 100 GFLOP/s at 5, 10 and 20 FLOP/byte

CACHES = (make.cache_roof("L1", 400e9), make.cache_roof("L2", 100e9))


def of_kernels(*kernels, caches=CACHES, mode="fp32"):
    counters = samples.counters(*kernels).model_copy(update={"per_kernel": kernels})
    (panel,) = kernel_chart(place_kernels(counters), used(caches), math_mode=mode).panels
    return panel


def test_a_kernel_is_a_marker_per_level_at_one_height():
    panel = of_kernels(samples.kernel())
    assert places(panel) == [(5, 100), (10, 100), (20, 100)]
    assert [one.colour for one in marks(panel)] == list(LEVEL_COLOURS.values())
    (line,) = lines(panel)
    assert (line.xs[0], line.xs[-1]) == pytest.approx((5, 20))
    assert panel.y.label == "Executed GFLOP/s"


def test_levels_and_their_slopes_share_a_colour_and_a_legend_entry():
    panel = of_kernels(samples.kernel())
    found = {one.colour: one.ys[0] / one.xs[0] for one in ridges(panel)}
    rates = {"L1": 400, "L2": 100, "DRAM": 50}
    assert found == {LEVEL_COLOURS[level]: pytest.approx(rate) for level, rate in rates.items()}
    assert slopes(panel) == []  # the legend has their labels
    assert legend(panel)[-4:-1] == ["DRAM 50 GB/s", "L1 400 GB/s", "L2 100 GB/s"]
    (flat,) = roofs(panel)
    assert flat.xs[0] == 0.5  # where the steepest slope meets it
    alone = of_kernels(samples.kernel(), caches=(make.cache_roof("L2", None),))
    assert len(ridges(alone)) == 1
    assert legend(alone)[-2:] == ["DRAM 50 GB/s", "measured roof"]


def test_kernels_are_sized_by_time_and_a_note_counts_those_without_flop():
    long, short = samples.kernel("long", 0.06), samples.kernel("short", 0.02)
    panel = of_kernels(long, short, samples.kernel("copy", 0.02, flops=0))
    assert len(marks(panel)) == 6
    assert (marks(panel)[0].size_pt / marks(panel)[3].size_pt) ** 2 == pytest.approx(3)
    assert names(panel) == ["1 long 60 %", "2 short 20 %"]
    assert panel.title == (
        "Placed: 80 % of the kernels' time. Kernels without FLOP (1 names): 20 %."
    )
    unknown = of_kernels(samples.kernel(), samples.kernel("u", flops=None))
    assert "FLOP or time not counted: 1 names." in unknown.title


def test_a_kernel_with_flop_that_were_not_counted_is_an_arrow_and_no_value():
    known = samples.kernel("known", flops=10**9, duration_s=0.1, dram_bytes=10**8)
    half = known.replaced({"flops": "hadd: not in the file"}, flops=None, flops_at_least=10**8)
    panel = of_kernels(known, half.model_copy(update={"name": "half"}))
    shapes = {name: {one.shape for one in marks(panel) if name in one.hover[0]}
              for name in ("known", "half")}  # fmt: skip
    assert shapes == {"known": {"circle"}, "half": {"arrow-up"}}
    arrows = [one for one in marks(panel) if "half" in one.hover[0]]
    assert all(one.ys == pytest.approx((1,)) for one in arrows)
    assert all("at least" in one.hover[0] for one in arrows)
    assert panel.title.endswith("Arrows: at least so high.")


def test_hovering_shows_the_whole_name_of_a_kernel_and_what_ran_on_tensor_cores():
    name = f"at::native::foo<{'float,' * 30}int>"
    panel = of_kernels(samples.kernel(name, tensor_flops=5 * 10**8), mode="bf16")
    mark = marks(panel)[0]
    assert (mark.shape, mark.group) == ("square", "FLOP per L1 byte")
    lines = mark.hover[0].split("\n")
    assert {"executed GFLOP/s: 100", "executed GFLOP: 1", "on tensor cores: 0.5"} <= set(lines)
    assert f"full name: {name}" in "".join(lines)


# On paper


def drawn(points, width_in=6.5, height_in=4.5, **options):
    figure, axes = single_axes(width_in, height_in)
    draw_roofline(axes, points, **options)
    figure.canvas.draw()
    return figure, axes


def test_labels_stand_at_the_roofs_and_the_legend_below_the_axes():
    _, axes = drawn([point()])
    labels = {text.get_text(): text for text in axes.texts}
    assert {"fp32 200 GFLOP/s", "50 GB/s"} <= set(labels)
    (x0, y0), (x1, y1) = axes.transData.transform([(1, 50), (2, 100)])
    along = math.degrees(math.atan2(y1 - y0, x1 - x0))
    assert labels["50 GB/s"].get_rotation() == pytest.approx(along)
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0


@pytest.mark.slow
def test_an_svg_is_the_same_each_time(tmp_path):
    texts = [save_figure(drawn([point()])[0], tmp_path, name)[1].read_bytes() for name in "ab"]
    assert texts[0] == texts[1]


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


def named_spots(spots, size_in=4.0):
    figure, axes = single_axes(size_in, size_in)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.plot([0, 1], [0.72, 0.72])
    written = Names(axes, spots)
    figure.canvas.draw()
    return figure, axes, written.placed


@pytest.mark.slow
def test_no_name_covers_another_name_a_marker_or_a_line_or_leaves_the_axes():
    spots = [Spot(0.1 * (n % 9 + 0.5), 0.1 * (n // 9 + 0.5), 3.0, f"name {n}") for n in range(80)]
    figure, axes, placed = named_spots(spots)
    assert len(placed) > 5
    page, radius = axes.get_window_extent(), 3 * figure.dpi / 72
    line_y = axes.transData.transform((0, 0.72))[1]
    at = dict(zip((spot.name for spot in spots), axes.transData.transform(
        [(spot.x, spot.y) for spot in spots]), strict=True))  # fmt: skip
    for index, (name, box) in enumerate(placed):
        assert page.x0 <= box.x0 < box.x1 <= page.x1
        assert page.y0 <= box.y0 < box.y1 <= page.y1
        assert not box.y0 <= line_y <= box.y1
        assert not any(box.overlaps(other) for _, other in placed[:index])
        for x, y in (spot for other, spot in at.items() if other != name):
            beside = box.x1 <= x - radius or x + radius <= box.x0
            assert beside or box.y1 <= y - radius or y + radius <= box.y0
    # a name without room is left out
    assert named_spots([Spot(0.5, 0.5, 4.0, "a very long name " * 9)], 1.5)[2] == []


# Both renderers


def chart_of(kind, count):
    if kind == "ops":
        ops = many(count) or [samples.op_time("copy", flops=0)]
        return op_chart(place_ops(ops, ROOF), used())
    if kind == "kernels":
        long = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_{}_kernel_cudnn"
        kernels = tuple(
            samples.kernel(long.format(n), 0.01 + 0.001 * n, flops=10**8 * (1 + n % 9),
                           dram_bytes=10**7 * (1 + n % 5))
            for n in range(count)
        )  # fmt: skip
        counters = samples.counters(*kernels).model_copy(update={"per_kernel": kernels})
        return kernel_chart(place_kernels(counters), used(CACHES), math_mode="bf16")
    archs = ["resnet18", "resnet50", "vgg16", "mobilenet_v2"]
    return run_chart([point(f"run-{n}", arch=archs[n % 4]) for n in range(count)])


@pytest.mark.parametrize(
    ("count", "size"), [(0, (3.5, 3.4)), (1, (6.5, 4.5)), (60, (3.5, 3.4)), (60, (6.5, 4.5))]
)
@pytest.mark.parametrize(
    ("kind", "empty"), [("ops", "no op"), ("kernels", "no kernel"), ("runs", "no run")]
)
@pytest.mark.slow
def test_none_one_and_many_fit_the_page(tmp_path, kind, empty, count, size):
    chart = chart_of(kind, count)
    figure, axes = single_axes(*size)
    draw_panel(axes, chart.panels[0])
    png, svg = save_figure(figure, tmp_path, "figure")
    assert png.stat().st_size > 0
    assert "<svg" in svg.read_text(encoding="utf-8")
    figure.canvas.draw()
    box, page = axes.get_tightbbox(), figure.bbox
    assert page.x0 - 1 <= box.x0 < box.x1 <= page.x1 + 1
    assert page.y0 - 1 <= box.y0 < box.y1 <= page.y1 + 1
    said = {text.get_text() for text in axes.texts}
    assert (f"{empty} has a place here" in said) == (count == 0)
    figure = interactive_chart(chart)
    notes = [note.text for note in figure.layout.annotations]
    assert notes == ([] if count else [f"{empty} has a place here"])
    values = [value for trace in figure.data for value in (*trace.x, *trace.y)]
    assert all(value is None or (math.isfinite(value) and value > 0) for value in values)


def test_a_page_has_one_trace_per_look_and_one_legend_entry_per_group():
    points = [point(), point("run-2", arch="vgg16"), point("run-3"), counted_point("run-4")]
    figure = interactive_chart(run_chart(points))
    named = {trace.name: trace for trace in figure.data if trace.showlegend}
    assert set(named) == {"measured roof", "resnet18 fp32", "vgg16 fp32"}
    line, opened, counted = (t for t in figure.data if t.name == "resnet18 fp32")
    assert (line.x[0], line.x[4], line.x[5]) == (4, pytest.approx(10), None)  # the line ends
    assert len(line.x) == 2 * 6  # of two runs
    assert [(x, y) for x, y in zip(opened.x, opened.y, strict=True)] == [(4, 100), (10, 100)] * 2
    assert (opened.marker.symbol, counted.marker.symbol) == ("circle-open", "circle")
    assert opened.hovertext[0].split("<br>")[1] == "run: run-1"
    (label,) = [trace for trace in figure.data if trace.mode == "text"]
    assert (label.text, label.y) == (("fp32<br>200 GFLOP/s",), (pytest.approx(200),))
    assert 10 ** figure.layout.xaxis.range[0] == pytest.approx(4 / 6)


def test_a_page_is_self_contained_and_safe():
    figure = interactive_chart(run_chart([point(device=HOSTILE)]))
    markup = figure_html(figure, "roofline", with_script=True)
    assert "<img src=x" not in markup
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", markup)
    assert len(markup) > 3_000_000  # the script is inside
    assert markup.count("</script>") == markup.count("<script")
    assert "plotlyServerURL" not in markup.split("Plotly.newPlot")[-1]
    second = figure_html(figure, "second", with_script=False)
    assert len(second) < 50_000
    assert 'id="second"' in second
    for text in (markup, second):
        config = json.loads(re.search(r"\{[^{}]*\"displaylogo\"[^{}]*\}", text)[0])
        assert config["showSendToCloud"] is False


@pytest.mark.slow
def test_hostile_names_are_shown_as_text():
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
        assert "<img src=x" not in figure_html(figure, "x", with_script=False)
