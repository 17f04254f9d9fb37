"""What the per-op and per-kernel rooflines show; their looks were checked by eye."""

import json
import math
import re

import factories as make
import pytest
import samples
from matplotlib.collections import PathCollection
from matplotlib.colors import same_color

from analysis.figures import (
    draw_kernel_roofline,
    draw_op_roofline,
    figure_html,
    interactive_kernel_roofline,
    interactive_op_roofline,
    save_figure,
    single_axes,
)
from analysis.figures.kernel_roofline import missing_levels
from analysis.figures.names import Names, Spot
from analysis.figures.style import LEVEL_COLOURS, area_pt2
from analysis.profiles.kernel_places import place_kernels
from analysis.profiles.op_places import place_ops
from analysis.roofs.ceilings import UsedCeiling
from analysis.roofs.roof import Roof

ROOF = Roof(200e9, 50e9)
CACHES = (make.cache_roof("L1", 400e9), make.cache_roof("L2", 100e9))
HOSTILE = "</script><img src=x onerror=alert(1)>$x^2$ %{y} &amp;"
BLUE = "#0072B2"

#: 10 GFLOP/s at 10 to 20 FLOP/byte for 90 % of the time; 1 GFLOP/s elementwise at 0.1 and up.
CONV = samples.op_time("convolution 1x1", "forward", 0.09, flops=9 * 10**8, eager_bytes=9 * 10**7,
                       fused_bytes=45 * 10**6)  # fmt: skip
NORM = samples.op_time("batch_norm", "backward", 0.01, flops=0, elementwise_flops=10**7,
                       eager_bytes=10**8, fused_bytes=0)  # fmt: skip


def used(caches=(), **changes):
    return UsedCeiling(make.ceiling(**changes), ROOF, "c", None, (), caches)


def drawn_ops(*ops, width_in=6.5, height_in=4.5, roofs=None, **changes):
    figure, axes = single_axes(width_in, height_in)
    places = place_ops(samples.op_profile(*ops, **changes), ROOF if roofs is None else None)
    draw_op_roofline(axes, places, used() if roofs is None else None, colour=BLUE)
    figure.canvas.draw()
    return figure, axes


def drawn_kernels(*kernels, caches=CACHES, width_in=6.5, height_in=4.5, mode="fp32"):
    figure, axes = single_axes(width_in, height_in)
    places = place_kernels(samples.counters(*kernels)) if kernels else place_kernels(EMPTY)
    draw_kernel_roofline(axes, places, used(caches), math_mode=mode)
    figure.canvas.draw()
    return figure, axes


EMPTY = samples.counters().model_copy(update={"per_kernel": ()})


def markers(axes):
    return [found for found in axes.collections if isinstance(found, PathCollection)]


def places_of(axes):
    return [tuple(map(float, found.get_offsets()[0])) for found in markers(axes)]


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def names(axes):
    (found,) = [artist for artist in axes.get_children() if isinstance(artist, Names)]
    return found


def whiskers(axes):
    return [
        [float(x) for x in line.get_xdata()]
        for line in axes.lines
        if line.get_alpha() is not None and line.get_transform() == axes.transData
    ]


# Ops


def test_an_op_stands_at_its_eager_bytes_and_reaches_to_its_fused_ones():
    _, axes = drawn_ops(CONV)
    assert places_of(axes) == [(10, pytest.approx(10))]  # GFLOP/s
    assert whiskers(axes) == [[10, 20]]


def test_an_op_that_moves_nothing_when_fused_reaches_to_the_edge():
    _, axes = drawn_ops(NORM)
    assert whiskers(axes) == [[pytest.approx(0.1), pytest.approx(axes.get_xlim()[1])]]


def test_algorithmic_flop_are_filled_and_elementwise_ones_open():
    _, axes = drawn_ops(CONV, NORM)
    conv, norm = markers(axes)
    assert same_color(conv.get_facecolor()[0][:3], BLUE)
    assert same_color(norm.get_facecolor()[0][:3], "white")
    assert same_color(norm.get_edgecolor()[0][:3], BLUE)
    assert {"algorithmic FLOP", "elementwise FLOP"} <= set(legend(axes))
    _, axes = drawn_ops(CONV)
    assert "elementwise FLOP" not in legend(axes)


def test_area_is_the_share_of_time():
    _, axes = drawn_ops(CONV, NORM)
    conv, norm = (float(found.get_sizes()[0]) for found in markers(axes))
    assert conv / norm == pytest.approx(9)
    assert area_pt2(0.0) > 0  # the shortest can be seen


