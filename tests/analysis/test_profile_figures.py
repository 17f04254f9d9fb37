"""The rooflines of ops and of kernels as scenes, and what both renderers make of any scene."""

import math

import factories as make
import pytest
import samples
from test_figures import HOSTILE, legend, point

from analysis.figures import (
    draw_scene,
    figure_html,
    interactive_figure,
    kernel_scene,
    op_scene,
    run_scene,
    save_figure,
    single_axes,
)
from analysis.figures.rooflines.device_roofs import missing_levels
from analysis.figures.style import LEVEL_COLOURS, area_pt2
from analysis.profiles.kernel_places import place_kernels
from analysis.profiles.op_places import place_ops
from analysis.roofs.ceilings import UsedCeiling
from analysis.roofs.roof import Roof

ROOF = Roof(200e9, 50e9)
CACHES = (make.cache_roof("L1", 400e9), make.cache_roof("L2", 100e9))
BLUE = "#0072B2"
SHADE = "faster than DRAM: from a cache"

#: 10 GFLOP/s at 10 to 20 FLOP/byte for 90 % of the time; 1 GFLOP/s elementwise at 0.1 and up.
CONV = samples.op_time("convolution 1x1", "forward", 0.09, flops=9 * 10**8, eager_bytes=9 * 10**7,
                       fused_bytes=45 * 10**6)  # fmt: skip
NORM = samples.op_time("batch_norm", "backward", 0.01, flops=0, elementwise_flops=10**7,
                       eager_bytes=10**8, fused_bytes=0)  # fmt: skip


def used(caches=(), **changes):
    return UsedCeiling(make.ceiling(**changes), ROOF, "c", None, (), caches)


def ops_scene(*ops, roof=ROOF, caches=()):
    under = used(caches) if roof else None
    return op_scene(place_ops(samples.op_profile(*ops), roof), under, colour=BLUE)


def kernels_scene(*kernels, caches=CACHES, mode="fp32"):
    counters = samples.counters(*kernels).model_copy(update={"per_kernel": kernels})
    return kernel_scene(place_kernels(counters), used(caches), math_mode=mode)


def places(scene):
    return [(mark.intensity_flop_per_byte, mark.flops_per_s) for mark in scene.marks]


def names(scene):
    return [mark.name for mark in scene.marks if mark.name]


# Ops


def test_an_op_stands_at_its_eager_bytes_and_reaches_to_its_fused_ones():
    scene = ops_scene(CONV, NORM)
    assert places(scene) == [(10, pytest.approx(10e9)), (pytest.approx(0.1), pytest.approx(1e9))]
    conv, norm = scene.marks
    assert conv.line.to_flop_per_byte == 20
    assert norm.line.to_flop_per_byte == scene.limits.intensity[1]  # it moves nothing if fused
    assert scene.rate_label == "Attained GFLOP/s"


def test_algorithmic_flop_are_filled_and_elementwise_ones_open():
    scene = ops_scene(CONV, NORM)
    assert [(mark.filled, mark.colour) for mark in scene.marks] == [(True, BLUE), (False, BLUE)]
    assert {"algorithmic FLOP", "elementwise FLOP"} <= set(legend(scene))
    assert "elementwise FLOP" not in legend(ops_scene(CONV))


def test_area_is_the_share_of_time_and_the_shape_the_phase():
    conv, norm = ops_scene(CONV, NORM).marks
    assert conv.area_pt2 / norm.area_pt2 == pytest.approx(9)
    assert area_pt2(0.0) > 0  # the shortest can be seen
    phases = ("forward", "backward", "optimizer", None)
    scene = ops_scene(*(samples.op_time(phase=phase) for phase in phases))
    assert len({mark.shape for mark in scene.marks}) == 4
    assert legend(scene)[:4] == ["forward", "backward", "optimizer", "whole step"]


def test_the_long_ops_are_named_and_a_note_says_where_the_rest_of_the_time_went():
    copy = samples.op_time("copy", time_s=0.05, flops=0)
    view = samples.op_time("view", time_s=0.05, flops=None)
    scene = ops_scene(CONV, NORM, copy, view)
    assert names(scene) == ["conv 1x1 fwd 45 %", "batch_norm bwd 5 %"]
    assert scene.note == (
        "Placed: 50 % of the ops' time. Ops without FLOP (copies, fills): 25 %. "
        "Not in the cost model: 25 %."
    )
    assert len(names(ops_scene(*many(60)))) == 12


def test_the_roof_is_the_devices_own_with_its_memory_and_its_last_cache():
    scene = ops_scene(CONV)
    assert [roof.label for roof in scene.flat_roofs] == [("fp32", "200 GFLOP/s")]
    assert [slope.label for slope in scene.slopes] == ["DRAM 50 GB/s"]
    cached = ops_scene(CONV, caches=[make.cache_roof("L3", 90e9)])
    assert [slope.label for slope in cached.slopes] == ["DRAM 50 GB/s", "L3 90 GB/s"]


