"""Each finding has a run that causes it and a near miss that does not."""

import pytest
import samples

from bench.config import RunConfig
from bench.records import SampledSeries
from bench.records.verdict import judge


def codes(**changes):
    return [finding.code for finding in judge(samples.run_record(**changes)).findings]


def window(times_s=(0.5,) * 6, **changes):
    return {"measurement": samples.measurement(times_s, **changes)}


def ramp(last_s):
    return window([1.0] * 10 + [(1.0 + last_s) / 2] * 10 + [last_s] * 10)


def using(percent, backend="cpu", who="other"):
    """Two samples of what others used; 200 would be both cores of the sample machine."""
    load = samples.SampledSeries(
        name=f"{who}_cpu_percent", source="psutil", times_s=(0.0, 0.5), values=(0.0, percent)
    )
    device = samples.environment(device=samples.device_info(backend=backend))
    return {"telemetry": samples.telemetry(series=(load,)), "environment": device}


def unwatched(other_cpu_cores):
    """What the worker itself saw of others, and no launcher."""
    return {"telemetry": None, **window(other_cpu_cores=other_cpu_cores)}


CUT = {"outcome": "interrupted", "reason": "cut"}


def asked_for(precision):
    return {"config": RunConfig(precision=precision), "resolved": samples.resolved()}


def cut_warm_up(first_s, times_s=(0.9, 0.8), early="2 of 10 iterations"):
    """The first third of a window, whose other iterations take half a second."""
    window_s = [first_s] * 6 + [0.5, 0.7] * 6
    return window(window_s, warmup_times_s=(9.0, *times_s), warmup_ended_early=early)


def of_two_rates(slow_s, **changes):
    """A third of slow iterations, in turn with fast ones of a second."""
    return window([1.0, 1.0, slow_s] * 10, **changes)


def powered_by(source):
    return {"environment": samples.environment(power_source=source)}


def launching(backend, blocking):
    device = samples.device_info(backend=backend)
    variables = {"CUDA_LAUNCH_BLOCKING": blocking}
    return {"environment": samples.environment(device=device, variables=variables)}


@pytest.mark.parametrize("outcome", ["oom", "crashed", "interrupted", "refused", "unsupported"])
def test_whatever_did_not_end_well_is_invalid_with_its_reason(outcome):
    verdict = judge(samples.failed_record(outcome, "the reason"))
    assert verdict.level == "invalid"
    assert (verdict.findings[0].code, verdict.findings[0].sentence) == (outcome, "the reason")


def in_fp32(share, math_mode="bf16"):
    flops = int(share * samples.complexity().step_flops)
    return {"complexity": samples.complexity(fp32_flops=flops, math_mode=math_mode)}


def in_fp8(op, math_mode="fp8"):
    ops = (samples.CONVOLUTION.model_copy(update={"op": op}),)
    return {"complexity": samples.complexity(ops=ops, math_mode=math_mode)}


