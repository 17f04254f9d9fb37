"""Predictions that cover what is measured later, and refusals where nothing supports one."""

import json
import math

import factories as make
import numpy as np
import pytest
import samples
from observed import curve, observation, published, repeated
from test_analysis_commands import invoke, records_on_disk

import commands.analyse.predict
from analysis.prediction import MeasuredBatch, fit_curve, memory_of, predict_batch
from analysis.prediction.curve import fit_step, leverage
from analysis.runs.groups import batch_curves
from analysis.runs.placed import place_runs
from bench.errors import UserError
from bench.records import MemoryFootprint

GIGA = make.GIGA


def measured(batches, fixed_s=0.1, per_sample_s=0.01, noise=None):
    noise = np.zeros(len(batches)) if noise is None else noise
    steps_s = [
        (fixed_s + per_sample_s * batch) * math.exp(error)
        for batch, error in zip(batches, noise, strict=True)
    ]
    return [
        MeasuredBatch(batch, batch / step_s, None, (f"r{batch}",))
        for batch, step_s in zip(batches, steps_s, strict=True)
    ]


def curve_of(rates):
    (found,) = batch_curves(curve(rates))
    return found


def test_the_model_by_hand_has_no_negative_term():
    """0.1 s a step and 0.01 s an image: 0.18 s at 8 and 0.26 s at 16; at 32 then 32 / 0.42."""
    model = fit_step([8, 16], [0.18, 0.26])
    assert model.fixed_s == pytest.approx(0.1)
    assert model.per_sample_s == pytest.approx(0.01)
    assert model.samples_per_s(32) == pytest.approx(32 / 0.42)
    model = fit_step([8, 16, 32], [0.08, 0.17, 0.40])  # dearer per image with each size
    assert model.fixed_s == 0
    assert model.per_sample_s > 0


def test_an_image_takes_no_less_than_its_roof_asks_for():
    times = [0.20, 0.21, 0.22]
    assert fit_step([8, 16, 32], times).per_sample_s < 0.002
    assert fit_step([8, 16, 32], times, 0.005).per_sample_s == pytest.approx(0.005)
    # a roof that the steps outrun is wrong
    assert fit_step([8, 16, 32], times, 0.05).per_sample_s < 0.002
    # errors are relative: a step 10 % off counts alike at either end
    model = fit_step([1, 100], [0.02, 1.01])
    assert model.step_s(1) == pytest.approx(0.02)
    model = fit_step([1, 1, 100], [0.018, 0.022, 1.01])
    assert model.step_s(100) / 1.01 == pytest.approx(1, abs=0.001)


def test_leverage_by_hand():
    """Of two points and two terms each point is fitted exactly: leverage 1."""
    assert leverage([8, 16], [0.18, 0.26], 8, 0.18) == pytest.approx(1)
    assert leverage([8, 16], [0.18, 0.26], 64, 0.74) > 1


def test_a_prediction_without_noise_is_exact_and_says_so():
    found = fit_curve(measured([8, 16, 32, 64]))
    value, low, high = found.samples_per_s(48)
    assert value == pytest.approx(48 / 0.58)
    assert (low, high) == pytest.approx((value, value))
    assert found.held_out_error == pytest.approx(0, abs=1e-9)
    # without batch 32 the other two give 0.42 s there; 0.5 s were measured: 19 % too fast
    rows = [*measured([8, 16]), MeasuredBatch(32, 32 / 0.5, None, ("r32",))]
    found = dict(fit_curve(rows).held_out)
    assert found[32] == pytest.approx(0.5 / 0.42 - 1)


@pytest.mark.parametrize("batches", [[8, 16, 32], [8, 16, 32, 64, 128]])
@pytest.mark.slow
def test_the_interval_covers_a_new_measurement_95_times_in_100(batches):
    rng = np.random.default_rng(31)
    hits = []
    for _ in range(2000):
        found = fit_curve(measured(batches, noise=0.02 * rng.standard_normal(len(batches))))
        _, low, high = found.samples_per_s(24)
        new = 24 / (0.34 * math.exp(0.02 * rng.standard_normal()))
        hits.append(low <= new <= high)
    assert 0.93 <= np.mean(hits) <= 0.97