def test_ops_faster_than_dram_get_a_shade():
    fast = ops_scene(samples.op_time(time_s=0.001))  # 100 MB in 1 ms: 100 GB/s
    assert fast.region.label == SHADE
    low = fast.limits.intensity[0]
    assert fast.region.corners == ((low, low * 50e9), (4, 200e9), (low, 200e9))
    assert ops_scene(samples.op_time(time_s=0.01)).region is None


def test_the_shortest_ops_do_not_stretch_the_axes():
    tiny = samples.op_time("increment", time_s=1e-5, flops=1)
    assert ops_scene(CONV, tiny).limits.flops_per_s[0] > 1e9
    assert ops_scene(tiny).limits.flops_per_s[0] < 1e5


def test_without_a_roof_the_ops_are_placed_alone():
    scene = ops_scene(CONV, roof=None)
    assert places(scene) == [(10, pytest.approx(10e9))]
    assert scene.slopes == scene.flat_roofs == ()


def many(count):
    return [
        samples.op_time(
            f"convolution {n}x{n} with a long name", "backward" if n % 2 else "forward",
            0.01 + 0.001 * n, flops=10**8 * (1 + n % 9), eager_bytes=10**7 * (1 + n % 7),
        )
        for n in range(count)
    ]  # fmt: skip


# Kernels


def test_a_kernel_is_a_marker_per_level_at_one_height():
    scene = kernels_scene(samples.kernel())
    assert places(scene) == [(5, 100e9), (10, 100e9), (20, 100e9)]
    assert [mark.colour for mark in scene.marks] == list(LEVEL_COLOURS.values())
    assert [mark.line and mark.line.to_flop_per_byte for mark in scene.marks] == [20, None, None]
    assert scene.rate_label == "Executed GFLOP/s"


def test_levels_and_their_slopes_share_a_colour_and_a_legend_entry():
    scene = kernels_scene(samples.kernel())
    assert {slope.bytes_per_s: slope.colour for slope in scene.slopes} == {
        400e9: LEVEL_COLOURS["L1"],
        100e9: LEVEL_COLOURS["L2"],
        50e9: LEVEL_COLOURS["DRAM"],
    }
    assert not any(slope.label for slope in scene.slopes)
    assert legend(scene)[:3] == ["L1 400 GB/s", "L2 100 GB/s", "DRAM 50 GB/s"]
    (flat,) = scene.flat_roofs
    assert flat.ridge_flop_per_byte == 0.5  # where the steepest slope meets it


def test_a_level_without_a_measured_roof_has_no_slope_and_says_why():
    caches = (make.cache_roof("L2", None),)
    scene = kernels_scene(samples.kernel(), caches=caches)
    assert [slope.bytes_per_s for slope in scene.slopes] == [50e9]
    assert legend(scene)[:2] == ["L1, no roof", "L2, no roof"]
    assert missing_levels(used(caches)) == [
        "L1: its bandwidth was not measured",
        "L2: not in this sample",
    ]
    assert missing_levels(used(CACHES)) == []


def test_kernels_are_sized_by_time_and_a_note_counts_those_without_flop():
    long, short = samples.kernel("long", 0.06), samples.kernel("short", 0.02)
    scene = kernels_scene(long, short, samples.kernel("copy", 0.02, flops=0))
    assert len(scene.marks) == 6
    assert scene.marks[0].area_pt2 / scene.marks[3].area_pt2 == pytest.approx(3)
    assert names(scene) == ["1 long 60 %", "2 short 20 %"]
    assert scene.note == (
        "Placed: 80 % of the kernels' time. Kernels without FLOP (1 names): 20 %."
    )
    unknown = kernels_scene(samples.kernel(), samples.kernel("u", flops=None))
    assert "FLOP or time not counted: 1 names." in unknown.note


def long_names(count):
    return [
        samples.kernel(
            f"sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_{n}_kernel_cudnn",
            0.01 + 0.001 * n, flops=10**8 * (1 + n % 9), dram_bytes=10**7 * (1 + n % 5),
        )
        for n in range(count)
    ]  # fmt: skip


# Hovering, and both renderers


def test_hovering_over_an_op_shows_its_numbers():
    conv, norm = ops_scene(CONV, NORM).marks
    assert (conv.group, norm.group) == ("forward, algorithmic FLOP", "backward, elementwise FLOP")
    assert {
        "1. convolution 1x1 (convolution), forward",
        "4 calls, 90 ms, 90 % of the ops' time",
        "0.9 GFLOP algorithmic, attained 10 GFLOP/s",
        "intensity 10 to 20 FLOP/byte (eager to fused bytes)",
    } <= set(conv.hover)
    assert any("no byte of its own if fused" in line for line in norm.hover)


