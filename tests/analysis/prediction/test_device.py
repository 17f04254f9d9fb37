"""Predictions for machines not measured: they add up, are refused, and learn from runs."""

import json
import math
from dataclasses import replace

import factories as make
import pytest
import samples
from observed import invoke, records_on_disk

import commands.predict
from analysis.comparison.machines import gather_prices
from analysis.prediction.device import (
    Loader,
    OwnRuns,
    fastest_loader,
    find_target,
    own_runs,
    predict_on,
)
from analysis.prediction.shares import shares
from analysis.roofs import Peaks
from analysis.runs.place import place_runs
from analysis.server.pull import RecordSet
from bench.config import RunConfig
from bench.errors import UserError
from bench.records import MemoryFootprint
from bench.records.complexity import CallWork, ListedStep

GIGA = make.GIGA


def op(name, shapes, gflop, moved_gb, phase="forward", label=None, calls=1):
    return CallWork(op=name, phase=phase, shapes=shapes, flops=int(gflop * GIGA), calls=calls,
                    label=label or name, elementwise_flops=0, eager_bytes=int(moved_gb * GIGA),
                    fused_bytes=int(moved_gb * GIGA))  # fmt: skip


PRODUCT = op("mm", ((8192, 8192), (8192, 8192)), 2 * 8.192**3, 0.8, label="linear", calls=10)
NORM = op("native_batch_norm", ((64, 64, 112, 112),), 0, 1, label="batch_norm", calls=10)
ATTENTION = op("_flash_attention", ((2, 2),), 500, 1, label="attention")


def counting(*ops, activations_gb=1.0):
    """Lists these ops for whatever step is asked."""
    memory = MemoryFootprint(weights_bytes=GIGA, gradients_bytes=GIGA, optimizer_bytes=GIGA,
                             activations_bytes=int(activations_gb * GIGA))  # fmt: skip
    step = ListedStep(sample="image", tokens_per_sample=None, memory=memory, ops=ops)
    return lambda spec: step


def config(batch_size=10, **settings):
    return RunConfig(arch="resnet18", batch_size=batch_size, **settings)


def predict(on="NVIDIA L4", ops=(PRODUCT, NORM), precision="fp32", **how):
    asked = config(precision=precision)
    return predict_on(find_target(on, precision), asked, counting(*ops), **how)


def test_the_account_adds_up_and_the_intervals_lie_within_each_other():
    found = predict()
    assert sum(part.time_s for part in found.account.parts) == pytest.approx(
        found.account.step_time_s
    )
    assert found.samples_per_s == pytest.approx(10 / found.account.step_time_s)
    ends = (*found.interval(90), *found.interval(50), found.samples_per_s)
    assert sorted(ends) == [ends[0], ends[2], ends[4], ends[3], ends[1]]
    compute_s, memory_s = 10 * PRODUCT.flops / 30.3e12, 10 * NORM.eager_bytes / 300e9
    assert found.account.step_time_s > compute_s + memory_s  # its roofs
    json.dumps(found.facts())


def test_a_step_of_many_small_ops_waits_for_the_host():
    small, known = op("relu", ((1,),), 0, 1e-9, calls=1000), shares()["shares"]
    found = predict(ops=(small,))
    host_s = known["host_step_s"] + 1000 * known["host_call_s"]
    assert found.account.step_time_s == pytest.approx(host_s, rel=0.01)
    assert any(part.kind == "idle" for part in found.account.parts)


def test_less_is_known_of_tensor_cores():
    fp32, amp = predict(on="NVIDIA L4"), predict(on="NVIDIA L4", precision="amp")
    assert amp.target.mode == "bf16"
    assert amp.account.step_time_s < fp32.account.step_time_s
    assert amp.deviation > fp32.deviation
    assert any("bf16" in sentence for sentence in amp.rests_on)
    assert find_target("Tesla T4", "amp").mode == "fp16"