@pytest.mark.parametrize(
    ("code", "causes", "near_miss"),
    [
        ("few-iterations", window([0.5] * 3), window([0.5] * 4)),
        ("drift", ramp(1.2), ramp(1.02)),
        ("unproven", window([0.5] * 14), window([0.5] * 15)),
        ("settles", window([0.7] * 5 + [0.5] * 25), window([0.51] * 5 + [0.5] * 25)),
        ("never-steady", window(([1.0] * 8 + [1.2] * 8) * 3), window([1.0, 1.2] * 24)),
        ("disturbed", of_two_rates(1.16), of_two_rates(1.14)),
        ("disturbed", of_two_rates(1.16), of_two_rates(1.16, data_wait_s=(0.06,) * 30)),
        ("window-gap", window(window_end_clock_s=1003.1), window(window_end_clock_s=1003.05)),
        ("input-bound", window(data_wait_s=(0.03,) * 6), window(data_wait_s=(0.02,) * 6)),
        ("hidden-syncs", window(hidden_syncs=2), window(hidden_syncs=0)),
        ("changed-switches", window(changed_switches=("a to b",)), window(changed_switches=())),
        ("loss-not-finite", window(first_loss=None, last_loss=None), window(first_loss=None)),
        ("loss-not-finite", window(last_loss=None), {**CUT, **window(last_loss=None)}),
        ("busy-host", using(30.0), using(10.0)),
        ("busy-host", using(30.0, backend="cuda"), using(10.0, backend="cuda")),
        ("busy-host", unwatched(0.2), unwatched(0.1)),
        ("busy-host", unwatched(0.2), window(other_cpu_cores=0.2)),
        ("unwatched", unwatched(0.0), {}),
        ("unwatched", {"telemetry": None}, {"telemetry": None, **CUT}),
        ("stolen-time", using(30.0, who="stolen"), using(10.0, who="stolen")),
        ("battery", powered_by("battery"), powered_by("mains")),
        ("launch-blocking", launching("cuda", "1"), launching("cuda", "0")),
        ("launch-blocking", launching("cuda", "1"), launching("cpu", "1")),
        ("emulated", {"resolved": samples.resolved(native_math=False)}, {}),
        ("own-arithmetic", {"resolved": samples.resolved(math_mode="fp64")}, {}),
        ("amp-in-fp32", asked_for("amp"), asked_for("fp32")),
        ("uncounted-work", {"complexity": None, "missing": {"complexity": "it runs fft"}}, {}),
        ("products-in-fp32", in_fp32(0.01), in_fp32(0.009)),
        ("products-in-fp32", in_fp32(0.5), in_fp32(0.5, "fp32")),
        ("products-in-16-bits", in_fp8("mm"), in_fp8("_scaled_mm")),
        ("products-in-16-bits", in_fp8("mm"), in_fp8("mm", "bf16")),
        ("short-warm-up", cut_warm_up(0.6), cut_warm_up(0.6, early=None)),
    ],
)
def test_a_finding_has_its_cause_and_is_not_made_below_its_limit(code, causes, near_miss):
    assert code in codes(**causes)
    assert code not in codes(**near_miss)


def test_a_steady_run_is_clean_and_single_slow_iterations_are_noted():
    for slowest_s, found in ((0.5, []), (1.2, ["outliers"])):
        verdict = judge(samples.run_record(**window([0.5] * 39 + [slowest_s])))
        assert [finding.code for finding in verdict.findings] == found
        assert verdict.level == "clean"


@pytest.mark.parametrize(
    ("times_s", "warmup_s", "code"),
    [
        ([0.61, 0.61, 0.61, 0.5], (0.9, 0.8), "not-warm"),  # too few to cut
        ([0.59, 0.59, 0.59, 0.5], (0.9, 0.8), "short-warm-up"),
        ([0.61, 0.5, 0.61, 0.5], (0.9, 0.8), "short-warm-up"),  # one was at the pace
        ([0.61, 0.61, 0.61, 0.5], (0.6, 0.61, 0.6), "short-warm-up"),  # it was warm: disturbed
        ([0.7] * 5 + [0.5] * 25, (0.9, 0.8), "short-warm-up"),  # cut off, and said to be
    ],
)
def test_a_window_that_begins_slower_than_it_goes_on_was_not_warm(times_s, warmup_s, code):
    early = {"warmup_times_s": (9.0, *warmup_s), "warmup_ended_early": "3 of 10 iterations"}
    verdict = judge(samples.run_record(**window(times_s, **early)))
    assert verdict.findings[0].code == code
    assert verdict.findings[0].facts["early"] == "3 of 10 iterations"
    assert verdict.findings[0].level == ("suspect" if code == "not-warm" else "note")


def series(name, *values):
    times_s = tuple(map(float, range(len(values))))
    return SampledSeries(name=name, source="nvml", times_s=times_s, values=values)


def facts(code, *series, window, **telemetry):
    """What was found under one code, of a run with this telemetry."""
    sampled = samples.telemetry(**{"series": series, **telemetry})
    findings = judge(samples.run_record(telemetry=sampled, **window)).findings
    (found,) = [finding.facts for finding in findings if finding.code == code]
    return found


@pytest.mark.parametrize(
    ("code", "times_s", "kind", "after", "levels_s", "cut"),
    [
        ("drift", [1.0] * 20 + [1.1] * 10, "slows down", 20, (1.0, 1.1), None),
        ("settles", [1.3] * 5 + [1.0] * 25, "settles", 5, (1.3, 1.0), 5),
        ("drift", [1.3] * 15 + [1.0] * 15, "settles", 15, (1.3, 1.0), None),
        ("never-steady", [1.0] * 10 + [1.2] * 10 + [1.0] * 10, "never steady", 10, (1.0, 1.2),
         None),
    ],
)  # fmt: skip
def test_a_window_says_what_it_does_and_when(code, times_s, kind, after, levels_s, cut):
    found = facts(code, window=window(times_s))
    assert (found["kind"], found["after"], found.get("cut")) == (kind, after, cut)
    assert (found["before_s"], found["after_s"]) == levels_s
    assert "moved" not in found


