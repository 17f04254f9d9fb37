"""Findings say what the data show, cite their runs, and otherwise say nothing."""

from dataclasses import replace

import factories as make
import numpy as np
import pytest
import samples
from observed import DRIFT, curve, observation, published, repeated

from analysis.comparison.machines.speedups import machine_pairs
from analysis.findings import KINDS, find_all
from analysis.findings.batches import gain_per_doubling, knee_of
from analysis.findings.differences import scatters, uplifts
from analysis.findings.next_knob import most_gain
from analysis.report.tables.machines.speed_up_tables import speed_up_table
from analysis.runs.groups import batch_curves, cliff_of
from analysis.runs.placed import place_runs
from analysis.table import number_runs
from bench.records import Finding, Telemetry


def of_kind(runs, kind):
    return list(KINDS[kind](runs))


def observed(*records, ceilings=None, profiles=()):
    roofs = [make.ceilings_record()] if ceilings is None else ceilings
    return place_runs(records, roofs, profiles)


# The published reports


@pytest.fixture(scope="module")
def published_findings():
    return find_all(published())


def about(findings, kind, *words):
    return [
        one for one in findings if one.kind == kind and all(word in one.headline for word in words)
    ]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (("rtx4090", "resnet50 fp32", "398", "8.8 at batch 256"), {"line-28", "line-29"}),
        (("rtx4090", "vgg16 fp32", "220", "at batch 128"), {"line-33", "line-34", "line-35"}),
        (("rtx4090", "mobilenet_v2 fp32", "862", "39.1"), {"line-22", "line-23"}),
        (("rtx4090", "vgg16 amp", "408", "27.7"), {"line-37", "line-38"}),
        (("rtx4080", "resnet50 fp32", "366", "31 at batch 128"), {"line-41", "line-42"}),
    ],
)
def test_the_laptops_collapses_are_found_with_their_cause_and_runs(
    published_findings, words, lines
):
    (found,) = about(published_findings, "memory spill", *words)
    assert "Likely cause: device memory spilling to host memory" in found.headline
    assert lines <= set(found.runs)


def test_vgg16_is_told_down_to_its_last_batch_and_nothing_else_collapsed(published_findings):
    (found,) = about(published_findings, "memory spill", "vgg16 fp32")
    assert any(line.startswith("batch 256: 5.88 images/s") for line in found.evidence)
    assert any("128 amp, whose activations are smaller, runs at 408" in e for e in found.evidence)
    assert len(about(published_findings, "memory spill")) == 5


@pytest.mark.parametrize(
    ("arch", "words"),
    [("mobilenet_v2", "1.68 to 1.78"), ("resnet50", "1.92 to 1.94"), ("vgg16", "1.81")],
)
def test_the_uplift_of_amp_per_model_leaves_the_spilled_batches_out(
    published_findings, arch, words
):
    (found,) = about(published_findings, "precision uplift", arch)
    assert f"rtx4090, {arch}: amp is {words} times as fast as fp32." in found.headline
    assert "memory spilled there" in found.headline


def test_the_knee_on_the_t4_and_the_scatter_of_the_mac(published_findings):
    (found,) = about(published_findings, "batch knee", "colab_t4")
    assert found.headline == (
        "colab_t4, resnet50 fp32: the knee is at batch 64; beyond it a doubling gives +2.6 %."
    )
    assert found.runs == ("line-45", "line-46", "line-47")
    (scatter,) = about(published_findings, "variability")
    assert "on mac_cpu (17 %) as on rtx4090 (1 %)" in scatter.headline
    # no word of what nobody counted
    text = " ".join(str(one) for one in published_findings).lower()
    assert [word for word in ("flop", "roof", "intensity") if word in text] == []


# Memory spill


@pytest.mark.parametrize(
    ("rates", "place"),
    [
        ({32: 100, 64: 110, 128: 70}, 2),  # 0.636 of it is left
        ({32: 100, 64: 110, 128: 78}, None),  # 0.709
        ({32: 100, 64: 30, 128: 20}, 1),
        ({32: 100}, None),
    ],
)
def test_a_cliff_loses_more_than_30_percent(rates, place):
    (found,) = batch_curves(curve(rates))
    assert cliff_of(found) == place