@pytest.mark.parametrize(
    ("name", "precision", "message"),
    [
        ("NVIDIA L5", "fp32", r"on='NVIDIA L5': no such device is known; did you mean NVIDIA L4"),
        ("my phone", "fp32", "give its row with --peaks"),
        ("AMD Instinct MI300X", "fp32", "has no number of processors"),
        ("Tesla P4", "amp", "no roof of it in bf16 or fp16"),
        (
            "NVIDIA GeForce RTX 4090 Laptop GPU",
            "fp32",
            "parts of this name differ, .*, 110 W",
        ),
    ],
)
def test_a_device_without_a_basis_is_refused(name, precision, message):
    with pytest.raises(UserError, match=message):
        find_target(name, precision)


def test_less_is_known_of_a_chip_newer_than_all_in_the_fit():
    known, row = predict(on="NVIDIA A100 80GB PCIe"), find_target("NVIDIA A100 80GB PCIe", "fp32")
    newer = predict_on(replace(row, capability=9.0), config(), counting(PRODUCT, NORM))
    unknown = predict_on(replace(row, capability=None), config(), counting(PRODUCT, NORM))
    assert newer.deviation == unknown.deviation > known.deviation
    assert any("older" in sentence for sentence in newer.rests_on)
    assert not any("older" in sentence for sentence in known.rests_on)
    assert find_target("Tesla T4", "fp32").chip.batched_tile == (64, 64)


def test_a_part_is_named_by_its_figure_and_ones_own_row_goes_first():
    target = find_target("NVIDIA GeForce RTX 4090 Laptop GPU, 110 W", "fp32")
    assert target.roof.peak_flops_per_s == 29.3e12
    own = Peaks(devices="NVIDIA L4", fp32_tflop_per_s=1, memory_gb_per_s=2, source="a letter",
                processors=3, memory_gb=4)  # fmt: skip
    target = find_target("nvidia l4", "fp32", peaks=[own])
    assert (target.roof.peak_flops_per_s, target.chip.processors) == (1e12, 3)
    assert target.memory_bytes == 4 * 2**30


def test_what_memory_does_not_hold_is_refused_with_what_it_would():
    """3 GB and 2.5 GB an image: 95 % of 24 GB less 1/16, of 2^30 bytes, hold 19.9 / 2.5 images."""
    target = find_target("NVIDIA L4", "fp32")
    count = counting(PRODUCT, activations_gb=25)
    with pytest.raises(UserError, match=r"needs 28 GB .* has 24.2 GB; at most a batch of 7 fits"):
        predict_on(target, config(), count)
    assert (
        predict_on(target, config(), counting(PRODUCT, activations_gb=19)).step.memory.total_bytes
        == 22 * GIGA
    )


def test_ops_without_a_basis_may_not_carry_a_fifth_of_the_step():
    slight = predict(ops=(PRODUCT, ATTENTION))
    assert 0 < slight.unproven < 0.2
    assert slight.deviation > predict(ops=(PRODUCT,)).deviation
    with pytest.raises(UserError, match=r"no timing supports ops that carry .* % .* attention"):
        predict(ops=(NORM, ATTENTION))


def test_the_price_of_a_million_samples():
    found = predict(prices=gather_prices(["NVIDIA L4=0.72/h"], None))
    assert found.cost.per_million_samples == pytest.approx(1e6 * 0.72 / 3600 / found.samples_per_s)
    assert not predict(prices=gather_prices(["NVIDIA H200=2/h"], None)).cost


# Runs of one's own

#: A processor whose ops took 3 and 2 s of a profiled step of 6 s; the timed one took 9 s.
TIMED = (
    samples.op_time("linear", "forward", 3.0, op="mm"),
    samples.op_time("batch_norm", "forward", 2.0, op="native_batch_norm"),
)


def own_record(**changes):
    profile = samples.op_profile(*TIMED, step_time_s=6.0, **{"device_busy_share": None,
                                 "launch_gap_s": None, "copies": None})  # fmt: skip
    return make.run_record(**{"record_id": "own", "step_s": 9.0, "ops": profile, **changes})


