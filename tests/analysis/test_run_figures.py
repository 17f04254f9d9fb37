"""Figures of runs: what is drawn where, empty and single points, crowds, and one meaning each."""

import factories as make
import numpy as np
import pytest
import samples
from observed import DRIFT, curve, observation, published, repeated

from analysis.figures.charts.batch_charts import batch_chart, prediction_panel
from analysis.figures.charts.batch_curves import (
    Curve,
    efficiency_curves,
    intensity_curves,
    memory_curves,
    modelled_memory_curves,
    scaling_curves,
    throughput_curves,
)
from analysis.figures.charts.chart import Chart, panel_chart
from analysis.figures.charts.interactive_chart import interactive_chart
from analysis.figures.charts.iteration_charts import (
    distributions_chart,
    trace_panel,
    traced_runs,
)
from analysis.figures.charts.row_charts import (
    models_chart,
    real_synthetic_chart,
    variability_chart,
)
from analysis.figures.charts.static_chart import draw_chart
from analysis.figures.style import model_colours
from analysis.findings.differences import scatters
from analysis.prediction import fit_curve, measured_batches
from analysis.report.figure_files import FigureFolder
from analysis.report.run_figures import draw_runs
from analysis.runs.groups import batch_curves, group_runs
from analysis.runs.placed import place_runs
from analysis.table import number_runs


def panel_of(chart):
    (panel,) = chart.panels
    return panel


def batches(curves, **options):
    return batch_chart(curves, "y", colours=model_colours(c.arch for c in curves), **options)


def in_group(panel, group):
    return [series for series in panel.series if series.group == group]


def legend(panel):
    return [entry.label for entry in panel.legend]


def drawn(chart):
    """The axes of the chart on paper, and the chart on a page; both are laid out."""
    figure = draw_chart(chart)
    figure.draw_without_rendering()
    page = interactive_chart(chart)
    page.to_json()
    return figure.axes, page


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
        Curve("resnet18", "amp-bf16", "a", (8, 16), (3.0, 4.0), open=True),
    ]
    panel = panel_of(batches(curves))
    one, other = panel.series
    assert one.colour == other.colour  # the model
    assert (one.shape.matplotlib, other.shape.matplotlib) == ("o", "s")  # as in the roofline
    assert (one.filled, other.filled) == (True, False)
    assert legend(panel) == ["resnet18", "amp-bf16", "fp32"]
    other = Curve("resnet18", "fp32", "a", (8, 16), (1.5, 2.5), distinction="threads 2")
    assert panel_of(batches([*curves, other])).series[-1].names == ("", "threads 2")


def test_wide_spans_are_logarithmic_and_narrow_ones_start_at_zero():
    def height(low, high):
        return panel_of(batches([Curve("m", "fp32", "a", (8, 16), (low, high))])).y

    assert height(1, 100).scale == "log"
    assert (height(50, 100).scale, height(50, 100).limits[0]) == ("linear", 0)


def test_the_limit_of_memory_is_a_line_where_it_is_near():
    curves = [Curve("m", "fp32", "a", (8, 16), (5.0, 9.0))]
    near, far = (panel_of(batches(curves, limit=(gb, f"{gb} GB"))) for gb in (16.0, 160.0))
    line = near.series[-1]
    assert (set(line.ys), line.dashed, line.hover[0]) == ({16.0}, True, ("16.0 GB",))
    assert near.y.limits[1] > 16
    assert len(far.series) == 1


def test_nothing_one_point_and_a_crowd_are_drawn():
    assert len(panel_of(batches([Curve("m", "fp32", "a", (8,), (1.0,))])).series) == 1
    crowd = [
        Curve(f"m{n}", "fp32", f"e{n % 3}", tuple(range(1, 21)), tuple(np.arange(1.0, 21) + n))
        for n in range(10)
    ]
    panel = panel_of(batches(crowd))
    assert all(series.size_pt < 3 and series.opacity < 1 for series in panel.series)
    assert len(panel.x.ticks) <= 7
    assert {1, 20} <= set(panel.x.ticks)


def test_models_show_their_fastest_batch():
    runs = [
        observation("a", 100, batch_size=8),
        observation("b", 150, batch_size=16),
        observation("c", 300, batch_size=16, precision="amp"),
    ]
    panel = panel_of(models_chart(group_runs(runs)))
    assert [series.xs[0] for series in panel.series] == pytest.approx([150, 300])
    assert [series.names for series in panel.series] == [("16",), ("16",)]
    assert panel.y.names == ("lab  resnet18",)
    assert panel.series[0].hover == (
        ("lab resnet18 fp32 batch 16", "150 images/s, measured once", "run b"),
    )


