"""Charts beyond the golden report's: numbers by hand, crowds and gaps, and both renderers."""

from dataclasses import replace

import factories as make
import numpy as np
import pytest
import samples
from observed import DRIFT, curve, observation, published, repeated
from test_tuning import nothing, result  # noqa: F401 (fixtures)

from analysis.comparison import compare_pairs, pair_runs
from analysis.comparison.judgement import METRICS
from analysis.comparison.machines import across_machines
from analysis.figures import batches, draw_chart, interactive_chart, model_colours
from analysis.figures.batches import batch_chart, curves_of, prediction_panel
from analysis.figures.chart import panel_chart
from analysis.figures.ratios import comparison_chart, speed_up_charts, tuning_charts
from analysis.figures.rows import models_chart, real_synthetic_chart, variability_chart
from analysis.figures.times import distributions_chart, trace_panel, traced_runs
from analysis.findings.differences import scatter_rows
from analysis.prediction import fit_curve
from analysis.report.figures import ReportFigure, run_figures, save_figures
from analysis.runs.groups import batch_curves, group_runs
from analysis.runs.place import place_runs
from analysis.words import ratio_digits

THROUGHPUT = METRICS["throughput_samples_per_s"]


def panel_of(chart):
    (panel,) = chart.panels
    return panel


def over_batches(runs, *quantities, **options):
    curves = curves_of(runs, *quantities or (batches.throughput,))
    chart = batch_chart(curves, "y", colours=model_colours(run.arch for run in runs), **options)
    return panel_of(chart)


def markers_of(panel):
    return [series for series in panel.series if series.shape]


def drawn(chart):
    """The axes of the chart on paper, and the chart on a page; both are laid out."""
    figure = draw_chart(chart)
    figure.draw_without_rendering()
    page = interactive_chart(chart)
    page.to_json()
    return figure.axes, page


def values(runs, *quantities):
    return [value for one in curves_of(runs, *quantities) for value in one.values]


# Over batch size


def test_throughput_stands_at_its_mean_with_one_deviation_and_scaling_over_the_smallest_batch():
    runs = repeated("a", np.array([90.0, 110.0]), batch_size=8)
    mean, deviation = np.sqrt(9900), np.sqrt(2) * np.log(110 / np.sqrt(9900))
    (found,) = values(runs, batches.throughput)
    ends = (found.value, found.low, found.high)
    assert ends == pytest.approx((mean, mean * (1 - deviation), mean * (1 + deviation)))
    (trace,) = interactive_chart(panel_chart([over_batches(runs)])).data
    assert trace.y[0] - trace.error_y.arrayminus[0] == pytest.approx(found.low)
    assert trace.y[0] + trace.error_y.array[0] == pytest.approx(found.high)
    assert values(runs[:1], batches.throughput)[0].low is None
    runs = [observation("a", 100, batch_size=8), observation("b", 150, batch_size=16)]
    assert [one.value for one in values(runs, batches.gain)] == pytest.approx([1.0, 1.5])
    assert values(runs[:1], batches.gain) == []


def test_efficiency_intensity_and_memory_by_hand():
    """100 GFLOP in 1 and 2 s under 200 GFLOP/s; 4 to 10 FLOP/byte; no peak memory recorded."""
    records = [make.run_record(f"b{batch}", batch, batch / 10) for batch in (10, 20)]
    placed = place_runs(records, [make.ceilings_record()])
    assert [one.value for one in values(placed, batches.efficiency)] == pytest.approx([0.5, 0.25])
    for one in values(placed, batches.intensity):
        assert (one.low, one.high, one.modelled) == (4.0, 10.0, True)
    assert not over_batches(placed, batches.intensity).series[0].filled
    assert values(placed, batches.peak_memory_gb) == []
    memory = values(placed, batches.peak_memory_gb, batches.modelled_memory_gb)
    assert [(one.value, one.modelled) for one in memory] == [(pytest.approx(4e-9), True)] * 2
    for quantity in (batches.efficiency, batches.intensity, batches.modelled_memory_gb):
        assert values(published(), quantity) == []  # imported runs


def test_a_curve_of_each_channel():
    runs = [
        *curve({8: 1.0, 16: 2.0}),
        *curve({8: 3.0, 16: 4.0}, precision="amp-bf16"),
        *curve({8: 1.5, 16: 2.5}, threads=2, distinction="threads 2"),
    ]
    one, other, third = over_batches(runs).series
    assert one.colour == other.colour  # the model
    assert (one.shape, one.filled, other.shape) == ("circle", True, "square")  # as in the roofline
    assert third.names == ("", "threads 2")
    legend = [entry.group for entry in over_batches(runs).legend]
    assert legend == ["resnet18", "amp-bf16", "fp32"]