def test_phases_have_shapes_of_their_own():
    ops = [samples.op_time(phase=phase) for phase in ("forward", "backward", "optimizer", None)]
    _, axes = drawn_ops(*ops)
    shapes = {found.get_paths()[0].vertices.tobytes() for found in markers(axes)}
    assert len(shapes) == 4
    assert legend(axes)[:4] == ["forward", "backward", "optimizer", "whole step"]


def test_the_long_ops_are_named_and_the_rest_of_the_time_is_told():
    copy = samples.op_time("copy", time_s=0.05, flops=0)
    view = samples.op_time("view", time_s=0.05, flops=None)
    _, axes = drawn_ops(CONV, NORM, copy, view)
    assert {name for name, _ in names(axes).placed} == {
        "conv 1x1 fwd 45 %",
        "batch_norm bwd 5 %",
    }
    assert axes.get_title("left").replace("\n", " ") == (
        "Placed: 50 % of the ops' time. Ops without FLOP (copies, fills): 25 %. "
        "Not in the cost model: 25 %."
    )


def test_the_roof_is_the_devices_own_with_its_memory():
    _, axes = drawn_ops(CONV)
    labels = {text.get_text() for text in axes.texts}
    assert {"fp32 200 GFLOP/s", "DRAM 50 GB/s"} <= labels
    assert axes.get_ylabel() == "Attained GFLOP/s"


def test_a_last_level_cache_that_was_measured_has_a_slope():
    figure, axes = single_axes()
    places = place_ops(samples.op_profile(CONV), ROOF)
    draw_op_roofline(axes, places, used([make.cache_roof("L3", 90e9)]))
    figure.canvas.draw()
    assert {"L3 90 GB/s", "DRAM 50 GB/s"} <= {text.get_text() for text in axes.texts}


def test_ops_faster_than_dram_get_a_shade_and_its_words():
    fast = samples.op_time(time_s=0.001)  # 100 MB in 1 ms: 100 GB/s
    _, axes = drawn_ops(fast)
    assert "faster than DRAM: from a cache" in legend(axes)
    _, axes = drawn_ops(samples.op_time(time_s=0.01))
    assert "faster than DRAM: from a cache" not in legend(axes)


def test_the_shortest_ops_do_not_stretch_the_axes():
    tiny = samples.op_time("increment", time_s=1e-5, flops=1)
    _, axes = drawn_ops(CONV, tiny)
    assert axes.get_ylim()[0] > 1  # GFLOP/s
    _, alone = drawn_ops(tiny)
    assert alone.get_ylim()[0] < 1e-4


def test_without_a_roof_the_ops_are_drawn_alone():
    _, axes = drawn_ops(CONV, roofs=())
    assert places_of(axes) == [(10, pytest.approx(10))]
    assert not any(text.get_text() for text in axes.texts)


