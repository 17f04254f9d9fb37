"""Predictions that cover what is measured later, and refusals where nothing supports one."""

import math
from itertools import chain

import factories as make
import numpy as np
import pytest
import samples
from observed import curve, invoke, observation, records_on_disk, repeated

import commands.predict
from analysis.prediction.batch_size import (
    fit_curve,
    fit_step,
    memory_of,
    predict_batch,
)
from analysis.prediction.several_devices import exchange_times_s, predict_devices
from analysis.runs.groups import Runs
from analysis.runs.place import place_runs
from bench.config import RunConfig
from bench.errors import UserError
from bench.records import MemoryFootprint

GIGA = make.GIGA


def curve_of(rates):
    (found,) = Runs(curve(rates)).curves
    return found


def measured(batches, noise=None):
    """Steps of 0.1 s and 0.01 s an image, but for relative noise."""
    sizes = np.array(batches)
    rates = sizes / (0.1 + 0.01 * sizes) * np.exp(0.0 if noise is None else -noise)
    return curve_of(dict(zip(batches, rates, strict=True)))


def test_the_model_by_hand_has_no_negative_term():
    """0.1 s a step and 0.01 s an image: 0.18 s at 8 and 0.26 s at 16; at 32 then 32 / 0.42."""
    model = fit_step([8, 16], [0.18, 0.26])
    assert model.fixed_s == pytest.approx(0.1)
    assert model.per_sample_s == pytest.approx(0.01)
    assert model.samples_per_s(32) == pytest.approx(32 / 0.42)
    model = fit_step([8, 16, 32], [0.08, 0.17, 0.40])  # dearer per image with each size
    assert model.fixed_s == 0
    assert model.per_sample_s > 0


@pytest.mark.parametrize(
    ("least_s", "per_image_s"),
    [(0.0, 0.001), (0.005, 0.005), (0.05, 0.001)],  # a roof that the steps outrun is wrong
)
def test_an_image_takes_no_less_than_its_roof_asks_for(least_s, per_image_s):
    found = fit_step([8, 16, 32], [0.20, 0.21, 0.22], least_s).per_sample_s
    assert found == pytest.approx(per_image_s, rel=0.2)


def test_what_a_step_of_several_batches_costs_once_is_of_the_step():
    """0.6 s a step and 0.02 s a sample of each batch: 6 batches in 0.6 + 6 * 0.02 * b seconds."""
    rates = {b: 6 * b / (0.6 + 6 * 0.02 * b) for b in (8, 16, 32)}
    (found,) = Runs(curve(rates, devices=2, grad_accum_steps=3)).curves
    fitted = fit_curve(found)
    assert fitted.fixed_s == pytest.approx(0.6)
    assert predict_batch(found, 24).facts["fixed_s"] == pytest.approx(0.6)
    assert fitted.model.samples_per_s(24) == pytest.approx(6 * 24 / (0.6 + 6 * 0.02 * 24))


MIB = 2**20
#: 1 ms and 1 GB/s.
LINK = tuple(samples.all_reduce(size, 1e-3 + size / 1e9) for size in (1024, 64 * MIB))


def on_devices(*, link=LINK, shared=None, devices=2, backend="cuda"):
    """A batch of 16 by runs of 8, 16 and 32 on one device: 0.1 s a step and 0.01 s an image.

    The gradients are of 27 MiB. `shared` are the steps of a run of two with and without exchange.
    """
    work = make.complexity()
    there = {"environment": make.environment(device=samples.device_info(backend=backend))}
    held = work.memory.model_copy(update={"gradients_bytes": 27 * MIB})
    work = work.model_copy(update={"memory": held})
    records = [
        make.run_record(
            f"r{b}", b, 0.1 + 0.01 * b, settings={"repeat": 1}, complexity=work, **there
        )
        for b in (8, 16, 32)
    ]
    if shared:
        window = make.measurement(step_s=shared[0], images=32).replaced(
            ranks=samples.distributed_figures(synced_step_s=shared[:1], local_step_s=shared[1:])
        )
        two = {"devices": 2, "repeat": 1}
        records.append(make.run_record("two", 16, settings=two, measurement=window, **there))
    runs = place_runs(records)
    (curve, *_) = Runs(run for run in runs if run.config.devices == 1).curves
    roofs = [samples.ceilings_record(**there, all_reduces=link)]
    return predict_devices(predict_batch(curve, 16, runs), devices, runs, roofs).facts