@pytest.mark.parametrize(
    ("name", "before", "after", "moved"),
    [
        ("gpu_sm_clock_mhz", 1980.0, 1845.0, "gpu_sm_clock_mhz from 1980 to 1845"),
        ("gpu_temperature_c", 60.0, 61.0, None),
        ("gpu_temperature_c", 60.0, 80.0, "gpu_temperature_c from 60 to 80"),
        ("other_cpu_percent", 0.0, 4.0, None),
        ("other_cpu_percent", 0.0, 5.5, "other_cpu_percent from 0 to 6"),
        ("gpu_power_w", 9.0, 99.0, None),
    ],
)
def test_a_window_that_slows_down_says_what_moved_with_it(name, before, after, moved):
    sampled = series(name, *[before] * 20, *[after] * 11)
    slows = window([1.0] * 20 + [1.1] * 10)
    assert facts("drift", sampled, window=slows).get("moved") == moved


NOTHING = "what is not known"


@pytest.mark.parametrize(
    ("sampled", "telemetry", "collected_s", "causes"),
    [
        ([], {}, 0.0, NOTHING),
        ([series("other_cpu_percent", 110.0, 130.0)], {}, 0.0, "other programs (120 % of a core)"),
        ([series("other_cpu_percent", 5.0)], {}, 0.0, NOTHING),
        ([series("stolen_cpu_percent", 40.0)], {}, 0.0, "the host's other guests (40 % of a core)"),
        ([series("gpu_sm_clock_mhz", 1980.0, 1980.0, 1200.0)], {}, 0.0,
         "gpu_sm_clock_mhz of 1200 at times, 1720 on average"),
        ([series("gpu_sm_clock_mhz", 1980.0, 1900.0)], {}, 0.0, NOTHING),
        ([], {"foreign_processes": ("812 firefox",)}, 0.0, "other processes on the device"),
        ([], {"throttle_share": {"SwThermal": 0.01, "SwPowerCap": 1.0}}, 0.0, "SwThermal"),
        ([], {"throttle_share": {"SwThermal": 0.0}}, 0.0, NOTHING),
        # the slow iterations cost 3 s in all
        ([], {}, 1.4, NOTHING),
        ([], {}, 1.6, "Python's garbage collection (1.6 s)"),
    ],
)  # fmt: skip
def test_a_disturbed_run_says_both_rates_and_by_what(sampled, telemetry, collected_s, causes):
    bursts = of_two_rates(1.3, garbage_collections_s=collected_s)
    found = facts("disturbed", *sampled, window=bursts, **telemetry)
    assert found["samples_per_s"] == pytest.approx(7.273, abs=1e-3)
    assert (found["pace_samples_per_s"], found["causes"]) == (8, causes)


@pytest.mark.parametrize("sample", ["image", "step"])
def test_a_disturbed_run_has_the_unit_of_what_was_counted(sample):
    record = samples.run_record(**of_two_rates(1.3), resolved=samples.resolved(sample=sample))
    (finding,) = [found for found in judge(record).findings if found.code == "disturbed"]
    assert f"7.273 {sample}s/s, 8 undisturbed; disturbed by " in finding.sentence


CLOCK = "gpu_sm_clock_mhz"
CARD = {"backend": "cuda", "power_limit_w": 72.0, "max_clock_mhz": 1980.0}


@pytest.mark.parametrize(
    ("telemetry", "card", "level", "code", "found"),
    [
        ({"throttle_share": {"SwThermal": 0.2, "SwPowerCap": 0.01}}, CARD, "suspect", "throttled",
         {"reason": "SwThermal", "percent": 20}),
        ({"throttle_share": {"ApplicationsClocksSetting": 0.9},
          "series": (series(CLOCK, 1410.0),)}, CARD, "clean", "clock-setting",
         {"percent": 90, "clock_mhz": 1410, "most_mhz": 1980}),
        ({"throttle_share": {"SwPowerCap": 1.0}, "series": (series(CLOCK, 1000.0, 1070.0),),
          "slowed_share": {"power": 0.8, "heat": 0.0}}, CARD, "clean", "power-limited",
         {"percent": 100, "limit_w": 72, "slowed_percent": 80, "clock_mhz": 1035,
          "most_mhz": 1980}),
        ({"throttle_share": {"SwPowerCap": 1.0}}, None, "clean", "power-limited",
         {"percent": 100}),
        ({"foreign_processes": ("812 firefox",)}, CARD, "suspect", "foreign-process",
         {"processes": "812 firefox"}),
    ],
)  # fmt: skip
def test_what_slowed_the_device_or_used_it_too(telemetry, card, level, code, found):
    environment = card and samples.environment(device=samples.device_info(**card))
    telemetry = samples.telemetry(**{"series": (), **telemetry})
    verdict = judge(samples.run_record(telemetry=telemetry, environment=environment))
    assert verdict.level == level
    assert [finding.code for finding in verdict.findings] == ["unproven", code]
    assert verdict.findings[1].facts == pytest.approx(found)


