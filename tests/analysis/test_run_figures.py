"""Figures of runs: what is drawn where, empty and single points, crowds, and one meaning each."""

import factories as make
import numpy as np
import pytest
from observed import DRIFT, curve, observation, published, repeated

from analysis.figures.axes import panel_axes, single_axes
from analysis.figures.charts.batch_curves import (
    efficiency_curves,
    intensity_curves,
    memory_curves,
    modelled_memory_curves,
    scaling_curves,
    throughput_curves,
)
from analysis.figures.charts.curves import Curve, curve_handles, draw_curves, draw_prediction
from analysis.figures.charts.run_charts import (
    draw_distributions,
    draw_models,
    draw_real_synthetic,
    draw_trace,
    draw_variability,
    traced_runs,
)
from analysis.figures.style import model_colours
from analysis.findings.differences import scatters
from analysis.prediction import fit_curve, measured_batches
from analysis.runs.groups import batch_curves, group_runs
from analysis.runs.placed import place_runs


def axes_of(draw, *data, **options):
    figure, axes = single_axes(3.5, 3.2)
    draw(axes, *data, **options)
    figure.draw_without_rendering()
    return axes


def words(axes):
    return [text.get_text() for text in axes.texts]


def legend(axes):
    found = axes.get_legend()
    return [text.get_text() for text in found.get_texts()] if found else []


def data_lines(axes):
    return [line for line in axes.lines if len(line.get_xdata()) > 1 and line.get_marker() != "_"]


@pytest.fixture(scope="module")
def placed():
    records = [make.run_record(f"b{batch}", batch, batch / 10) for batch in (10, 20)]
    return place_runs(records, [make.ceilings_record()])


def test_throughput_stands_at_its_mean_with_one_deviation_and_scaling_over_the_smallest_batch():
    runs = repeated("a", np.array([90.0, 110.0]), batch_size=8)
    (curve,) = throughput_curves(runs)
    mean, deviation = np.sqrt(9900), np.sqrt(2) * np.log(110 / np.sqrt(9900))
    assert curve.values == pytest.approx((mean,))
    assert curve.lows == pytest.approx((mean * (1 - deviation),))
    assert curve.highs == pytest.approx((mean * (1 + deviation),))
    (single,) = throughput_curves(runs[:1])
    assert single.lows == (None,)
    runs = [observation("a", 100, batch_size=8), observation("b", 150, batch_size=16)]
    (curve,) = scaling_curves(runs)
    assert curve.values == pytest.approx((1.0, 1.5))
    assert scaling_curves(runs[:1]) == []


def test_efficiency_intensity_and_memory_by_hand(placed):
    """100 GFLOP in 1 and 2 s under 200 GFLOP/s; 4 to 10 FLOP/byte; no peak memory recorded."""
    (efficiency,) = efficiency_curves(placed)
    assert efficiency.values == pytest.approx((0.5, 0.25))
    (intensity,) = intensity_curves(placed)
    assert (intensity.lows, intensity.highs) == ((4.0, 4.0), (10.0, 10.0))
    assert intensity.open
    assert memory_curves(placed) == []
    (memory,) = modelled_memory_curves(placed)
    assert memory.values == pytest.approx((4e-9, 4e-9))
    assert memory.open
    curves = (efficiency_curves, intensity_curves, memory_curves, modelled_memory_curves)
    assert [curve(published()) for curve in curves] == [[], [], [], []]  # imported runs


def test_a_curve_of_each_channel():
    curves = [
        Curve("resnet18", "fp32", "a", (8, 16), (1.0, 2.0)),
        Curve("resnet18", "amp", "a", (8, 16), (3.0, 4.0), open=True),
    ]
    axes = axes_of(draw_curves, curves, "Images/s")
    one, other = data_lines(axes)
    assert one.get_color() == other.get_color()  # the model
    assert (one.get_marker(), other.get_marker()) == ("o", "s")  # the precision
    assert other.get_markerfacecolor() == "white"
    handles = curve_handles(curves, model_colours(["resnet18"]))
    assert [handle.get_label() for handle in handles] == ["resnet18", "amp", "fp32"]
    other = Curve("resnet18", "fp32", "a", (8,), (1.5,), distinction="threads 2")
    axes = axes_of(draw_curves, [*curves, other], "Images/s")
    assert [text.get_text() for text in axes.texts] == ["threads 2"]


def test_wide_spans_are_logarithmic_and_narrow_ones_start_at_zero():
    def axes(low, high):
        return axes_of(draw_curves, [Curve("m", "fp32", "a", (8, 16), (low, high))], "y")

    assert axes(1, 100).get_yscale() == "log"
    narrow = axes(50, 100)
    assert narrow.get_yscale() == "linear"
    assert narrow.get_ylim()[0] == 0


