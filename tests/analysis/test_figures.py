"""The roofline of runs as a scene, and the two renderers; their looks were checked by eye."""

import json
import math
import re
from dataclasses import replace
from itertools import pairwise

import factories as make
import pytest

from analysis.figures import (
    draw_roofline,
    figure_html,
    interactive_figure,
    interactive_roofline,
    model_colours,
    run_scene,
    save_figure,
    single_axes,
)
from analysis.figures.rooflines.label_places import Names, Spot
from analysis.figures.rooflines.static_scene import spread
from analysis.figures.style import OTHER_MODELS
from analysis.runs.points import roofline_point

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
    return roofline_point(record, [make.ceilings_record(environment=environment, ceilings=(roof,))])


def counted_point(record_id="run-1"):
    facts = {"intensity_counted_missing": "", "traffic_amplification": 2.0}
    return replace(point(record_id), intensity_counted=5.0, executed_flops=126e9, **facts)


def legend(scene):
    return [entry.label for entry in scene.legend]


# The scene


def test_a_run_is_an_open_interval_or_where_it_was_counted_one_filled_marker():
    low, high = run_scene([point()]).marks
    assert (low.intensity_flop_per_byte, high.intensity_flop_per_byte) == (4, 10)
    assert (low.line.to_flop_per_byte, high.line) == (10, None)
    assert {low.flops_per_s, high.flops_per_s} == {100e9}
    assert (low.filled, high.filled) == (False, False)
    (mark,) = run_scene([counted_point()]).marks
    assert (mark.intensity_flop_per_byte, mark.filled, mark.line) == (5, True, None)
    assert mark.colour == model_colours(["resnet18"])["resnet18"]


def test_the_legend_explains_what_is_there():
    points = [point(), point("run-2", arch="vgg16", mode="bf16")]
    assert legend(run_scene(points)) == [
        "resnet18", "vgg16", "fp32", "bf16", "batch 10", "measured roof",
    ]  # fmt: skip
    both = run_scene([point(), counted_point("run-2")])
    assert legend(both)[3:5] == ["bytes counted", "bytes modelled"]
    assert legend(run_scene([counted_point()]))[3:] == ["bytes counted", "measured roof"]


def test_a_marker_grows_with_the_batch_size_and_the_legend_is_its_key():
    sizes = (8, 16, 32, 64, 128)
    points = [replace(point(f"run-{size}"), batch_size=size) for size in sizes]
    scene = run_scene(points)
    diameters = [mark.area_pt2**0.5 for mark in scene.marks[::2]]  # two marks a run
    steps = [larger - smaller for smaller, larger in pairwise(diameters)]
    assert steps == pytest.approx([steps[0]] * 4)  # a doubling adds the same everywhere
    assert steps[0] > 0.5
    keys = {entry.label: entry.size_pt for entry in scene.legend if "batch" in entry.label}
    assert list(keys) == ["batch 8", "batch 16", "batch 64", "batch 128"]
    assert [keys["batch 8"], keys["batch 128"]] == pytest.approx([diameters[0], diameters[-1]])


def test_limits_hold_every_run_and_ridge():
    scene = run_scene([point()])
    (low, high), (bottom, top) = scene.limits.intensity, scene.limits.flops_per_s
    assert low < 4 < 10 < high
    assert bottom < 100e9 < 200e9 < top
    assert scene.rate_label == "Attained GFLOP/s"
    fast = run_scene([], ceilings=[make.ceiling(peak_flops_per_s=989e12)])
    assert fast.rate_label == "Attained TFLOP/s"


def test_roofs_have_their_rates_and_datasheets_are_dashed():
    sheet = make.ceiling(kind="datasheet", math_mode="bf16", peak_flops_per_s=400e9)
    scene = run_scene([point()], ceilings=[sheet])
    assert [(roof.flops_per_s, roof.dashed) for roof in scene.flat_roofs] == [
        (200e9, False),
        (400e9, True),
    ]
    assert scene.flat_roofs[0].label == ("fp32", "200 GFLOP/s")
    assert {slope.label for slope in scene.slopes} == {"50 GB/s"}
    assert legend(scene)[-2:] == ["measured roof", "datasheet roof"]


def test_math_modes_that_share_a_roof_share_its_label():
    scene = run_scene([], ceilings=[make.ceiling(), make.ceiling(math_mode="tf32")])
    (roof,), (slope,) = scene.flat_roofs, scene.slopes
    assert roof.label[0] == "fp32/tf32"
    assert slope.ridge_flop_per_byte == roof.ridge_flop_per_byte == 4