def test_the_scatter_of_repeats_is_the_least_deviation():
    runs = [
        run
        for batch in (8, 16, 32)
        for run in repeated(f"b{batch}", batch / (0.1 + 0.01 * batch) * np.exp([-0.05, 0.05]),
                            batch_size=batch)
    ]  # fmt: skip
    (curve,) = batch_curves(runs)
    found = predict_batch(curve, 24)
    assert found.curve.deviation == pytest.approx(0.05 * math.sqrt(2))
    assert found.low < found.samples_per_s < found.high


RATES = {8: 8 / 0.18, 16: 16 / 0.26, 32: 32 / 0.42}


@pytest.mark.parametrize(
    ("rates", "batch", "message"),
    [
        (RATES, 33, "beyond the measured 32, and imported runs do not tell how much memory"),
        (RATES, 1, r"more than 4 times beyond what was measured \(8 to 32\)"),
        ({8: 10, 16: 15}, 12, "needs 3 measured batch sizes, here 8, 16: measure more"),
    ],
)
def test_what_nothing_supports_is_refused(rates, batch, message):
    with pytest.raises(UserError, match=message):
        predict_batch(curve_of(rates), batch)


def test_within_the_measured_range_memory_is_no_question():
    found = predict_batch(curve_of(RATES), 24)
    assert found.memory == "batch 32 was measured, so a smaller one fits"
    assert found.samples_per_s == pytest.approx(24 / 0.34)
    assert found.curve.runs == ("b8", "b16", "b32")


def test_past_a_spill_and_past_an_oom_nothing_is_predicted():
    with pytest.raises(UserError, match="batch 64 fell to 5 images/s, where memory spilled"):
        predict_batch(curve_of(RATES | {64: 5.0}), 48)
    assert predict_batch(curve_of(RATES | {64: 5.0}), 24).samples_per_s == pytest.approx(24 / 0.34)
    failed = observation("big", batch_size=64, outcome="oom", reason="no memory", metrics={})
    with pytest.raises(UserError, match=r"batch 64 ran out of memory \(run big\)"):
        predict_batch(curve_of(RATES), 64, [failed])


def record(batch, *, peak_gb=None, memory_bytes=16 * GIGA, label="lab", **changes):
    """A step of 0.1 s and 0.01 s an image, on a device of 16 GB; 1 GB and 0.1 GB an image."""
    memory = MemoryFootprint(
        weights_bytes=GIGA // 2,
        gradients_bytes=GIGA // 4,
        optimizer_bytes=GIGA // 4,
        activations_bytes=batch * GIGA // 10,
    )
    peaks = {} if peak_gb is None else {"peak_memory_allocated_bytes": int(peak_gb * GIGA)}
    return make.run_record(
        f"b{batch}",
        batch,
        resolved=make.resolved(backend="cuda", batch_size=batch),
        measurement=samples.measurement((0.1 + 0.01 * batch,) * 10, images=batch, **peaks),
        complexity=make.complexity(batch_size=batch, step_flops=batch * 10**8, memory=memory),
        environment=make.environment(label=label, device=make.gpu(memory_bytes=memory_bytes)),
        **changes,
    )


def curve_of_records(*records):
    (curve,) = batch_curves(place_runs(records, []))
    return curve


def killed(batch, env="auto"):
    """A run whose worker was killed for its memory before it could say where it ran."""
    settings = {"batch_size": batch, "env": env}
    return make.failed_record(f"killed-{batch}", settings=settings, environment=None)


OTHER_MACHINE = record(64, label="other")


@pytest.mark.parametrize(
    ("others", "refused"),
    [
        ([killed(64)], True),
        ([killed(64, env="lab")], True),
        ([killed(64, env="other")], False),
        ([killed(64), OTHER_MACHINE], False),  # of one of the two
        ([killed(64, env="lab"), OTHER_MACHINE], True),
        ([killed(100)], False),
        ([killed(16)], False),  # 32 was measured, so 16 fits
    ],
)
def test_a_run_that_was_killed_before_its_machine_was_known_ends_predictions(others, refused):
    records = [record(batch) for batch in (8, 16, 32)]
    curve = curve_of_records(*records)
    runs = place_runs([*records, *others], [])
    if refused:
        with pytest.raises(UserError, match=r"batch 64 ran out of memory \(run killed-64\)"):
            predict_batch(curve, 70, runs)
        assert predict_batch(curve, 63, runs).samples_per_s == pytest.approx(63 / 0.73)
    else:
        assert predict_batch(curve, 70, runs).samples_per_s == pytest.approx(70 / 0.8)