def test_nothing_one_point_and_a_crowd_are_drawn():
    assert words(axes_of(draw_curves, [], "y")) == ["no batch sizes to draw"]
    assert words(axes_of(draw_curves, [Curve("m", "fp32", "a", (8,), (1.0,))], "y")) == []
    crowd = [
        Curve(f"m{n}", "fp32", f"e{n % 3}", tuple(range(1, 21)), tuple(np.arange(1.0, 21) + n))
        for n in range(10)
    ]
    axes = axes_of(draw_curves, crowd, "y")
    assert all(line.get_markersize() < 3 and line.get_alpha() < 1 for line in axes.lines)
    ticks = list(axes.get_xticks())
    assert len(ticks) <= 8
    assert {1, 20} <= set(ticks)


def test_models_show_their_fastest_batch():
    runs = [
        observation("a", 100, batch_size=8),
        observation("b", 150, batch_size=16),
        observation("c", 300, batch_size=16, precision="amp"),
    ]
    axes = axes_of(draw_models, group_runs(runs))
    found = sorted(float(line.get_xdata()[0]) for line in axes.lines)
    assert found == pytest.approx([150, 300])
    assert words(axes) == ["16", "16"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["lab  resnet18"]
    assert words(axes_of(draw_models, [])) == ["no run has this"]


def test_variability_has_a_dot_per_configuration_and_a_pooled_bar():
    found = scatters(published())
    axes = axes_of(draw_variability, found)
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    bars = [line for line in axes.lines if line.get_marker() == "|"]
    assert [len(line.get_xdata()) for line in dots] == [len(one.groups) for one in found]
    assert [line.get_xdata()[0] for line in bars] == [100 * one.deviation for one in found]
    assert words(axes_of(draw_variability, [])) == ["no run has this"]


def test_real_and_synthetic_are_joined():
    real, synthetic = group_runs([observation("r", 50, data="/images"), observation("s", 100)])
    axes = axes_of(draw_real_synthetic, [(real, synthetic)])
    (line,) = data_lines(axes)
    assert list(line.get_xdata()) == pytest.approx([50, 100])
    assert legend(axes) == ["images from disk", "synthetic"]
    assert words(axes_of(draw_real_synthetic, [])) == ["no run has this"]


def test_distributions_show_every_outlier():
    times = np.r_[np.linspace(0.099, 0.101, 50), 0.13, 0.9]
    axes = axes_of(draw_distributions, [observation("a", times_s=times)])
    found = {
        line.get_marker(): line.get_xdata()[0] for line in axes.lines if line.get_marker() in "x>"
    }
    assert found["x"] == pytest.approx(1.3, rel=0.01)
    assert found[">"] == 1.6  # beyond the edge, as an arrow
    many = [observation(f"r{n}", times_s=times) for n in range(60)]
    assert (
        axes_of(draw_distributions, many).get_title(loc="left") == "and 15 more rows in the tables"
    )
    assert words(axes_of(draw_distributions, [observation("a")])) == ["no run has this"]


def test_a_trace_marks_outliers_and_drift():
    rng = np.random.default_rng(1)
    times = 0.1 * (1 + 0.002 * rng.standard_normal(90))
    times[45:] *= 1.1
    times[40] *= 3
    drifting = observation("a", times_s=times, findings=(DRIFT,))
    axes = axes_of(draw_trace, drifting)
    assert "slower, from iteration" in axes.get_title(loc="left")
    (triangle,) = (line for line in axes.lines if line.get_marker() == "^")
    assert list(triangle.get_xdata()) == [41]
    assert words(axes_of(draw_trace, observation("a"))) == ["no iterations recorded"]
    steady = observation("s", times_s=0.1 * (1 + 0.002 * rng.standard_normal(90)))
    assert traced_runs([steady, drifting])[0].name == "a"


def test_a_prediction_shows_its_points_and_its_band():
    rates = {8: 8 / 0.18, 16: 16 / 0.27, 32: 32 / 0.42}
    (groups,) = batch_curves(curve(rates))
    axes = axes_of(draw_prediction, fit_curve(measured_batches(groups)), "lab m fp32")
    assert list(axes.lines[0].get_xdata()) == [8, 16, 32]
    assert "held out, missed by" in axes.get_title(loc="left")
    assert legend(axes) == ["measured", "model", "95 % interval"]


@pytest.mark.parametrize(("count", "width_in", "rows"), [(1, 6.5, 1), (3, 6.5, 2), (3, 3.5, 3)])
def test_panels_stand_in_rows(count, width_in, rows):
    _, axes = panel_axes(count, width_in)
    assert len(axes) == count
    assert axes[0].get_gridspec().nrows == rows