def test_a_cpu_and_a_drop_within_the_noise_have_no_cliff():
    assert of_kind(curve({32: 100, 64: 10}, backend="cpu"), "memory spill") == []
    runs = repeated("a", [50, 200], batch_size=32) + repeated("b", [30, 110], batch_size=64)
    assert of_kind(runs, "memory spill") == []


def test_fp32_that_held_is_no_smaller_precision_for_amp_that_spilled():
    fp32 = [replace(run, name=f"fp32-{run.name}") for run in curve({64: 50, 128: 55})]
    (found,) = of_kind([*curve({64: 100, 128: 10}, precision="amp"), *fp32], "memory spill")
    assert "smaller" not in str(found)
    assert found.runs == ("b64", "b128")


def spilling(batch, step_s, peak_gb, **environment):
    peak = int(peak_gb * 1e9)
    return make.run_record(
        f"batch-{batch}",
        batch,
        resolved=make.resolved(backend="cuda", batch_size=batch),
        measurement=samples.measurement(
            (step_s,) * 10, images=batch, peak_memory_reserved_bytes=peak
        ),
        environment=make.environment(device=make.gpu(memory_bytes=16 * make.GIGA), **environment),
    )


def test_a_records_own_memory_and_system_speak_for_the_cause():
    runs = observed(spilling(64, 1, 8, virtualization="wsl2"),
                    spilling(128, 20, 16, virtualization="wsl2"))  # fmt: skip
    (found,) = of_kind(runs, "memory spill")
    assert "which Windows' driver (here or below WSL) does silently" in found.headline
    assert "batch 64: peak 50 % of the device's memory" in found.evidence
    assert "batch 128: peak 100 % of the device's memory" in found.evidence
    # with room in memory it is not the cause
    (found,) = of_kind(observed(spilling(64, 1, 2), spilling(128, 20, 4)), "memory spill")
    assert "Likely cause: unknown, as its peak was 25 %" in found.headline


# Knee


def test_the_knee_by_hand():
    """100, 150, 156: the best less 5 % is 148.2, so batch 64; doublings give 50 % and 4 %."""
    (groups,) = batch_curves(curve({32: 100, 64: 150, 128: 156}))
    found = knee_of(groups)
    assert found.knee.batch_size == 64
    assert found.gains == pytest.approx((0.5, 0.04))
    (two,) = batch_curves(curve({16: 100, 64: 144}))  # shared among two doublings
    assert gain_per_doubling(*two) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("rates", "words"),
    [  # 2 % from 120 to 128 are 24 % a doubling, 1 % from 127 to 128 even 141 %
        ({32: 900, 64: 990, 120: 1000, 128: 1020}, "the knee is at batch 64; beyond it a doubling"),
        ({32: 900, 64: 990, 127: 1000, 128: 1010}, "the knee is at batch 64; beyond it a doubling"),
        ({32: 500, 120: 1000, 128: 1020}, "no knee up to batch 128"),
        ({8: 100, 16: 150, 32: 220}, "no knee up to batch 32; the last doubling still gave +47 %"),
        ({8: 100, 16: 98, 32: 90}, "the smallest batch, 8, is within 5 % of the best"),
    ],
)
def test_curves_without_a_bend_are_told_as_they_are(rates, words):
    (found,) = of_kind(curve(rates), "batch knee")
    assert words in found.headline
    for none in (
        {8: 1, 16: 2},
        {126: 1, 127: 1.1, 128: 1.2},
        {8: 10, 16: 12, 32: 40},
        {8: 9, 16: 10, 32: 2},
    ):
        assert of_kind(curve(none), "batch knee") == []  # few sizes, impossible, past a cliff


# Uplift


def test_an_uplift_by_hand():
    runs = [observation("f", 100), observation("h", 250, precision="amp")]
    (found,) = uplifts(runs)
    assert found.estimate.ratio == pytest.approx(2.5)
    (told,) = of_kind(runs, "precision uplift")
    assert told.runs == ("h", "f")
    assert "2.5x (single runs, no interval)" in told.evidence[0]
    # another batch size or machine is no pair
    runs = [
        observation("f", 100, batch_size=32),
        observation("h", 250, precision="amp", batch_size=64),
        observation("g", 250, precision="amp", batch_size=32, env="other"),
    ]
    assert of_kind(runs, "precision uplift") == []