@pytest.mark.parametrize(("low", "scale"), [(1, "log"), (50, "linear")])
def test_wide_spans_are_logarithmic_and_narrow_ones_start_at_zero(low, scale):
    axis = over_batches(curve({8: low, 16: 100})).y
    assert (axis.scale, axis.limits[0] == 0) == (scale, scale == "linear")


def test_the_limit_of_memory_is_a_line_where_it_is_near():
    runs = curve({8: 5.0, 16: 9.0})
    near, far = (over_batches(runs, limit=(gb, f"{gb} GB")) for gb in (16.0, 160.0))
    line = near.series[-1]
    assert (set(line.ys), line.dashed, line.hover[0]) == ({16.0}, True, "16.0 GB")
    assert near.y.limits[1] > 16
    assert len(far.series) == 1


def test_one_point_and_a_crowd_are_drawn():
    assert len(over_batches(curve({8: 1.0})).series) == 1
    rates = dict(zip(range(1, 21), np.arange(1.0, 21), strict=True))
    panel = over_batches([run for n in range(10) for run in curve(rates, arch=f"m{n}")])
    assert all(series.size_pt < 3 and series.opacity < 1 for series in panel.series)
    assert len(panel.x.ticks) <= 7
    assert {1, 20} <= set(panel.x.ticks)


# Rows


def test_real_and_synthetic_are_joined():
    real, synthetic = group_runs([observation("r", 50, data="/images"), observation("s", 100)])
    line, disk, made = panel_of(real_synthetic_chart([(real, synthetic)], {})).series
    assert (line.xs, disk.filled, made.filled) == (pytest.approx((50, 100)), True, False)


# Times


def test_distributions_show_every_outlier():
    times = np.r_[np.linspace(0.099, 0.101, 50), 0.13, 0.9]
    panel = panel_of(distributions_chart([observation("a", times_s=times)], {}))
    found = {series.shape: series for series in panel.series if series.shape}
    assert found["x-thin-open"].xs == pytest.approx((1.3,), rel=0.01)
    assert found["triangle-right"].xs == (1.6,)  # beyond the edge, as an arrow
    assert found["triangle-right"].hover[0].endswith("iteration 52: 900 ms, 9x the median")
    assert panel.series[-1].hover[0].split("\n")[2:] == [
        "116 ± 110 ms, mean ± SD of 52 iterations",
        "median 100 ms, quartiles 99.5 to 101 ms, 5 to 95 %: 99.1 to 101 ms",
        "2 outliers",
    ]
    many = [observation(f"r{n}", times_s=times) for n in range(60)]
    assert panel_of(distributions_chart(many, {})).title == "and 15 more rows in the tables"


def test_a_trace_marks_outliers_and_drift():
    rng = np.random.default_rng(1)
    times = 0.1 * (1 + 0.002 * rng.standard_normal(90))
    times[45:] *= 1.1
    times[40] *= 3
    drifting = observation("a", times_s=times, findings=(DRIFT,))
    panel = trace_panel(drifting)
    assert "slower, from iteration" in panel.title
    triangle = next(one for one in panel.series if one.shape == "triangle-up")
    assert triangle.xs == (41,)
    assert triangle.ys[0] < 1e3 * times[40]  # held at the edge
    assert f"{1e3 * times[40]:.0f} ms" in triangle.hover[0]
    assert panel.series[-1].dashed
    steady = observation("s", times_s=0.1 * (1 + 0.002 * rng.standard_normal(90)))
    assert traced_runs([steady, drifting])[0].name == "a"


@pytest.mark.parametrize(("count", "width_in", "rows"), [(1, 6.5, 1), (3, 6.5, 2), (3, 3.5, 3)])
def test_panels_stand_in_rows(count, width_in, rows):
    chart = panel_chart([trace_panel(observation("a", times_s=(1.0,)))] * count, width_in)
    assert (len(chart.panels), chart.rows) == (count, rows)


# Ratios


def test_a_comparison_shows_each_interval_at_its_ratio():
    runs = [run for run in published() if run.env == "rtx4090"]
    a, b = ([run for run in runs if run.precision == name] for name in ("fp32", "amp"))
    found = compare_pairs(pair_runs(a, b, THROUGHPUT.name).pairs, THROUGHPUT)
    panel = panel_of(comparison_chart(found, 0.02))
    assert [series.xs[0] for series in markers_of(panel)] == [one.estimate.ratio for one in found]
    lines = [series.xs for series in panel.series[1:] if not series.shape]
    assert lines == [one.estimate.ends for one in found]
    assert panel.bands[0].xs == (1 / 1.02, 1.02)