@pytest.mark.parametrize(
    ("make", "changes", "level"),
    [
        (samples.run_record, using(200.0, backend="cpu"), "suspect"),
        (samples.run_record, using(200.0, backend="cuda"), "clean"),  # the host is not its device
        (samples.ceilings_record, using(100.0), "suspect"),
        (samples.ceilings_record, using(2.0), "clean"),
        (samples.ceilings_record, {"outcome": "crashed", "reason": "no"}, "invalid"),
    ],
)
def test_runs_and_roofs_are_judged_by_who_else_used_their_device(make, changes, level):
    assert judge(make(**changes)).level == level


# Profiles: the sample step is 1 GFLOP over 0.1 GB eager, 0.05 GB fused and 0.01 GB compulsory.

TIMED = samples.run_record(measurement=samples.measurement(work=samples.work_set()))


def profile_findings(timed=TIMED, **changes):
    verdict = judge(samples.profile_record(**changes), timed)
    return {finding.code: finding for finding in verdict.findings}


def counted(**changes):
    return {"counters": samples.counters(samples.kernel(**changes))}


def uncounted(metric):
    return {"counters": samples.counters(**{metric: None}, why_missing="n/a in B.csv")}


def unknown(time_s):
    known = samples.op_time(time_s=1 - time_s)
    stranger = samples.op_time("detach", time_s=time_s, flops=None)
    return {"ops": samples.op_profile(known, stranger, step_time_s=0.5)}


def profiled(step_time_s, backend="cpu"):
    """The timed step takes 0.5 s."""
    return {
        "ops": samples.op_profile(step_time_s=step_time_s),
        "resolved": samples.resolved(backend=backend),
    }


def ops_of(time_s):
    """One op of a step of 0.5 s."""
    return {"ops": samples.op_profile(samples.op_time(time_s=time_s), step_time_s=0.5)}


def beside(percent):
    """Another process while PyTorch's profiler looked."""
    found = using(percent)
    return {"tool_telemetry": {"torch": found["telemetry"]}, "environment": found["environment"]}


ON_CPU = {"counters": None, "cpu_counters": samples.cpu_counters(flops=4 * 10**9)}  # of ten steps
SHARES = {"cycles": 1.0, "cache-misses": 0.25, "branches": 0.5}
SHARED = {"cpu_counters": samples.cpu_counters(running_share=SHARES)}


@pytest.mark.parametrize(
    ("code", "level", "facts", "causes", "near_miss"),
    [
        ("oom", "invalid", {}, {"outcome": "oom", "reason": "out of memory"}, {}),
        ("below-compulsory-bytes", "invalid", {"least_gb": 0.01, "cache_mib": 0},
         counted(dram_bytes=10**7 - 1), counted(dram_bytes=10**7)),
        ("below-fused-bytes", "note", {"fused_gb": 0.05},
         counted(dram_bytes=5 * 10**7 - 1), counted(dram_bytes=5 * 10**7)),
        ("above-eager-bytes", "suspect", {"eager_gb": 0.1},
         counted(dram_bytes=10**8 + 1), counted(dram_bytes=10**8)),
        *(("metric-missing", "invalid", {"metric": metric, "why": "n/a in B.csv"},
           uncounted(metric), {}) for metric in ("dram_bytes", "flops")),
        *(("fewer-executed-flops", "note", {"percent": 40}, causes, {})
          for causes in (counted(flops=4 * 10**8), ON_CPU)),
        ("multiplexed", "note",
         {"number": 2, "events": 3, "event": "cache-misses", "percent": 25}, SHARED, {}),
        ("unmatched-ops", "note", {}, unknown(0.06), unknown(0.04)),
        ("profiler-cost", "note", {"times": 1.4}, profiled(0.7), profiled(0.6)),
        ("profiler-cost", "note", {"times": 2.8}, profiled(1.4, backend="cuda"), profiled(0.6)),
        ("profiler-cost", "suspect", {"times": 2.8}, profiled(1.4), profiled(0.6)),
        ("ops-above-step", "suspect", {"percent": 104}, ops_of(0.52), ops_of(0.51)),
        ("busy-host", "suspect", {"cores": 1, "tool": "torch"}, beside(200.0), beside(2.0)),
    ],
)  # fmt: skip
def test_a_finding_of_a_profile_has_its_cause_and_its_limit(code, level, facts, causes, near_miss):
    found = profile_findings(**causes)[code]
    assert found.level == level
    assert {name: found.facts[name] for name in facts} == pytest.approx(facts)
    assert code not in profile_findings(**near_miss)