def test_variability_has_a_dot_per_configuration_and_a_pooled_bar():
    found = scatters(published())
    panel = panel_of(variability_chart(found))
    dots, bars = in_group(panel, "one configuration"), in_group(panel, "pooled")
    assert [len(series.xs) for series in dots] == [len(one.groups) for one in found]
    assert [series.xs[0] for series in bars] == [100 * one.deviation for one in found]


def test_real_and_synthetic_are_joined():
    real, synthetic = group_runs([observation("r", 50, data="/images"), observation("s", 100)])
    panel = panel_of(real_synthetic_chart([(real, synthetic)]))
    line, disk, made = panel.series
    assert line.xs == pytest.approx((50, 100))
    assert (disk.filled, made.filled) == (True, False)
    assert legend(panel) == ["images from disk", "synthetic"]


def test_distributions_show_every_outlier():
    times = np.r_[np.linspace(0.099, 0.101, 50), 0.13, 0.9]
    panel = panel_of(distributions_chart([observation("a", times_s=times)]))
    found = {series.shape.matplotlib: series for series in panel.series if series.shape}
    assert found["x"].xs == pytest.approx((1.3,), rel=0.01)
    assert found[">"].xs == (1.6,)  # beyond the edge, as an arrow
    assert found[">"].hover[0][-1] == "iteration 52: 900 ms, 9x the median"
    spread = in_group(panel, "resnet18")[0].hover[0]
    assert spread[2:] == (
        "116 ± 110 ms, mean ± SD of 52 iterations",
        "median 100 ms, quartiles 99.5 to 101 ms, 5 to 95 %: 99.1 to 101 ms",
        "2 outliers",
    )
    many = [observation(f"r{n}", times_s=times) for n in range(60)]
    assert panel_of(distributions_chart(many)).title == "and 15 more rows in the tables"


def test_a_trace_marks_outliers_and_drift():
    rng = np.random.default_rng(1)
    times = 0.1 * (1 + 0.002 * rng.standard_normal(90))
    times[45:] *= 1.1
    times[40] *= 3
    drifting = observation("a", times_s=times, findings=(DRIFT,))
    panel = trace_panel(drifting)
    assert "slower, from iteration" in panel.title
    shapes = {series.shape.plotly: series for series in panel.series if series.shape}
    triangle = shapes["triangle-up"]
    assert triangle.xs == (41,)
    assert triangle.ys[0] < 1e3 * times[40]  # held at the edge
    assert f"{1e3 * times[40]:.0f} ms" in triangle.hover[0][0]
    assert panel.series[-1].dashed
    steady = observation("s", times_s=0.1 * (1 + 0.002 * rng.standard_normal(90)))
    assert traced_runs([steady, drifting])[0].name == "a"


def test_a_prediction_shows_its_points_and_its_band():
    rates = {8: 8 / 0.18, 16: 16 / 0.27, 32: 32 / 0.42}
    (groups,) = batch_curves(curve(rates))
    panel = prediction_panel(fit_curve(measured_batches(groups)), "lab m fp32")
    model, measured = panel.series
    assert measured.xs == (8, 16, 32)
    assert measured.hover[0] == ("lab m fp32 batch 8", "44.4 images/s, measured once", "run b8")
    assert "95 % interval" in model.hover[0][1]
    assert panel.band.xs == model.xs
    assert "held out, missed by" in panel.title
    assert legend(panel) == ["measured", "model"]


def test_repeats_are_a_mean_with_its_sd_and_their_runs():
    runs = repeated("a", np.array([90.0, 110.0, 100.0, 95.0, 105.0]), batch_size=8)
    (throughput,) = throughput_curves(runs)
    (gain,) = scaling_curves([*runs, observation("b", 120.0)])
    assert throughput.hover[0] == (
        "lab resnet18 fp32 batch 8",
        "99.7 ± 7.9 images/s, mean ± SD of 5 repeats",
        *("run a-1", "run a-2", "run a-3", "run a-4", "and 1 more"),
    )
    assert gain.hover[1][1] == "1.2 times the images/s of batch 8"


@pytest.mark.parametrize(("count", "width_in", "rows"), [(1, 6.5, 1), (3, 6.5, 2), (3, 3.5, 3)])
def test_panels_stand_in_rows(count, width_in, rows):
    chart = panel_chart([trace_panel(observation("a"))] * count, width_in)
    assert (len(chart.panels), chart.rows) == (count, rows)


# The two renderers

HOSTILE = "</b><img src=x> $x^$ %{y} &amp;"