def test_a_comparison_takes_nothing_one_and_too_many():
    assert panel_of(comparison_chart([], 0.02)).empty == "nothing to compare"
    pairs = [
        pair
        for batch in range(80)
        for pair in pair_runs(
            repeated(f"a{batch}", [100.0], batch_size=batch),
            repeated(f"b{batch}", [100.0 + batch], batch_size=batch),
            THROUGHPUT.name,
        ).pairs
    ]
    panel = panel_of(comparison_chart(compare_pairs(pairs, THROUGHPUT), 0.02))
    assert len(panel.y.names) == 60
    assert panel.title == "lab resnet18 fp32; and 20 nearer to 1"
    low, high = panel_of(comparison_chart(compare_pairs(pairs[:1], THROUGHPUT), 0.02)).x.limits
    assert low < 1 / 1.02 < 1.02 < high


def test_machines_are_grouped_by_model_with_intervals_where_there_are_any():
    across = across_machines(published(), reference="rtx4080")
    ((chart, names),) = speed_up_charts(across.against, {})
    panel, counted = panel_of(chart), [row for pair in across.against for row in pair.counted]
    assert panel.y.names[0] == "mobilenet_v2 fp32 batch 128, colab_t4"
    assert set(names) == {name for row in counted for name in row["runs"].names}
    lines = [one for one in panel.series if one.group and not one.shape]
    markers = markers_of(panel)
    assert len(markers) == len(panel.y.names) == len(counted)
    assert len(lines) == sum(one.filled for one in markers) < len(counted)
    assert sum(np.diff(panel.y.ticks) > 1) == len({one.group for one in markers}) - 1
    ratio = ratio_digits(markers[0].xs[0])
    assert f"over rtx4080\ntimes as fast: {ratio}\n" in markers[0].hover[0]
    apart = [observation("a", env="a"), observation("b", env="b", batch_size=99)]
    assert speed_up_charts(across_machines(apart).against, {}) == []


def test_many_rows_go_to_further_pages_of_one_axis():
    runs = [
        observation(f"{env}{batch}", rate, env=env, batch_size=batch)
        for env, rate in (("a", 10), ("b", 20), ("c", 40))
        for batch in range(1, 31)
    ]
    pages = [panel_of(chart) for chart, _ in speed_up_charts(across_machines(runs).against, {})]
    assert [len(panel.y.names) for panel in pages] == [40, 20]
    assert len({panel.x.limits for panel in pages}) == 1


@pytest.mark.parametrize(
    ("rates", "ticks"),
    [((100, 103), (1.0, 1.01, 1.02, 1.03)), ((100, 210), (1.0, 1.5, 2.0, 2.5)), ((1, 30), None)],
)
def test_a_short_axis_has_ticks_between_its_ends(rates, ticks):
    runs = [observation(env, rate, env=env) for env, rate in zip("ab", rates, strict=True)]
    ((chart, _),) = speed_up_charts(across_machines(runs).against, {})
    assert panel_of(chart).x.ticks == ticks


def test_a_tuning_shows_every_effect_and_every_trial(result):  # noqa: F811
    charts = tuning_charts(result)
    gains, trials = map(panel_of, charts.values())
    assert gains.y.names == (
        "all of them: tuned over start",
        "batch_size: 32 over 16 (auto)",
        "threads: 2 over 1 (auto)",
    )
    rows = {"threads=2 (adopted)", "batch_size=32 (adopted)", "compile=default", "confirmation"}
    assert rows <= {*trials.y.names}
    hovers = [words.split("\n")[0] for series in trials.series for words in series.hover]
    assert {*hovers} == {f"trial {one.number}" for one in result.trials}
    (failed,) = [series for series in trials.series if series.group == "no result"]
    rates = [x for series in trials.series if series is not failed for x in series.xs]
    assert trials.x.limits[0] < failed.xs[0] < min(rates)
    unsure = replace(result.ablation[0], interval=replace(result.ablation[0].interval, low=0.99))
    doubtful = tuning_charts(replace(result, confirmed=None, ablation=(unsure, result.ablation[1])))
    assert [one.filled for one in markers_of(panel_of(doubtful["tuning"]))] == [False, True]
    for chart in charts.values():
        drawn(chart)