def test_hovering_over_a_kernel_shows_its_whole_name():
    name = f"at::native::foo<{'float,' * 30}int>"
    scene = kernels_scene(samples.kernel(name, tensor_flops=5 * 10**8), mode="bf16")
    assert [mark.group for mark in scene.marks] == [
        f"FLOP per {level} byte" for level in ("L1", "L2", "DRAM")
    ]
    mark = scene.marks[0]
    assert mark.shape.plotly == "square"
    assert "executed 100 GFLOP/s, 50 % on tensor cores" in mark.hover
    assert "FLOP/byte: L1 5, L2 10, DRAM 20" in mark.hover
    assert name in "".join(mark.hover)
    groups = {roof.group for roof in (*scene.slopes, *scene.flat_roofs)}
    assert {"L2 roof 100 GB/s (measured)", "Example CPU fp32 200 GFLOP/s (measured)"} <= groups


def scene_of(kind, count):
    if kind == "ops":
        return ops_scene(*(many(count) or [samples.op_time("copy", flops=0)]))
    if kind == "kernels":
        return kernels_scene(*long_names(count))
    archs = ["resnet18", "resnet50", "vgg16", "mobilenet_v2"]
    return run_scene([point(f"run-{n}", arch=archs[n % 4]) for n in range(count)])


@pytest.mark.parametrize(
    ("count", "size"), [(0, (3.5, 3.4)), (1, (6.5, 4.5)), (60, (3.5, 3.4)), (60, (6.5, 4.5))]
)
@pytest.mark.parametrize(
    ("kind", "empty"), [("ops", "no op"), ("kernels", "no kernel"), ("runs", "no run")]
)
@pytest.mark.slow
def test_none_one_and_many_fit_the_page(tmp_path, kind, empty, count, size):
    scene = scene_of(kind, count)
    figure, axes = single_axes(*size)
    draw_scene(axes, scene)
    png, svg = save_figure(figure, tmp_path, "figure")
    assert png.stat().st_size > 0
    assert "<svg" in svg.read_text(encoding="utf-8")
    figure.canvas.draw()
    box, page = axes.get_tightbbox(), figure.bbox
    assert box.x0 >= page.x0 - 1
    assert box.x1 <= page.x1 + 1
    assert box.y0 >= page.y0 - 1
    assert box.y1 <= page.y1 + 1
    said = {text.get_text() for text in axes.texts}
    assert (f"{empty} has a place here" in said) == (count == 0)
    notes = [note.text for note in interactive_figure(scene).layout.annotations]
    assert notes == ([] if count else [f"{empty} has a place here"])


def test_a_kernel_with_flop_that_were_not_counted_is_an_arrow_and_no_value():
    known = samples.kernel("known", flops=10**9, duration_s=0.1, dram_bytes=10**8)
    half = known.replaced({"flops": "hadd: not in the file"}, flops=None, flops_at_least=10**8)
    scene = kernels_scene(known, half.model_copy(update={"name": "half"}))
    level = {mark.group: mark.shape.plotly for mark in scene.marks if "known" in mark.hover[0]}
    arrows = [mark for mark in scene.marks if "half" in mark.hover[0]]
    assert {mark.shape.plotly for mark in arrows} == {"arrow-up"}
    assert "arrow-up" not in level.values()
    assert all(mark.flops_per_s == pytest.approx(1e9) for mark in arrows)
    assert all("at least" in " ".join(mark.hover) for mark in arrows)
    draw_scene(single_axes()[1], scene)
    interactive_figure(scene)


@pytest.mark.parametrize("kind", ["ops", "kernels", "runs"])
def test_every_number_on_a_page_is_finite(kind):
    figure = interactive_figure(scene_of(kind, 60))
    values = [value for trace in figure.data for value in (*trace.x, *trace.y)]
    assert all(value is None or (math.isfinite(value) and value > 0) for value in values)


@pytest.mark.slow
def test_hostile_names_are_shown_as_text():
    op, kernel = samples.op_time(HOSTILE), samples.kernel(HOSTILE)
    under = used(device=HOSTILE)
    scenes = [
        op_scene(place_ops(samples.op_profile(op), ROOF), under),
        kernel_scene(place_kernels(samples.counters(kernel)), under, math_mode="fp32"),
        run_scene([point(label=HOSTILE, device=HOSTILE), point("run-2", label="b")]),
    ]
    for scene in scenes:
        page, axes = single_axes()
        draw_scene(axes, scene)
        page.canvas.draw()
        figure = interactive_figure(scene)
        shown = [f"{trace.text}{trace.name}" for trace in figure.data]
        assert not any("<img" in text for text in shown)
        assert any("&lt;img src=x" in text for text in shown)
        assert not any("&quot;" in text for text in shown)  # Plotly does not know it
        assert "<img src=x" not in figure_html(figure, "x", with_script=False)