# What a run says of itself


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("throttled", "throttled"),
        ("foreign process", "foreign-process"),
        ("foreign process", "busy-host"),
        ("foreign process", "stolen-time"),
    ],
)
def test_what_the_telemetry_saw_is_told_by_machine(kind, code):
    finding = Finding(code=code, level="suspect", message="it did so")
    runs = observed(make.run_record("r1", verdict=make.suspect(finding)), make.run_record("r2"))
    (found,) = of_kind(runs, kind)
    assert found.runs == ("r1",)
    assert found.evidence == ("lab resnet18 fp32 batch 10: it did so",)
    assert of_kind(runs[1:], kind) == []


def test_telemetry_itself_leads_to_the_finding():
    from bench.records.verdict.run_verdict import judge

    record = make.run_record(
        telemetry=samples.facts(
            Telemetry, interval_s=0.2, series=(), throttle_share={"SwThermal": 0.4}
        )
    )
    record = record.model_copy(update={"verdict": judge(record)})
    (found,) = of_kind(observed(record), "throttled")
    assert "SwThermal in 40 % of the samples" in found.evidence[0]


def test_a_run_above_its_roof_is_told_first():
    runs = observed(make.run_record("fast", step_s=0.4))
    found = find_all(runs)
    assert found[0].kind == "above the roof"
    assert found[0].runs == ("fast",)
    assert "125 % of the compute ceiling" in found[0].evidence[0]


def test_a_drifting_window_is_named_with_its_place():
    moved = observation("moved", times_s=[0.1] * 60 + [0.12] * 30, findings=(DRIFT,))
    runs = [observation("still", times_s=[0.1] * 90), moved]
    (found,) = of_kind(runs, "drifting")
    assert found.runs == ("moved",)
    assert found.headline.startswith(
        "lab: 1 of 2 windows were not in steady state; 1 became slower"
    )
    assert "20 % slower than the first, most of it after iteration 60 of 90" in found.evidence[0]


def test_drift_is_what_the_stored_verdict_says():
    """Records of before were judged by medians: where the rules differ, what is stored counts."""
    steps = make.measurement(times_s=(0.1,) * 60 + (0.12,) * 30)
    steady = make.measurement(iterations=30)
    runs = observed(
        make.run_record("called clean", measurement=steps),
        make.run_record("called drifting", measurement=steady, verdict=make.suspect(DRIFT)),
    )
    assert {run.name: run.verdict for run in runs if run.drift} == {"called drifting": "suspect"}
    (found,) = of_kind(runs, "drifting")
    assert found.runs == ("called drifting",)


def test_two_counts_of_one_models_work_are_inconsistent():
    other = make.complexity(step_flops=200 * make.GIGA)
    runs = observed(make.run_record("r1"), make.run_record("r2", complexity=other))
    (found,) = of_kind(runs, "inconsistent FLOP")
    assert "10 to 20 GFLOP an image" in found.headline
    assert set(found.runs) == {"r1", "r2"}
    assert of_kind(runs[:1] * 2, "inconsistent FLOP") == []


def test_more_images_in_less_time_are_inconsistent():
    (found,) = of_kind(curve({8: 10, 16: 40}), "inconsistent times")
    assert "a step of 16 images took 0.4 s, one of 8 took 0.8 s" in found.headline
    assert of_kind(curve({8: 10, 16: 21}), "inconsistent times") == []
    noisy = repeated("a", [5, 20], batch_size=8) + repeated("b", [20, 60], batch_size=16)
    assert of_kind(noisy, "inconsistent times") == []


# What holds a run back


def test_waiting_for_data_is_told_with_its_most_gain():
    record = make.run_record("real", measurement=make.measurement(wait_s=0.4))
    (found,) = of_kind(observed(record), "input-bound")
    assert "waiting for data takes 40 % of the step, so 1.67x at most without it" in found.headline
    # real data is held against synthetic
    metrics = {"throughput_images_per_s": 50.0, "data_wait_share": 0.5}
    runs = [
        observation("real", metrics=metrics, data="/images", workers=4),
        observation("synthetic", 100.0),
    ]
    (found,) = of_kind(runs, "input-bound")
    assert "synthetic data: 100 images/s, 2x (single runs, no interval) of 50 images/s" in (
        found.evidence
    )
    assert of_kind(runs[1:], "input-bound") == []