def test_the_cost_models_memory_by_hand():
    """1 GB and 0.1 GB an image: 95 % of 16 GB less 1 holds 142 images."""
    found = memory_of(curve_of_records(record(8), record(16), record(32)))
    assert found.source == "the cost model"
    assert found.need_bytes(64) == pytest.approx(7.4e9)
    assert found.largest_batch == 142


def test_measured_peaks_go_before_the_model():
    """3 and 5 GB at 8 and 16: 1 GB and 0.25 GB an image; 14.2 / 0.25 is 56.8."""
    found = memory_of(curve_of_records(record(8, peak_gb=3), record(16, peak_gb=5)))
    assert found.source == "measured peaks"
    assert found.need_bytes(32) == pytest.approx(9e9)
    assert found.largest_batch == 56
    # the model gives 1.8 GB at 8; 3.6 GB were measured, so everything counts twice
    found = memory_of(curve_of_records(record(8, peak_gb=3.6), record(16)))
    assert found.need_bytes(8) == pytest.approx(3.6e9)
    assert "raised to the measured peak" in found.source


def test_a_batch_that_memory_holds_is_predicted_and_one_that_it_does_not_is_refused():
    curve = curve_of_records(record(8), record(16), record(32))
    found = predict_batch(curve, 64)
    assert found.samples_per_s == pytest.approx(64 / 0.74)
    assert found.memory == "7.4 of 16 GB by the cost model"
    for memory_bytes, message in (
        (6 * GIGA, r"needs 7\.4 GB by the cost model, the device has 6 GB"),
        (None, "beyond the measured 32, and the device's memory is not"),
    ):
        records = (record(batch, memory_bytes=memory_bytes) for batch in (8, 16, 32))
        with pytest.raises(UserError, match=message):
            predict_batch(curve_of_records(*records), 64)


def test_published_curves_are_predicted_within_their_range():
    runs = [one for one in published() if one.env == "colab_t4" and one.arch == "resnet50"]
    (curve,) = batch_curves(runs)
    found = predict_batch(curve, 96)
    assert 117 < found.samples_per_s < 120
    assert found.curve.held_out_error < 0.05


def test_predict_from_a_folder(tmp_path):
    folder = records_on_disk(tmp_path, record(8), record(16), record(32))
    arguments = f"--records {folder} --arch resnet18 --batch-size 24 --batch-size 64".split()
    done = invoke(commands.analyse.predict, *arguments)
    assert done.return_value == 0
    lines = done.output.splitlines()
    assert lines[0].startswith("lab resnet18 fp32 batch 24: 70.6 images/s (95 %: ")
    assert "    memory: 7.4 of 16 GB by the cost model" in lines
    assert "model: 100 ms a step and 10 ms an image" in lines
    assert lines[-1] == "runs: b8 b16 b32"
    facts = json.loads(invoke(commands.analyse.predict, *arguments, "--format", "json").output)
    assert [one["batch_size"] for one in facts] == [24, 64]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "vgg16"], "arch='vgg16': none of the 4 runs fits"),
        (
            ["--arch", "resnet18"],
            r"several configurations fit, choose one by backend.*\), precision \(amp-bf16, fp32\)$",
        ),
        (["--arch", "resnet18", "--filter", "x"], "--filter and --experiment ask a server"),
    ],
)
def test_predict_refuses_in_one_line(tmp_path, arguments, message):
    amp = make.run_record("amp-64", 64, settings={"precision": "amp"})
    folder = records_on_disk(tmp_path, record(8), record(16), record(32), amp)
    with pytest.raises(UserError, match=message):
        invoke(commands.analyse.predict, "--records", folder, "--batch-size", 24, *arguments)