@pytest.mark.parametrize("device", ["Example CPU", "Other CPU"])
def test_several_machines_are_named_at_their_roofs_and_their_runs(device):
    scene = run_scene([point(), point("run-2", label="b", device=device)])
    assert [roof.label[0] for roof in scene.flat_roofs] == ["M1 fp32", "M2 fp32"]
    assert [mark.name for mark in scene.marks] == ["", "M1", "", "M2"]
    assert legend(scene)[-2:] == ["M1: lab", "M2: b"]
    assert scene.flat_roofs[0].colour != scene.flat_roofs[1].colour
    alone = run_scene([point(), point("run-2", arch="vgg16")], ceilings=[make.ceiling()])
    assert not any(mark.name for mark in alone.marks)
    assert not any("M1" in label for label in legend(alone))


def test_a_crowd_is_drawn_thinner_and_without_names():
    few = run_scene([point(), point("b", label="b")]).marks[0]
    crowd = run_scene([point(f"run-{n}", label="ab"[n % 2]) for n in range(41)]).marks
    assert crowd[0].area_pt2 < few.area_pt2
    assert crowd[0].opacity < few.opacity
    assert not any(mark.name for mark in crowd)


def test_hovering_shows_every_number_of_a_run():
    text = "\n".join(run_scene([point()], names={"run-1": "abc123"}).marks[0].hover)
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
    counted = run_scene([counted_point()]).marks[0].hover
    assert "intensity 5 counted, 4 to 10 (eager to fused bytes) FLOP/byte" in counted
    assert (
        "counted bytes are 2 times the fused ones, executed FLOP 1.26 times the algorithmic ones"
        in counted
    )


def test_a_model_keeps_its_colour_and_the_eighth_shares_grey():
    colours = model_colours(f"model{n}" for n in range(9))
    assert len(set(colours.values())) == 8
    assert colours["model8"] == colours["model7"] == OTHER_MODELS
    assert model_colours(["b", "a", "b"]) == model_colours(["a", "b"])


# On paper


def drawn(points, width_in=6.5, height_in=4.5, **options):
    figure, axes = single_axes(width_in, height_in)
    draw_roofline(axes, points, **options)
    figure.canvas.draw()
    return figure, axes


def test_labels_stand_at_the_roofs_and_the_legend_below_the_axes():
    _, empty = drawn([], ceilings=[make.ceiling()])
    assert "fp32 200 GFLOP/s" in {text.get_text() for text in empty.texts}
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
    names = Names(axes, spots, 7)
    figure.canvas.draw()
    return figure, axes, names.placed


@pytest.mark.slow
def test_no_name_covers_another_name_or_a_marker_or_leaves_the_axes():
    spots = [Spot(0.1 * (n % 9 + 0.5), 0.1 * (n // 9 + 0.5), 3.0, f"name {n}") for n in range(80)]
    figure, axes, placed = named_spots(spots)
    assert len(placed) > 5
    page, radius = axes.get_window_extent(), 3 * figure.dpi / 72
    at = dict(zip((spot.name for spot in spots), axes.transData.transform(
        [(spot.x, spot.y) for spot in spots]), strict=True))  # fmt: skip
    for index, (name, box) in enumerate(placed):
        assert page.x0 <= box.x0 < box.x1 <= page.x1
        assert page.y0 <= box.y0 < box.y1 <= page.y1
        assert not any(box.overlaps(other) for _, other in placed[:index])
        for x, y in (place for other, place in at.items() if other != name):
            beside = box.x1 <= x - radius or x + radius <= box.x0
            assert beside or box.y1 <= y - radius or y + radius <= box.y0
    # a name without room is left out
    assert named_spots([Spot(0.5, 0.5, 4.0, "a very long name " * 9)], 1.5)[2] == []


# On a page


def test_the_page_shows_the_same_places_and_one_legend_entry_per_group():
    points = [point(), point("run-2", arch="vgg16"), point("run-3"), counted_point("run-4")]
    scene = run_scene(points)
    figure = interactive_figure(scene)
    named = [trace for trace in figure.data if trace.showlegend is not False]
    assert [trace.name for trace in named] == [
        "measured roof",
        "resnet18 fp32",
        "vgg16 fp32",
    ]
    runs = named[1]
    assert runs.x[0] == 4
    assert runs.x[4] == pytest.approx(10)
    assert runs.x[5] is None  # the next marker is not joined to it
    assert set(runs.y) == {100, None}  # GFLOP/s
    assert (runs.marker.symbol[0], runs.marker.symbol[-2]) == ("circle-open", "circle")
    assert runs.text[0].split("<br>")[1] == "run run-1"
    assert [figure.layout.xaxis.title.text, figure.layout.yaxis.title.text] == [
        "Arithmetic intensity (FLOP/byte)",
        "Attained GFLOP/s",
    ]
    assert 10 ** figure.layout.xaxis.range[0] == pytest.approx(scene.limits.intensity[0])


def test_a_page_is_self_contained_and_safe():
    figure = interactive_roofline([point(device=HOSTILE)])
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