@pytest.mark.parametrize("found", ["nothing", "result"])
def test_a_tuning_without_fresh_runs_shows_what_was_compared(found, request):
    so_far = replace(request.getfixturevalue(found), confirmed=None, ablation=())
    panel = panel_of(tuning_charts(so_far)["tuning"])
    compared = [one for one in so_far.comparisons if one.interval is not None]
    assert "no gain was confirmed" in panel.title
    assert panel.y.names == tuple(one.name for one in compared)
    markers = markers_of(panel)
    assert [one.xs[0] for one in markers] == [one.interval.ratio for one in compared]
    assert not any(one.filled for one in markers)
    none = tuning_charts(replace(so_far, comparisons=()))["tuning"]
    assert panel_of(none).empty == "nothing was adopted and confirmed"


# The two renderers

HOSTILE = "</b><img src=x> $x^$ %{y} &amp;"


@pytest.mark.slow
def test_paper_and_page_show_the_same():
    """A chart of each kind; a person wrote the name of the model."""
    runs = [
        observation(f"{batch}-{repeat}", 10.0 * batch + repeat, batch_size=batch, arch=HOSTILE)
        for batch in (8, 16, 32)
        for repeat in (1, 2)
    ]
    groups = group_runs(runs)
    (curves,) = batch_curves(runs)
    times = np.r_[np.linspace(0.099, 0.101, 50), 0.13, 0.9]
    timed = observation("t", times_s=times, findings=(DRIFT,), arch=HOSTILE)
    predicted = prediction_panel(fit_curve(curves), HOSTILE)
    for chart in (
        panel_chart([over_batches(runs)]),
        models_chart(groups, {}),
        variability_chart(scatter_rows(runs)),
        real_synthetic_chart([(groups[0], groups[1])], {}),
        distributions_chart([timed], {}),
        panel_chart([trace_panel(timed), predicted, predicted]),
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


@pytest.mark.parametrize(
    ("chart", "words"),
    [
        (panel_chart([over_batches([])]), "no batch sizes to draw"),
        (models_chart([], {}), "no run has this"),
        (variability_chart([]), "no run has this"),
        (real_synthetic_chart([], {}), "no run has this"),
        (distributions_chart([observation("a")], {}), "no run has this"),
    ],
)
def test_empty_axes_say_so(chart, words):
    (axes,), page = drawn(chart)
    assert words in {text.get_text() for text in axes.texts}
    assert words in {note.text for note in page.layout.annotations}


def test_an_axis_of_part_of_a_decade_has_ticks():
    page = interactive_chart(models_chart(group_runs([observation("a", 320.0)]), {}))
    low, high = (10**end for end in page.layout.xaxis.range)
    assert low < 300 < 400 < high
    assert page.layout.xaxis.dtick == "D1"  # 300 and 400; of D2's, 200 and 500, none


# The figures of a report


def test_images_and_sequences_share_no_figure_of_models():
    runs = place_runs([make.run_record(), make.sequence_record()], [])
    titles = [one.title for one in run_figures(runs, {})]
    assert {"Models and machines, images", "Models and machines, sequences"} <= set(titles)


def test_a_processors_modelled_memory_is_drawn_beside_a_gpus_measured_one():
    peak = {"peak_memory_allocated_bytes": 10**9, "peak_memory_reserved_bytes": 10**9}
    on_gpu = {"environment": make.environment(label="gpu-lab", device=make.gpu())}
    records = []
    for batch in (8, 16):
        measured = samples.measurement((1.0,) * 10, batch, **peak)
        resolved = make.resolved(batch_size=batch, backend="cuda")
        gpu = {**on_gpu, "resolved": resolved, "measurement": measured}
        records += [make.run_record(f"cpu-{batch}", batch)]
        records += [make.run_record(f"gpu-{batch}", batch, **gpu)]
    titles = [one.title for one in run_figures(place_runs(records, []), {})]
    assert {"Memory over batch size, lab", "Memory over batch size, gpu-lab"} <= set(titles)


def test_no_figure_takes_the_file_of_another(tmp_path):
    """A second page of machine `lab` and the first of machine `lab-2`."""
    names = ("prediction-lab", "prediction-lab", "prediction-lab-2")
    figures = [ReportFigure(name, "", "", models_chart([], {})) for name in names]
    files = save_figures({"runs": figures}, tmp_path)["runs"]
    assert len({one.name for one in files}) == len(list(tmp_path.glob("*.png"))) == 3