def test_several_devices_take_the_exchange_that_nothing_hides():
    """DistributedDataParallel exchanges 1, 25 and 1 MiB: 3 ms and 27 MiB at 1 GB/s."""
    assert exchange_times_s(27 * MIB, LINK) == pytest.approx(
        [1e-3 + MIB / 1e9, 1e-3 + 25 * MIB / 1e9, 1e-3 + MIB / 1e9]
    )
    assert exchange_times_s(512, LINK) == pytest.approx([1e-3 + 1024 / 1e9])
    exchange_s = 3e-3 + 27 * MIB / 1e9
    unknown = on_devices()
    assert unknown["exchange_s"] == unknown["exposed_high_s"] == pytest.approx(exchange_s)
    assert unknown["exposed_low_s"] == pytest.approx(1e-3 + MIB / 1e9)
    assert unknown["images_per_s"] is None
    assert unknown["low"] == pytest.approx(32 / (0.26 + exchange_s))
    # 10 ms of the exchange are seen, and computing takes 10 % longer than on one device
    known = on_devices(shared=(0.296, 0.286))
    assert known["exposed_low_s"] == known["exposed_high_s"] == pytest.approx(0.01)
    assert known["slowdown"] == pytest.approx(1.1)
    assert known["images_per_s"] == pytest.approx(32 / 0.296)
    assert known["efficiency_low"] == pytest.approx(0.26 / 0.296)


def test_processes_of_one_processor_need_a_run_that_shows_how_they_slow_each_other():
    with pytest.raises(UserError, match="mlproject run --devices 2"):
        on_devices(backend="cpu")
    assert on_devices(backend="cpu", shared=(0.6, 0.5))["slowdown"] == pytest.approx(0.5 / 0.26)


@pytest.mark.parametrize(("link", "devices"), [((), 2), (LINK, 4)])
def test_an_unknown_link_is_refused_with_what_measures_it(link, devices):
    with pytest.raises(UserError, match=f"mlproject ceilings --devices {devices}"):
        on_devices(link=link, devices=devices)


def test_a_prediction_without_noise_is_exact_and_says_so():
    found = fit_curve(measured([8, 16, 32, 64]))
    assert found.model.samples_per_s(48) == pytest.approx(48 / 0.58)
    assert found.interval(48) == pytest.approx((48 / 0.58, 48 / 0.58))
    assert found.held_out_error == pytest.approx(0, abs=1e-9)
    # without batch 32 the other two give 0.42 s there; 0.5 s were measured: 19 % too fast
    found = dict(fit_curve(curve_of({8: 8 / 0.18, 16: 16 / 0.26, 32: 32 / 0.5})).held_out)
    assert found[32] == pytest.approx(0.5 / 0.42 - 1)


@pytest.mark.parametrize("batches", [[8, 16, 32], [8, 16, 32, 64, 128]])
@pytest.mark.slow
def test_the_interval_covers_a_new_measurement_95_times_in_100(batches):
    rng = np.random.default_rng(31)
    hits = []
    for _ in range(2000):
        found = fit_curve(measured(batches, noise=0.02 * rng.standard_normal(len(batches))))
        new = 24 / (0.34 * math.exp(0.02 * rng.standard_normal()))
        hits.append(found.interval(24).low <= new <= found.interval(24).high)
    assert 0.93 <= np.mean(hits) <= 0.97