def of_everything():
    """A chart of each kind; a person wrote the name of the model."""
    times = np.r_[np.linspace(0.099, 0.101, 50), 0.13, 0.9]
    runs = [
        observation(f"{batch}-{repeat}", 10.0 * batch + repeat, batch_size=batch, arch=HOSTILE)
        for batch in (8, 16, 32)
        for repeat in (1, 2)
    ]
    groups = group_runs(runs)
    (curves,) = batch_curves(runs)
    timed = observation("t", times_s=times, findings=(DRIFT,), arch=HOSTILE)
    predicted = prediction_panel(fit_curve(measured_batches(curves)), HOSTILE)
    return [
        batches(throughput_curves(runs)),
        models_chart(groups),
        variability_chart(scatters(runs)),
        real_synthetic_chart([(groups[0], groups[1])]),
        distributions_chart([timed]),
        panel_chart([trace_panel(timed), predicted, predicted]),
    ]


@pytest.mark.slow
def test_paper_and_page_show_the_same():
    for chart in of_everything():
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
            for trace, series in zip(traces, panel.series, strict=True):
                places = np.column_stack([series.xs, series.ys]).tolist()
                assert places in paths
                assert np.column_stack([trace.x, trace.y]).tolist() == places
                assert len(series.hover) in (0, len(places))
        named = [trace.name for trace in page.data if trace.showlegend is not False]
        assert len(named) == len(set(named))
        assert "<img" not in page.to_json()


def figures_of(runs, folder):
    labels = [run.env for run in runs]
    return draw_runs(runs, FigureFolder(folder, {}, number_runs(runs), labels))


def test_images_and_sequences_share_no_figure_of_models(tmp_path):
    runs = place_runs([make.run_record(), make.sequence_record()], [])
    titles = [one.title for one in figures_of(runs, tmp_path)]
    assert {"Models and machines, images", "Models and machines, sequences"} <= set(titles)


def test_a_processors_modelled_memory_is_drawn_beside_a_gpus_measured_one(tmp_path):
    peak = {"peak_memory_allocated_bytes": 10**9, "peak_memory_reserved_bytes": 10**9}
    gpu = make.environment(label="gpu-lab", device=make.gpu())
    records = [
        record
        for batch in (8, 16)
        for record in (
            make.run_record(f"cpu-{batch}", batch),
            make.run_record(
                f"gpu-{batch}",
                batch,
                environment=gpu,
                resolved=make.resolved(batch_size=batch, backend="cuda"),
                measurement=samples.measurement((1.0,) * 10, batch, **peak),
            ),
        )
    ]
    titles = [one.title for one in figures_of(place_runs(records, []), tmp_path)]
    assert {"Memory over batch size, lab", "Memory over batch size, gpu-lab"} <= set(titles)


def test_no_figure_takes_the_file_of_another(tmp_path):
    """A second page of machine `lab` and the first of machine `lab-2`."""
    folder = FigureFolder(tmp_path, {}, number_runs([]), ["lab", "lab-2"])
    chart = models_chart([])
    names = ("prediction-lab", "prediction-lab-2", "prediction-lab-2")
    files = [folder.add_chart(chart, name, "", "", ()) for name in names]
    assert len({one.png for one in files}) == len(list(tmp_path.glob("*.png"))) == 3


def test_an_axis_of_part_of_a_decade_has_ticks():
    page = interactive_chart(models_chart(group_runs([observation("a", 320.0)])))
    low, high = (10**end for end in page.layout.xaxis.range)
    assert low < 300 < 400 < high
    assert page.layout.xaxis.dtick == "D1"  # 300 and 400; of D2's, 200 and 500, none


def test_a_bar_has_the_ends_of_its_spread_and_empty_axes_say_so():
    (throughput,) = throughput_curves(repeated("a", np.array([90.0, 110.0]), batch_size=8))
    (trace,) = interactive_chart(batches([throughput])).data
    assert trace.y[0] - trace.error_y.arrayminus[0] == pytest.approx(throughput.lows[0])
    assert trace.y[0] + trace.error_y.array[0] == pytest.approx(throughput.highs[0])
    for chart, words in (
        (batches([]), "no batch sizes to draw"),
        (models_chart([]), "no run has this"),
        (variability_chart([]), "no run has this"),
        (real_synthetic_chart([]), "no run has this"),
        (distributions_chart([observation("a")]), "no run has this"),
        (Chart((trace_panel(observation("a")),), 3.5, 3.0), "no iterations recorded"),
    ):
        (axes,), page = drawn(chart)
        assert words in {text.get_text() for text in axes.texts}
        assert words in {note.text for note in page.layout.annotations}