def test_a_step_that_does_not_grow_with_the_batch_is_launch_bound():
    runs = curve({8: 100, 16: 196, 32: 300}, backend="cuda")
    (found,) = of_kind(runs, "launch-bound")
    assert "up to batch 16" in found.headline
    assert found.evidence == ("batch 8 to 16: the step takes 80 and 81.6 ms",)
    assert of_kind(curve({8: 100, 16: 196}, backend="cpu"), "launch-bound") == []
    assert of_kind(curve({8: 100, 16: 150}, backend="cuda"), "launch-bound") == []


@pytest.mark.parametrize(("fused_gb", "bound", "kinds"), [(40, "memory", 0), (2, "overhead", 1)])
def test_a_flat_step_that_reads_its_weights_is_not_launch_bound(fused_gb, bound, kinds):
    """40 of 50 GB/s in 1 s at both batches, as of a large language model: the roof explains it."""
    gpu = make.environment(device=make.gpu())
    records = [
        make.run_record(
            f"run-{batch}",
            batch,
            step_s,
            environment=gpu,
            settings={"backend": "cuda"},
            resolved=make.resolved(batch_size=batch, backend="cuda"),
            complexity=make.complexity(
                batch_size=batch,
                step_flops=batch * make.GIGA,
                fused_bytes=fused_gb * make.GIGA,
                eager_bytes=fused_gb * make.GIGA,
                compulsory_bytes=make.GIGA,
            ),
        )
        for batch, step_s in ((1, 1.0), (2, 1.02))
    ]
    roofs = make.ceilings_record(
        environment=gpu, ceilings=(make.ceiling(device="Example GPU", backend="cuda"),)
    )
    runs = observed(*records, ceilings=[roofs])
    assert {run.point.bound for run in runs} == {bound}
    assert len(of_kind(runs, "launch-bound")) == kinds


def test_what_fusion_can_save_is_of_the_bytes_between_eager_and_fused():
    """25 less 10 GB at 50 GB/s: 300 ms of a step of 2 s, though the roof is four times as fast."""
    (run,) = observed(make.run_record(step_s=2.0))
    (found,) = of_kind([run], "next knob")
    assert "torch.compile (fusion saves at most 300 of 2000 ms)" in found.headline
    assert "is at 4x this speed" in found.headline


def test_the_next_knob_and_its_most_gain_by_hand():
    """100 GFLOP at 200 GFLOP/s take 0.5 s of a step of 1 s: compute-bound, 2x at most."""
    (run,) = observed(make.run_record())
    assert most_gain(run.point) == pytest.approx(2)
    (found,) = of_kind([run], "next knob")
    assert "bound by compute" in found.headline
    assert "not tried here" in found.headline
    assert "The compute roof of this precision is at 2x this speed" in found.headline
    assert found.runs == ("run-1",)
    # 0.4 of 1 s is waiting, and the roof asks for 0.5: without the wait 0.6 s
    (starved,) = observed(make.run_record(measurement=make.measurement(wait_s=0.4)))
    assert starved.point.bound == "input"
    assert most_gain(starved.point) == pytest.approx(1 / 0.6)
    # nothing is promised at the roof or without one
    assert of_kind(observed(make.run_record(step_s=0.51)), "next knob") == []
    assert of_kind(observed(make.run_record(), ceilings=[]), "next knob") == []


# Machines


def test_one_machine_against_another_by_hand():
    """2 and 8 times as fast at two batch sizes: 4 times in the geometric mean."""
    slow = curve({8: 100, 16: 100, 32: 100}, env="slow")
    fast = curve({8: 200, 16: 800, 64: 900}, env="fast", backend="cuda")
    runs = [*slow, *(replace(run, name=f"fast-{run.name}") for run in fast)]
    (found,) = machine_pairs(runs)
    assert (found.a, found.b, found.ends) == ("slow", "fast", pytest.approx((2, 8)))
    assert found.mean.ratio == pytest.approx(4)
    assert found.mean.low is None  # single runs
    (shown,) = of_kind(runs, "machine speed-up")
    assert shown.headline == (
        "fast is 2 to 8 times as fast as slow, 4 in the geometric mean (2 common configurations)."
    )
    assert set(shown.runs) == {"b8", "b16", "fast-b8", "fast-b16"}
    # another model, precision or batch size is nothing in common
    assert machine_pairs(curve({8: 1}, env="a") + curve({8: 2}, env="b", precision="amp")) == []
    assert machine_pairs(slow) == []