def known():
    return RecordSet.of([own_record(), make.ceilings_record()])


def on_own_machine(*ops):
    found = known()
    target = find_target("Example CPU", "fp32", found)
    return target, own_runs(place_runs(found.measurements, found.ceilings), counting(PRODUCT, NORM))


def test_a_run_predicts_its_own_step():
    target, own = on_own_machine()
    assert target.is_measured
    assert own[0].host_call_s == pytest.approx(1.5 / 20)  # of 9 s, a sixth is no op's
    found = predict_on(target, config(), counting(PRODUCT, NORM), own)
    assert found.account.step_time_s == pytest.approx(9.0, rel=0.05)
    assert any("1 of your runs in fp32" in sentence for sentence in found.rests_on)


def test_runs_whose_ops_cannot_be_listed_say_nothing():
    def refuse(spec):
        raise UserError("a script")

    found = known()
    assert own_runs(place_runs(found.measurements, found.ceilings), refuse) == []


def test_a_profile_with_other_names_of_ops_takes_nothing_from_the_shares():
    renamed = samples.op_profile(samples.op_time("fused_kernel", None, 6.0), step_time_s=6.0)
    compiled = own_record(ops=renamed, record_id="compiled")
    _, (alone,) = on_own_machine()
    runs = place_runs([own_record(), compiled], [make.ceilings_record()])
    (both,) = own_runs(runs, counting(PRODUCT, NORM))
    key = ("linear", "forward")
    assert both.count == 2
    assert both.ratios[key] == pytest.approx(alone.ratios[key], rel=0.05)


def test_runs_in_another_precision_correct_products_by_what_is_carried_and_other_ops_whole():
    target, own = on_own_machine()
    sure = predict_on(target, config(), counting(PRODUCT, NORM), own)
    other = [replace(one, mode="bf16") for one in own]
    assert predict_on(target, config(), counting(PRODUCT, NORM), other).deviation > sure.deviation
    twice = {("linear", "forward"): math.log(2), ("batch_norm", "forward"): math.log(2)}
    other = OwnRuns("NVIDIA L4", "bf16", True, 1, twice, None)
    for ops, part in (((PRODUCT,), shares()["carried"]), ((NORM,), 1)):
        alone, helped = predict(ops=ops), predict(ops=ops, own=[other])
        slower = helped.account.step_time_s / alone.account.step_time_s
        assert slower == pytest.approx(2**part, rel=0.01)


def test_products_in_16_bits_on_a_processor_rest_on_runs_in_that_precision():
    target, own = on_own_machine()
    lower = replace(target, mode="bf16")
    with pytest.raises(UserError, match=r"no timing supports .* profiled run in bf16"):
        predict_on(lower, config(), counting(PRODUCT, NORM), own)
    found = predict_on(lower, config(), counting(PRODUCT), [replace(own[0], mode="bf16")])
    assert found.unproven == 0


def test_a_processor_without_a_run_has_no_basis():
    target, own = on_own_machine()
    with pytest.raises(UserError, match="no timing supports ops that carry 100 %"):
        predict_on(target, config(), counting(PRODUCT, NORM))
    relu = op("relu", ((1,),), 0, 50)
    with pytest.raises(UserError, match="most of it relu"):
        predict_on(target, config(), counting(NORM, relu), own)


def test_runs_on_another_gpu_count_by_what_is_carried():
    """Here linear took twice what the shares say; a run on a processor says nothing of a GPU."""
    _, of_processor = on_own_machine()
    own = OwnRuns("Example GPU", "fp32", True, 1, {("linear", "forward"): math.log(2)}, None)
    alone, helped = predict(ops=(PRODUCT,)), predict(ops=(PRODUCT,), own=[own])
    slower = helped.account.step_time_s / alone.account.step_time_s
    assert slower == pytest.approx(2 ** shares()["carried"], rel=0.01)
    assert helped.deviation < alone.deviation
    assert predict(own=of_processor).facts() == predict().facts()
    other = replace(own, mode="bf16")
    assert predict(own=[other]).facts() == predict().facts()


