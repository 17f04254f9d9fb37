"""Which roof a run is held against."""

import factories as make
import pytest

from analysis.roofs.ceilings import NoCeiling, UsedCeiling, choose_ceiling
from analysis.runs.points import roofline_point
from bench.records import Finding, Verdict

GPU_ENV = make.environment(label="gpu", device=make.gpu())
GPU_RUN = make.run_record(environment=GPU_ENV, resolved=make.resolved(backend="cuda"))
GPU_CEILING = make.ceiling(backend="cuda", device="Example GPU")


def gpu_ceilings(record_id="c", *, hours=0, ceilings=(GPU_CEILING,), outcome="ok", **device):
    changes = {} if outcome == "ok" else {"outcome": outcome, "reason": "no"}
    return make.ceilings_record(
        record_id,
        hours=hours,
        environment=make.environment(device=make.gpu(**device)),
        ceilings=ceilings,
        **changes,
    )


def chosen(record, ceilings):
    used = choose_ceiling(record, ceilings)
    assert isinstance(used, UsedCeiling), used
    return used


def refused(record, ceilings):
    refusal = choose_ceiling(record, ceilings)
    assert isinstance(refusal, NoCeiling)
    return refusal.reason


BUSY = Finding(code="busy-host", level="suspect", message="others used 40% of the processor")


def test_a_roof_without_a_doubt_goes_before_a_newer_one_with():
    doubtful = make.ceilings_record(
        "doubtful", hours=2, verdict=Verdict(level="suspect", findings=(BUSY,))
    )
    clean = make.ceilings_record("clean", verdict=Verdict(level="clean", findings=()))
    assert chosen(make.run_record(), [doubtful, clean]).record_id == "clean"
    assert chosen(make.run_record(), [doubtful]).doubts == (BUSY,)
    point = roofline_point(make.run_record(), [doubtful])
    assert point.level == "suspect"
    assert "others used 40%" in point.findings[0].message


def test_the_newest_of_this_device_is_used():
    ceilings = [gpu_ceilings("old", hours=-5), gpu_ceilings("new", hours=2), gpu_ceilings("mid")]
    assert chosen(GPU_RUN, ceilings).record_id == "new"
    assert chosen(GPU_RUN, ceilings).instead_of_measured is None


def test_a_failed_calibration_is_passed_over():
    ceilings = [gpu_ceilings("good"), gpu_ceilings("bad", hours=1, outcome="crashed")]
    assert chosen(GPU_RUN, ceilings).record_id == "good"
    assert "bad ended crashed" in refused(GPU_RUN, ceilings[1:])


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ({"uuid": "GPU-2"}, "no ceilings were measured on this device"),
        ({"driver": "535.0"}, "c is of driver 535.0, the run of 570.1"),
        ({"power_limit_w": 250.0}, "c is at a power limit of 250.0 W, the run at 300.0 W"),
        ({"power_limit_w": None}, "c is at a power limit of None W"),
        ({"backend": "cpu"}, "no ceilings were measured on this device"),
    ],
)
def test_another_device_driver_or_power_limit_is_no_roof(device, reason):
    assert reason in refused(GPU_RUN, [gpu_ceilings(**device)])


def test_a_power_limit_is_the_same_within_a_watt():
    assert chosen(GPU_RUN, [gpu_ceilings(power_limit_w=300.4)]).record_id == "c"


def test_another_math_mode_is_no_roof():
    bf16 = make.ceiling(backend="cuda", math_mode="bf16")
    assert "c did not measure fp32" in refused(GPU_RUN, [gpu_ceilings(ceilings=(bf16,))])


def test_half_a_roof_is_no_roof():
    half = make.ceiling(backend="cuda", peak_bytes_per_s=None)
    assert "only one of the two roofs of fp32" in refused(GPU_RUN, [gpu_ceilings(ceilings=(half,))])


def test_a_datasheet_row_inside_a_record_is_not_a_measurement():
    sheet = make.ceiling(backend="cuda", kind="datasheet")
    assert "c did not measure fp32" in refused(GPU_RUN, [gpu_ceilings(ceilings=(sheet,))])


@pytest.mark.parametrize(
    "change",
    [
        {"cpu_model": "Another CPU"},
        {"cpu_signature": "family 26 model 2 stepping 1"},
        {"cpu_cores_usable": 4},
        {"machine": "arm64"},
        {"memory_bytes": 32 * make.GIGA},
        {"device": make.device(cores=2)},
        {"device": make.device(name="Another CPU")},
    ],
)
def test_without_a_uuid_the_machines_figures_decide(change):
    other = make.ceilings_record(environment=make.environment(**change))
    assert "no ceilings were measured on this device" in refused(make.run_record(), [other])


def test_without_a_uuid_a_little_memory_more_or_less_is_the_same_machine():
    same = make.ceilings_record(environment=make.environment(memory_bytes=int(15.9 * make.GIGA)))
    assert chosen(make.run_record(), [same]).record_id == "ceilings-1"


def test_one_missing_uuid_falls_back_to_the_figures():
    assert chosen(GPU_RUN, [gpu_ceilings(uuid=None)]).record_id == "c"


def test_without_a_measured_roof_the_datasheet_is_used_and_says_why():
    env = make.environment(device=make.gpu(name="NVIDIA H200", power_limit_w=700.0))
    run = make.run_record(environment=env, resolved=make.resolved(math_mode="bf16"))
    used = chosen(run, [])
    assert used.record_id is None
    assert (used.ceiling.kind, used.ceiling.peak_flops_per_s) == ("datasheet", 989e12)
    assert used.instead_of_measured == "no ceilings were measured on this device"


def test_an_unknown_device_has_no_roof():
    reason = refused(GPU_RUN, [])
    assert "datasheet table does not hold 'Example GPU'" in reason
    assert reason.endswith("run mlproject ceilings on that machine")


def test_a_record_without_a_device_has_no_roof():
    assert "does not say on which device" in refused(make.run_record(environment=None), [])
