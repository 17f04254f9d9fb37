"""Each finding has a run that causes it and a near miss that does not."""

import pytest
import samples

from bench.verdict import judge, judge_ceilings


def codes(**changes):
    return [finding.code for finding in judge(samples.run_record(**changes)).findings]


def window(times_s, **changes):
    return {"measurement": samples.measurement(times_s, **changes)}


def test_a_steady_run_is_clean_and_has_nothing_to_say():
    verdict = judge(samples.run_record())
    assert verdict.level == "clean"
    assert verdict.findings == ()


@pytest.mark.parametrize("outcome", ["oom", "crashed", "interrupted", "refused", "unsupported"])
def test_whatever_did_not_end_well_is_invalid_with_its_reason(outcome):
    verdict = judge(samples.failed_record(outcome, "the reason"))
    assert verdict.level == "invalid"
    assert verdict.findings[0].code == outcome
    assert verdict.findings[0].message == "the reason"


def test_few_iterations():
    assert "few-iterations" in codes(**window([0.5] * 4))
    assert "few-iterations" not in codes(**window([0.5] * 5))


def test_drift_between_the_windows_ends():
    assert "drift" in codes(**window([1.0] * 10 + [1.1] * 10 + [1.2] * 10))
    assert "drift" not in codes(**window([1.0] * 10 + [1.01] * 10 + [1.02] * 10))


def test_noise_as_large_as_the_change_is_no_drift():
    noisy = [1.0, 1.4, 0.6, 1.3, 0.7] * 2 + [1.2, 1.5, 0.8, 1.4, 0.9] * 4
    assert "drift" not in codes(**window(noisy))


def test_single_slow_iterations_are_noted_not_dropped():
    verdict = judge(samples.run_record(**window([0.5] * 9 + [1.5])))
    assert [finding.code for finding in verdict.findings] == ["outliers"]
    assert verdict.level == "clean"


def test_iterations_that_do_not_fill_their_window():
    assert "window-gap" in codes(**window([0.5] * 6, window_end_clock_s=1003.1))
    assert "window-gap" not in codes(**window([0.5] * 6, window_end_clock_s=1003.05))


def test_waiting_for_data():
    assert "input-bound" in codes(**window([0.5] * 6, data_wait_s=(0.03,) * 6))
    assert "input-bound" not in codes(**window([0.5] * 6, data_wait_s=(0.02,) * 6))


def test_throttling_by_its_share_of_samples():
    hot = samples.telemetry(throttle_share={"SwThermal": 0.2, "SwPowerCap": 0.01})
    findings = judge(samples.run_record(telemetry=hot)).findings
    assert [finding.message for finding in findings] == ["SwThermal in 20% of the samples"]


def using(other_percent):
    """Two samples of other processes' load; 200 would be both cores of the sample machine."""
    load = samples.Series(
        name="other_cpu_percent", source="psutil", times_s=(0.0, 0.5), values=other_percent
    )
    return samples.telemetry(series=(load,))


def test_others_on_the_processor_spoil_a_cpu_run_only():
    assert "busy-host" in codes(telemetry=using((0.0, 30.0)))
    assert "busy-host" not in codes(telemetry=using((0.0, 10.0)))
    on_gpu = samples.environment(device=samples.device_info(backend="cuda"))
    assert "busy-host" not in codes(telemetry=using((100.0, 100.0)), environment=on_gpu)


def test_roofs_measured_beside_others_are_suspect():
    record = samples.ceilings_record(telemetry=using((50.0, 50.0)))
    assert judge_ceilings(record).level == "suspect"
    assert judge_ceilings(samples.ceilings_record(telemetry=using((1.0, 1.0)))).level == "clean"
    failed = samples.ceilings_record(outcome="crashed", reason="RuntimeError: no")
    assert judge_ceilings(failed).level == "invalid"


def test_others_on_the_device():
    busy = samples.telemetry(foreign_processes=("812 firefox",))
    verdict = judge(samples.run_record(telemetry=busy))
    assert verdict.level == "suspect"
    assert "812 firefox" in verdict.findings[0].message


def test_battery_emulation_hidden_syncs_and_lost_loss():
    assert "battery" in codes(environment=samples.environment(power_source="battery"))
    assert "battery" not in codes(environment=samples.environment(power_source="mains"))
    assert "emulated" in codes(resolved=samples.resolved(native_math=False))
    assert "hidden-syncs" in codes(**window([0.5] * 6, hidden_syncs=2))
    assert "hidden-syncs" not in codes(**window([0.5] * 6, hidden_syncs=0))
    lost = samples.facts(
        type(samples.measurement()),
        **{
            name: value
            for name, value in samples.measurement()
            if name not in ("first_loss", "last_loss", "missing") and value is not None
        },
    )
    assert "loss-not-finite" in codes(measurement=lost)