def test_the_interval_of_a_machines_speed_up_by_hand():
    """Each mean of three has an error of 0.01 / sqrt(3); two sides, two ratios: 0.01 / sqrt(3)."""
    wobble = np.exp([-0.01, 0.0, 0.01])
    runs = [
        run
        for env, rate in (("slow", 100), ("fast", 300))
        for batch in (8, 16)
        for run in repeated(f"{env}{batch}", rate * wobble, env=env, batch_size=batch)
    ]
    (found,) = machine_pairs(runs)
    assert found.mean.ratio == pytest.approx(3)
    assert found.mean.deviation == pytest.approx(0.01 / np.sqrt(3))
    assert found.mean.degrees == pytest.approx(8)
    assert np.log(found.mean.high / 3) == pytest.approx(2.306 * 0.01 / np.sqrt(3), rel=1e-3)
    table = speed_up_table([found], number_runs(runs))
    assert table.cells[0][:6] == ["fast", "slow", "resnet18", "fp32", "2", "3"]


def test_machines_that_ran_otherwise_say_so():
    runs = observed(
        make.run_record(
            "a", environment=make.environment(label="a"), settings={"precision": "amp"}
        ),
        make.run_record(
            "b",
            step_s=0.5,
            settings={"precision": "amp"},
            environment=make.environment(label="b"),
            resolved=make.resolved(threads=8),
        ),
    )
    (found,) = machine_pairs(runs)
    assert (found.a, found.b) == ("a", "b")
    (one,) = found.shared
    assert one.series == ("resnet18", "amp-bf16 -> fp32 (amp asked for)")
    assert found.ran_with == "threads 4 -> 8"
    # like with like: another precision enters no mean but one that says so
    assert (one.note, found.mean) == ("ran in amp-bf16 and fp32", None)
    (series,) = found.by_series()
    assert series.mean.ratio == pytest.approx(2)
    assert of_kind(runs, "machine speed-up") == []


def test_a_processor_kept_from_its_instructions_has_no_counterpart_on_a_whole_one():
    limited = {"variables": {"ONEDNN_MAX_CPU_ISA": "AVX2"}}
    a, b, b_limited = (
        make.run_record(f"{number}", environment=make.environment(label=label, **variables))
        for number, (label, variables) in enumerate([("a", limited), ("b", {}), ("b", limited)])
    )
    assert machine_pairs(observed(a, b)) == []
    (found,) = machine_pairs(observed(a, b, b_limited))
    assert {*found.names} == {"0", "2"}


def test_the_published_machines_at_their_common_configurations(published_findings):
    (found,) = about(published_findings, "machine speed-up", "rtx4090", "as fast as colab_t4")
    # without the batches past the laptop's spill, where it is slower than the T4
    assert found.headline == (
        "rtx4090 is 2.8 to 3.55 times as fast as colab_t4, 3.21 (95 %: 3.18 to 3.24) in the "
        "geometric mean (3 common configurations)."
    )
    assert "mobilenet_v2 fp32: 2.8 (95 %: 2.7 to 2.9) times at batch 128" in found.evidence


# Variability


def test_scatter_is_pooled_over_configurations_by_hand():
    """Logs +-0.01 and +-0.03 around their means: variances 0.0002 and 0.0018, mean 0.001."""
    runs = repeated("a", np.exp([-0.01, 0.01]), batch_size=1)
    runs += repeated("b", np.exp([-0.03, 0.03]), batch_size=2)
    (found,) = scatters(runs)
    assert found.deviation == pytest.approx(np.sqrt(0.001))
    assert found.degrees == 2


def test_cloud_and_local_are_named_where_records_tell():
    def runs(env, provider, spread):
        return [
            make.run_record(
                f"{env}-{repeat}-{batch}",
                batch,
                1 + spread * (repeat - 2),
                settings={"repeat": repeat},
                environment=make.environment(label=env, cloud_provider=provider),
            )
            for batch in (10, 20)
            for repeat in (1, 2, 3)
        ]

    both = observed(*runs("desk", "none", 0.001), *runs("rented", "gcp", 0.05))
    (found,) = of_kind(both, "variability")
    assert "on rented (cloud, gcp) (5 %) as on desk (local) (0.1 %)" in found.headline
    alike = observed(*runs("desk", "none", 0.04), *runs("rented", "gcp", 0.05))
    assert of_kind(alike, "variability") == []


def test_clean_single_runs_are_no_news():
    assert find_all([observation("r1")]) == []
    assert find_all([]) == []