def test_amd_devices_are_said_to_use_shares_of_nvidia():
    """Their capability is the name of an architecture."""
    measured = find_target("NVIDIA L4", "fp32")
    amd = replace(measured, is_amd=True)
    found = predict_on(amd, config(), counting(PRODUCT))
    assert found.deviation > predict(ops=(PRODUCT,)).deviation
    assert any("NVIDIA's shares for AMD" in one for one in found.rests_on)
    device = make.gpu(name="AMD Instinct MI210", compute_capability="gfx90a")
    roofs = make.ceilings_record(environment=make.environment(device=device))
    target = find_target(device.name, "fp32", RecordSet.of([roofs]))
    assert (target.is_amd, target.is_measured, target.is_newer(0)) == (True, True, False)


def test_a_step_is_no_faster_than_the_loader_that_was_seen():
    alone = predict()
    slow, fast = (Loader(times * alone.samples_per_s, "image", "own") for times in (0.5, 2))
    held = predict(loader=slow)
    assert held.samples_per_s == pytest.approx(slow.samples_per_s)
    assert held.interval(90)[1] == held.samples_per_s
    assert sum(part.time_s for part in held.account.parts) == pytest.approx(
        held.account.step_time_s
    )
    assert held.account.seconds_of("input") == pytest.approx(alone.account.step_time_s)
    assert any("the step waits for it" in sentence for sentence in held.rests_on)
    for other in (fast, slow._replace(sample="sequence")):
        assert predict(loader=other).facts() == alone.facts()


def test_what_a_loader_gives_is_seen_where_it_runs_alone_or_a_step_waits():
    """Ten images in a step of 9 s, which it does not wait for; in one of 2 s, half of it."""
    waited = make.run_record("waits", 10, measurement=make.measurement(step_s=2.0, wait_s=1.0))
    assert fastest_loader([own_record()]) is None
    assert fastest_loader([own_record(), waited]) == Loader(5.0, "image", "waits")


# The command


def test_predict_on_devices_needs_no_server(monkeypatch):
    monkeypatch.setattr("bench.cost.cached_ops", counting(PRODUCT, NORM))
    found = invoke(
        commands.predict, "--arch", "resnet18", "--batch-size", 8, "--on", "NVIDIA L4",
        "--on", "Tesla T4", "--price", "NVIDIA L4=0.71/h", "--format", "json",
    )  # fmt: skip
    first, second = json.loads(found.output)
    assert (first["on"], second["on"]) == ("NVIDIA L4", "Tesla T4")
    assert first["images_per_s"] > second["images_per_s"] > second["low_90"]
    assert first["cost_per_million_samples"] > 0
    assert second["cost_per_million_samples"] is None


def test_devices_are_predicted_beside_one_that_is_refused(monkeypatch):
    monkeypatch.setattr("bench.cost.cached_ops", counting(PRODUCT, NORM))
    asked = "--arch", "resnet18", "--batch-size", 8, "--on", "my phone"
    found = invoke(commands.predict, *asked, "--on", "NVIDIA L4")
    assert found.exit_code == 0
    assert "not predicted: on='my phone'" in found.output
    assert "resnet18 fp32 batch 8 on NVIDIA L4" in found.output
    with pytest.raises(UserError, match="my phone"):
        invoke(commands.predict, *asked)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--on", "NVIDIA L4", "--env", "lab"], "name the machine with --on"),
        (["--on", "NVIDIA L4", "--price", "gcp-l4=1/h"], "no run is of a machine"),
        (["--image-size", 8], "--image-size: is for --on alone"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, arguments, message):
    folder = records_on_disk(tmp_path, own_record())
    with pytest.raises(UserError, match=message):
        invoke(commands.predict, "--arch", "resnet18", "--batch-size", 8, "--records", folder,
               *arguments)  # fmt: skip