def test_the_scatter_of_repeats_is_the_least_deviation():
    spread = np.exp([-0.05, 0.05])
    runs = [repeated(f"b{n}", n / (0.1 + 0.01 * n) * spread, batch_size=n) for n in (8, 16, 32)]
    (curve,) = Runs(chain.from_iterable(runs)).curves
    found = predict_batch(curve, 24)
    assert found.curve.deviation == pytest.approx(0.05 * math.sqrt(2))
    assert found.interval.low < found.samples_per_s < found.interval.high
    # the leverages of the sizes that were fitted add up to the number of terms
    intervals = [found.curve.interval(size) for size in (8, 16, 32)]
    widths = [math.log(ends.high / ends.low) / 2 / 12.7062 for ends in intervals]  # t of 1 degree
    assert sum((w / found.curve.deviation) ** 2 - 1 for w in widths) == pytest.approx(2, rel=1e-4)


RATES = {8: 8 / 0.18, 16: 16 / 0.26, 32: 32 / 0.42}


@pytest.mark.parametrize(
    ("rates", "batch", "message"),
    [
        (RATES, 33, "beyond the measured 32, and imported runs do not tell how much memory"),
        (RATES, 1, r"more than 4 times beyond what was measured \(8 to 32\)"),
        ({8: 10, 16: 15}, 12, "needs 3 measured batch sizes, here 8, 16: measure more"),
        (RATES | {64: 5.0}, 48, "batch 64 fell to 5 images/s, where memory spilled"),
        (RATES, 64, r"batch 64 ran out of memory \(run big\)"),
    ],
)
def test_what_nothing_supports_is_refused(rates, batch, message):
    failed = observation("big", batch_size=64, outcome="oom", reason="no memory", metrics={})
    with pytest.raises(UserError, match=message):
        predict_batch(curve_of(rates), batch, [failed])


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
    (curve,) = place_runs(records, []).curves
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


@pytest.mark.parametrize(
    ("peaks_gb", "source", "at", "needed_gb", "largest"),
    [
        # 1 GB and 0.1 GB an image: 95 % of 16 GB less 1 holds 142 images
        ({8: None, 16: None}, "the cost model", 64, 7.4, 142),
        # 3 and 5 GB at 8 and 16 are 1 GB and 0.25 GB an image: 14.2 / 0.25 is 56.8
        ({8: 3, 16: 5}, "measured peaks", 32, 9, 56),
        # the model gives 1.8 GB at 8; 3.6 GB were measured, so everything counts twice
        ({8: 3.6, 16: None}, "the cost model, raised to the measured peak", 8, 3.6, 66),
    ],
)
def test_what_memory_holds_by_hand(peaks_gb, source, at, needed_gb, largest):
    found = memory_of(curve_of_records(*(record(n, peak_gb=gb) for n, gb in peaks_gb.items())))
    assert (found.source, found.largest_batch) == (source, largest)
    assert found.need_bytes(at) == pytest.approx(1e9 * needed_gb)


def test_processes_on_a_cpu_share_its_memory():
    """1 GB and 0.1 GB an image for each: 95 % of a fourth of 64 GB less 1 holds 142 images."""
    host = make.environment(memory_bytes=64 * GIGA)
    shared = {"environment": host, "config": RunConfig(devices=4)}
    curve = curve_of_records(*(record(batch).replaced(**shared) for batch in (8, 16)))
    assert memory_of(curve).largest_batch == 142


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "vgg16"], "arch='vgg16': none of 4 runs fits"),
        (
            ["--arch", "resnet18"],
            r"that differ in backend.*\), precision \(amp-bf16, fp32\) fit; choose one by",
        ),
        (["--arch", "resnet18", "--filter", "x"], "--filter and --experiment ask a server"),
    ],
)
def test_predict_refuses_in_one_line(tmp_path, arguments, message):
    amp = make.run_record("amp-64", 64, settings={"precision": "amp"})
    folder = records_on_disk(tmp_path, record(8), record(16), record(32), amp)
    with pytest.raises(UserError, match=message):
        invoke(commands.predict, "--records", folder, "--batch-size", 24, *arguments)