@pytest.mark.parametrize(
    ("work", "differences"),
    [
        (samples.work_set(sgemm=2, relu=1, a=1, b=1, c=1),
         "a: 0 against 1; b: 0 against 1; c: 0 against 1; and 1 more"),
        (samples.work_set(relu=1), "relu: 0 against 1; sgemm: 2 against 0"),
        (samples.work_set("ops", conv=1), "kernels against ops"),
    ],
)  # fmt: skip
def test_other_work_than_the_timed_run_is_an_error_that_names_it(work, differences):
    other = samples.run_record(measurement=samples.measurement(work=work))
    found = profile_findings(other)["other-work"]
    assert (found.level, found.facts["differences"]) == ("invalid", differences)


def test_kernels_that_a_library_chooses_may_differ_and_no_others():
    chosen = {"cudnn::implicit_convolve_sgemm<float>": 3, "nchwToNhwcKernel": 1}
    steps = [samples.work_set(**dict(work)) for work in (
        {"sgemm": 2, "relu": 1}, {**chosen, "relu": 1}, {**chosen, "relu": 2}
    )]  # fmt: skip
    timed = samples.run_record(measurement=samples.measurement(work=steps[0]))
    own = {"counters": None}
    found = profile_findings(timed, work=steps[1], **own)
    assert [(finding.code, finding.level) for finding in found.values()] == [
        ("other-algorithms", "note")
    ]
    assert found["other-algorithms"].facts["number"] == 3
    found = profile_findings(timed, work=steps[2], **own)
    assert found["other-work"].level == "invalid"
    assert found["other-work"].facts["differences"] == "relu: 2 against 1"


def test_a_profile_that_agrees_with_all_is_clean_and_has_nothing_to_say():
    verdict = judge(samples.profile_record(), TIMED)
    assert verdict.level == "clean"
    assert verdict.findings == ()


def test_a_step_of_several_batches_is_expected_to_move_as_many():
    # The sample's one op is a forward one: three batches move 0.15 to 0.3 GB and do 3 GFLOP.
    several = RunConfig(grad_accum_steps=3)
    found = profile_findings(config=several, **counted(dram_bytes=3 * 10**8, flops=3 * 10**9))
    assert found == {}
    found = profile_findings(config=several, **counted(dram_bytes=10**8, flops=3 * 10**9))
    assert list(found) == ["below-fused-bytes"]


def test_the_counted_step_must_be_the_profiles_own():
    kernels = [samples.kernel("void sgemm(float*, int)"), samples.kernel("copy", flops=0)]
    found = profile_findings(counters=samples.counters(*kernels))
    assert found["other-work"].facts == {
        "us": "the counted step", "them": "the profile's own", "differences": "copy: 2 against 0"
    }  # fmt: skip
    assert profile_findings(counters=samples.counters(kernels[0])) == {}


def test_what_cannot_be_compared_is_said_and_costs_nothing():
    record = samples.profile_record(timed_record_id=None)
    (finding,) = judge(record, None).findings
    assert (finding.code, finding.level) == ("no-timed-run", "note")
    assert "not in this sample" in finding.facts["why"]
    found = profile_findings(samples.run_record())  # its window counted no kernels
    assert [(f.code, f.level) for f in found.values()] == [("work-unknown", "note")]
    assert [f.code for f in profile_findings(work=None).values()] == ["work-unknown"]


def test_the_iteration_that_an_interrupt_cuts_is_no_gap():
    cut = {**window(window_end_clock_s=1003.1), "outcome": "interrupted", "reason": "Ctrl-C"}
    codes = {finding.code for finding in judge(samples.run_record(**cut)).findings}
    assert "interrupted" in codes
    assert "window-gap" not in codes