def many(count):
    return [
        samples.op_time(
            f"convolution {n}x{n} with a long name", "backward" if n % 2 else "forward",
            0.01 + 0.001 * n, flops=10**8 * (1 + n % 9), eager_bytes=10**7 * (1 + n % 7),
        )
        for n in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("size", [(3.5, 3.4), (6.5, 4.5)])
@pytest.mark.parametrize("count", [0, 1, 60])
def test_none_one_and_many_ops_fit_the_page(tmp_path, size, count):
    ops = many(count) or [samples.op_time("copy", flops=0)]
    figure, axes = drawn_ops(*ops, width_in=size[0], height_in=size[1])
    fits(figure, axes, tmp_path)
    assert len(markers(axes)) == count
    said = {text.get_text() for text in axes.texts}
    assert ("no op has a place here" in said) == (count == 0)


def fits(figure, axes, folder):
    png, svg = save_figure(figure, folder, "figure")
    assert png.stat().st_size > 0
    assert "<svg" in svg.read_text(encoding="utf-8")
    figure.canvas.draw()
    box, page = axes.get_tightbbox(), figure.bbox
    assert box.x0 >= page.x0 - 1
    assert box.y0 >= page.y0 - 1
    assert box.y1 <= page.y1 + 1


# Names


@pytest.mark.parametrize("count", [1, 8, 60])
def test_no_name_covers_another_or_leaves_the_axes(count):
    _, axes = drawn_ops(*many(count))
    placed = [box for _, box in names(axes).placed]
    assert placed
    page = axes.get_window_extent()
    for index, box in enumerate(placed):
        assert page.x0 <= box.x0
        assert box.x1 <= page.x1
        assert page.y0 <= box.y0
        assert box.y1 <= page.y1
        assert not any(box.overlaps(other) for other in placed[:index])


def test_no_name_covers_a_marker_of_another():
    figure, axes = single_axes()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    around = [(0.5 + 0.06 * across, 0.5 + 0.06 * up) for across in (-1, 0, 1) for up in (-1, 0, 1)]
    others = [Spot(x, y, 4.0) for x, y in around if (x, y) != (0.5, 0.5)]
    named = Names(axes, [Spot(0.5, 0.5, 4.0, "a name"), *others], 7)
    figure.canvas.draw()
    ((_, box),) = named.placed
    radius = 4 * figure.dpi / 72
    for x, y in axes.transData.transform([(spot.x, spot.y) for spot in others]):
        beside = box.x1 <= x - radius or x + radius <= box.x0
        assert beside or box.y1 <= y - radius or y + radius <= box.y0


def test_a_name_without_room_is_left_out():
    figure, axes = single_axes(1.5, 1.5)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    named = Names(axes, [Spot(0.5, 0.5, 4.0, "a very long name " * 9)], 7)
    figure.canvas.draw()
    assert named.placed == []


# Kernels


def test_a_kernel_is_a_marker_per_level_at_one_height():
    _, axes = drawn_kernels(samples.kernel())
    assert places_of(axes) == [(5, 100), (10, 100), (20, 100)]
    colours = [LEVEL_COLOURS[level] for level in ("L1", "L2", "DRAM")]
    for found, colour in zip(markers(axes), colours, strict=True):
        assert same_color(found.get_facecolor()[0][:3], colour)
    assert axes.get_ylabel() == "Executed GFLOP/s"


def slopes(axes):
    """Colour of each line that rises, by its rate in GB/s."""
    found = {}
    for line in axes.lines:
        (_, x1), (y0, y1) = line.get_xdata(), line.get_ydata()
        if y1 > y0 and line.get_transform() == axes.transData:
            found[round(y1 / x1)] = line.get_color()
    return found


def test_levels_and_their_slopes_share_a_colour_and_a_legend_entry():
    _, axes = drawn_kernels(samples.kernel())
    assert slopes(axes) == {
        400: LEVEL_COLOURS["L1"],
        100: LEVEL_COLOURS["L2"],
        50: LEVEL_COLOURS["DRAM"],
    }
    assert legend(axes)[:3] == ["L1 400 GB/s", "L2 100 GB/s", "DRAM 50 GB/s"]
    (flat,) = [line for line in axes.lines if list(line.get_ydata()) == [200, 200]]
    assert min(flat.get_xdata()) == 0.5  # where the steepest slope meets it


def test_a_level_without_a_measured_roof_has_no_slope_and_says_why():
    caches = (make.cache_roof("L2", None),)
    _, axes = drawn_kernels(samples.kernel(), caches=caches)
    assert set(slopes(axes)) == {50}
    assert legend(axes)[:2] == ["L1, no roof", "L2, no roof"]
    assert missing_levels(used(caches)) == [
        "L1: its bandwidth was not measured",
        "L2: not in this example",
    ]
    assert missing_levels(used(CACHES)) == []


def test_kernels_are_sized_by_time_and_the_flopless_are_told():
    long, short = samples.kernel("long", 0.06), samples.kernel("short", 0.02)
    copy = samples.kernel("copy", 0.02, flops=0)
    _, axes = drawn_kernels(long, short, copy)
    sizes = [float(found.get_sizes()[0]) for found in markers(axes)]
    assert sizes[0] / sizes[3] == pytest.approx(3)
    assert len(sizes) == 6
    assert axes.get_title("left") == (
        "Placed: 80 % of the kernels' time. Kernels without FLOP (1 names): 20 %."
    )
    assert [name for name, _ in names(axes).placed] == ["1 long 60 %", "2 short 20 %"]


def test_kernels_without_counts_are_told_too():
    _, axes = drawn_kernels(samples.kernel(), samples.kernel("u", flops=None))
    assert "FLOP or time not counted: 1 names." in axes.get_title("left").replace("\n", " ")


def long_names(count):
    return [
        samples.kernel(
            f"sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_{n}_kernel_cudnn",
            0.01 + 0.001 * n, flops=10**8 * (1 + n % 9), dram_bytes=10**7 * (1 + n % 5),
        )
        for n in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("size", [(3.5, 3.4), (6.5, 4.5)])
@pytest.mark.parametrize("count", [0, 1, 60])
def test_none_one_and_many_kernels_fit_the_page(tmp_path, size, count):
    figure, axes = drawn_kernels(*long_names(count), width_in=size[0], height_in=size[1])
    fits(figure, axes, tmp_path)
    assert len(markers(axes)) == 3 * count
    said = {text.get_text() for text in axes.texts}
    assert ("no kernel has a place here" in said) == (count == 0)


# Interactive


def test_hovering_over_an_op_shows_its_numbers():
    figure = interactive_op_roofline(place_ops(samples.op_profile(CONV, NORM), ROOF), used())
    conv, norm = [trace for trace in figure.data if trace.mode == "markers"]
    assert (conv.name, norm.name) == ("forward, algorithmic FLOP", "backward, elementwise FLOP")
    assert (conv.x[0], conv.y[0], conv.error_x.array[0]) == (10, pytest.approx(10), 10)
    assert (conv.marker.symbol, norm.marker.symbol) == ("triangle-right", "triangle-left-open")
    for words in (
        "1. convolution 1x1 (convolution), forward",
        "4 calls, 90 ms, 90 % of the ops' time",
        "0.9 GFLOP algorithmic, attained 10 GFLOP/s",
        "intensity 10 to 20 FLOP/byte (eager to fused bytes)",
    ):
        assert words in conv.text[0]
    assert "no byte of its own if fused" in norm.text[0]
    assert norm.error_x.array[0] > 50


def test_hovering_over_a_kernel_shows_its_whole_name():
    name = f"at::native::foo<{'float,' * 30}int>"
    tensor = samples.kernel(name, tensor_flops=5 * 10**8)
    figure = interactive_kernel_roofline(
        place_kernels(samples.counters(tensor)), used(CACHES), math_mode="bf16"
    )
    levels = [trace for trace in figure.data if trace.mode == "markers"]
    assert [trace.name for trace in levels] == [f"FLOP per {x} byte" for x in ("L1", "L2", "DRAM")]
    assert [trace.x[0] for trace in levels] == [5, 10, 20]
    assert levels[0].marker.symbol == "square"
    text = levels[0].text[0]
    assert "executed 100 GFLOP/s, 50 % on tensor cores" in text
    assert "FLOP/byte: L1 5, L2 10, DRAM 20" in text
    assert name in text.replace("<br>", "").replace("&lt;", "<").replace("&gt;", ">")
    roofs = [trace.name for trace in figure.data if trace.mode == "lines"]
    assert "L2 roof 100 GB/s (measured)" in roofs
    assert "Example CPU fp32 200 GFLOP/s (measured)" in roofs


def test_hostile_names_are_shown_as_text():
    op = samples.op_time(HOSTILE)
    drawn_ops(op)
    drawn_kernels(samples.kernel(HOSTILE))
    figures = [
        interactive_op_roofline(place_ops(samples.op_profile(op), ROOF), used(device=HOSTILE)),
        interactive_kernel_roofline(
            place_kernels(samples.counters(samples.kernel(HOSTILE))),
            used(device=HOSTILE),
            math_mode="fp32",
        ),
    ]
    for figure in figures:
        hovers = [f"{trace.hovertemplate}{trace.text}{trace.name}" for trace in figure.data]
        assert not any("<img" in hover for hover in hovers)
        assert any("&lt;img src=x" in hover for hover in hovers)
        assert "<img src=x" not in figure_html(figure, "x", with_script=False)


@pytest.mark.parametrize("roofs", [None, used(CACHES)])
def test_interactive_figures_without_data_say_so(roofs):
    ops = interactive_op_roofline(
        place_ops(samples.op_profile(samples.op_time(flops=0)), None), roofs
    )
    kernels = interactive_kernel_roofline(place_kernels(EMPTY), roofs, math_mode="fp32")
    assert [note.text for note in ops.layout.annotations] == ["no op has a place here"]
    assert [note.text for note in kernels.layout.annotations] == ["no kernel has a place here"]


def test_only_one_figure_of_a_page_carries_the_script():
    figure = interactive_op_roofline(place_ops(samples.op_profile(CONV), ROOF), used())
    markup = figure_html(figure, "ops-1", with_script=False)
    assert len(markup) < 50_000
    assert 'id="ops-1"' in markup
    config = json.loads(re.search(r"\{[^{}]*\"displaylogo\"[^{}]*\}", markup)[0])
    assert config["showSendToCloud"] is False


def test_every_number_of_a_figure_is_finite():
    figure = interactive_op_roofline(place_ops(samples.op_profile(*many(60)), ROOF), used())
    values = [value for trace in figure.data for value in (*trace.x, *trace.y)]
    assert all(math.isfinite(value) and value > 0 for value in values)
