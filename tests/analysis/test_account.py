"""The account of a step, by hand: its parts add up to it, and each has its own cause."""

import factories as make
import pytest
import samples

from analysis import step_account
from analysis.account import (
    Difference,
    account_of,
    largest_loss,
    parts_of_ops,
)
from analysis.findings import find_all
from analysis.report.run_tables import run_tables
from analysis.roofs import Roof
from analysis.runs.groups import newest_accounts
from analysis.runs.place import place_runs
from analysis.server.pull import addition_of
from analysis.traces.placed import place_traces
from bench.errors import UserError
from bench.records import IdleTime
from bench.records.profile import CASTS, HOST_COPY

GIGA = 10**9
BUSY = {"device_busy_share": 0.62, "launch_gap_s": 0.1}
ROOF = Roof(200e9, 50e9)


def op(label, phase, time_s, gflop, fused_gb, eager_gb, **changes):
    work = {"flops": gflop * GIGA, "fused_bytes": fused_gb * GIGA, "eager_bytes": eager_gb * GIGA}
    return samples.op_time(label, phase, time_s, **{**work, **changes})


#: At the roof 0.2, 0.02 and 0.1 s; unfused 0.1, 0.18 and 0 s more.
OPS = (
    op("convolution 3x3 stride 2", "forward", 0.35, 40, 5, 15),
    op("batch_norm", "backward", 0.15, 0, 1, 10),  # 0.05 s faster than its bytes at the roof
    op("optimizer", "optimizer", 0.12, 0, 5, 5),
)
UNKNOWN = samples.op_time("copy", "forward", 0.03).replaced(
    dict.fromkeys(("flops", "elementwise_flops", "eager_bytes", "fused_bytes"), "no call"),
    flops=None,
    elementwise_flops=None,
    eager_bytes=None,
    fused_bytes=None,
)


def account(*ops, step_s=1.0, traced_s=0.9, wait_s=0.0, timed=True, **changes):
    """The account of a profile whose timed run takes `step_s`."""
    window = make.measurement(step_s=step_s, wait_s=wait_s) if timed else None
    found = samples.op_profile(*ops, step_time_s=traced_s, **changes)
    return account_of(make.profile(ops=found), ROOF, window)


def times(found):
    return {part.name: part.time_s for part in found.parts}


def test_the_parts_of_a_step_by_hand():
    found = account(*OPS, UNKNOWN)
    assert times(found) == pytest.approx(
        {
            "each op at its roof": 0.32,
            "unfused memory traffic": 0.28,
            "convolution below its roof": 0.05,
            "optimizer below its roof": 0.02,
            "ops faster than their roof": -0.05,
            "copy, its work not known": 0.03,
            "the host between ops: Python, autograd, dispatch": 0.25,
            "the profiler": 0.1,
        }
    )
    assert sum(part.time_s for part in found.parts) == pytest.approx(1.0, abs=1e-15)
    assert found.parts[0].kind == "roof"
    sizes = [abs(part.time_s) for part in found.parts[1:]]
    assert sizes == sorted(sizes, reverse=True)
    of_roof = {part.name: part.of_roof for part in found.parts if part.of_roof is not None}
    assert of_roof == pytest.approx(
        {"convolution below its roof": 0.3 / 0.35, "optimizer below its roof": 0.1 / 0.12}
    )
    assert not found.is_disturbed  # by 10 %, and not more
    assert found.seconds_of("not explained") == 0
    alone = account(*OPS, timed=False)  # its step is the profiled one
    assert alone.step_time_s == 0.9
    assert "the profiler" not in times(alone)
    assert sum(times(alone).values()) == pytest.approx(0.9, abs=1e-15)


@pytest.mark.parametrize(("traced_s", "disturbed"), [(0.89, True), (1.09, False), (1.11, True)])
def test_a_profiler_that_changes_the_step_by_over_a_tenth_disturbs_its_account(traced_s, disturbed):
    found = account(*OPS, traced_s=traced_s)
    assert found.is_disturbed is disturbed
    said = f"disturbed: what was profiled takes {1e3 * traced_s:.0f} ms, the timed one 1000 ms"
    assert next(found.lines()).startswith(said) is disturbed


def test_waiting_for_data_is_no_work_of_the_host_and_never_more_than_there_was():
    waiting = times(account(*OPS, wait_s=0.1))
    assert waiting["waiting for the loader"] == pytest.approx(0.1)
    host = "the host between ops: Python, autograd, dispatch"
    assert waiting[host] == pytest.approx(0.9 - 0.62 - 0.1)
    all_of_it = times(account(*OPS, wait_s=0.5))
    assert all_of_it["waiting for the loader"] == pytest.approx(0.28)
    assert sum(all_of_it.values()) == pytest.approx(1.0)


def test_of_a_gpu_the_rest_is_idle_and_communication_and_copies_of_the_host_are_parts():
    copied = account(*OPS, samples.op_time(HOST_COPY, "forward", 0.1))
    assert times(copied)["copies from and to the host that nothing hides"] == pytest.approx(0.1)
    assert sum(part.time_s for part in copied.parts) == pytest.approx(1.0, abs=1e-15)
    reduced = samples.op_time("communication", "backward", 0.2, exclusive_s=0.05)
    found = account(*OPS, reduced, device_busy_share=0.67 / 0.9, launch_gap_s=0.1)
    kinds = {part.kind: part.time_s for part in found.parts}
    assert kinds["communication"] == pytest.approx(0.05)
    assert kinds["idle"] == pytest.approx(1.0 - 0.67)  # of the timed step


@pytest.mark.parametrize("traced_s", [0.9, 1.8])
@pytest.mark.parametrize(
    ("step_s", "idle_s", "profiler_s", "disturbed"),
    [(1.0, 0.38, 0, False), (0.62, 0, 0, False), (0.58, 0, -0.04, False), (0.55, 0, -0.07, True)],
)
def test_a_gap_that_the_profiler_makes_is_no_idle_time_of_a_gpu(
    step_s, idle_s, profiler_s, disturbed, traced_s
):
    found = account(*OPS, step_s=step_s, traced_s=traced_s, **BUSY)
    assert found.seconds_of("idle") == pytest.approx(idle_s)
    assert found.seconds_of("profiling") == pytest.approx(profiler_s)
    assert found.is_disturbed is disturbed


def test_a_runs_own_steps_are_held_against_its_window():
    steps = samples.op_profile(*OPS, step_time_s=0.95)
    run = make.run_record(ops=steps)
    assert times(account_of(run, ROOF, run.measurement))["the profiler"] == pytest.approx(0.05)


def test_a_kernel_that_a_graph_launched_has_a_short_name():
    long = "at::native::vectorized_elementwise_kernel<4,at::native::CUDAFunctor_add<float>,int>"
    [name] = [
        name for name in times(account(op(long, "forward", 0.3, 0, 0, 0))) if "Functor" in name
    ]
    assert name == "vectorized_elementwise CUDAFunctor_add below its roof"


@pytest.mark.parametrize(
    ("work", "roof", "at_roof_s"),
    [
        ({"causal_skipped_flops": 20 * GIGA}, ROOF, 0.1),
        # 10 GFLOP at 200 GFLOP/s, and 30 that amp left in fp32 at 50
        ({"fp32_flops": 30 * GIGA}, Roof(200e9, 50e9, fp32_flops_per_s=50e9), 0.05 + 0.6),
        # a step in fp8, of which this op is in bf16, or not
        ({"op": "addmm"}, Roof(200e9, 50e9, half_flops_per_s=100e9), 0.4),
        ({"op": "_scaled_mm"}, Roof(200e9, 50e9, half_flops_per_s=100e9), 0.2),
    ],
)
def test_what_a_mask_skips_and_what_is_of_other_arithmetic_have_their_own_time_at_the_roof(
    work, roof, at_roof_s
):
    parts = parts_of_ops([op("attention", "forward", 0.9, 40, 5, 5, **work)], roof)
    assert {part.name: part.time_s for part in parts}["each op at its roof"] == pytest.approx(
        at_roof_s
    )


def test_casts_and_scales_are_why_fp8_saves_less_than_its_roof_allows():
    def step(step_s, product_s, *more):
        product = op("linear", "forward", product_s, 100, 1, 1)
        known = {"step_time_s": step_s, "device_busy_share": 1.0, "launch_gap_s": 0.0}
        profile = make.profile(ops=samples.op_profile(product, *more, **known))
        return account_of(profile, Roof((2 if more else 1) * 100e9, 1e12), None)

    casts = [op(CASTS, phase, 0.2, 0, 9, 9) for phase in ("forward", "backward")]
    both = step(1.0, 1.0), step(0.95, 0.55, *casts)
    assert times(both[1]) == pytest.approx(
        {"each op at its roof": 0.5, CASTS: 0.4, "linear below its roof": 0.05}
    )
    assert largest_loss(both[1]).name == CASTS
    assert Difference(*both).words.endswith(f"measured are 1.05: 400 ms of {CASTS} do not shrink")


def test_without_a_roof_ops_are_their_whole_time():
    profile = make.profile(ops=samples.op_profile(*OPS, step_time_s=0.7))
    assert times(account_of(profile, None, None)) == pytest.approx(
        {
            "convolution": 0.35,
            "batch_norm backward": 0.15,
            "optimizer": 0.12,
            "the host between ops: Python, autograd, dispatch": 0.08,
        }
    )
    assert "no times of ops" in account_of(make.profile(), ROOF, None).reason


def by_turns(first_s, second_s, neighbours_s, host_s=(0.1, 0.1)):
    """The account of a step of 1 s whose profiled steps have these times of ops and the host."""
    ops = [
        op(label, "forward", 0.0, 0, 0, 0, steps_exclusive_s=times_s)
        for label, times_s in (("convolution", first_s), ("softmax", second_s))
    ]
    walls_s = tuple(map(sum, zip(first_s, second_s, host_s, strict=False)))
    return account(*ops, steps_s=walls_s, neighbours_s=neighbours_s)


def test_a_machine_that_slows_down_while_it_profiles_changes_no_part():
    quiet = by_turns((0.6, 0.6), (0.35, 0.35), (1.0, 1.0))
    half = by_turns((0.6, 1.2), (0.35, 0.7), (1.0, 2.0), (0.1, 0.2))  # as fast in the second pair
    assert times(half) == pytest.approx(times(quiet))
    assert times(quiet) == pytest.approx(
        {
            "convolution below its roof": 0.6,
            "softmax below its roof": 0.35,
            "the host between ops: Python, autograd, dispatch": 0.1,
            "the profiler": -0.05,
        }
    )
    assert (half.pace, half.profiler_cost) == pytest.approx((1.5, 1.05))
    assert not half.is_disturbed


def test_parts_have_the_ends_of_what_the_profiled_steps_give():
    found = by_turns((0.6, 0.5), (0.3, 0.4), (1.0, 1.0))
    ends = {part.name: (part.low_s, part.high_s) for part in found.parts}
    assert ends["convolution below its roof"] == pytest.approx((0.5, 0.6))
    assert ends["softmax below its roof"] == pytest.approx((0.3, 0.4))
    assert not found.is_disturbed
    assert not by_turns((0.45, 0.46), (0.46, 0.45), (1.0, 1.0)).is_disturbed  # equal, and sure
    assert "convolution below its roof (500 to 600 ms)" in "\n".join(found.lines())
    [single] = [part for part in by_turns((0.6,), (0.3,), (1.0,)).parts if part.kind == "host"]
    assert single.low_s is single.high_s is None


@pytest.mark.parametrize(
    ("neighbours_s", "cause"),
    [((1.0, 1.4), "the machine's pace changes by 40 % from step to step"),
     ((1.0, 9.0), "the machine's pace changes by 9 times from step to step"),
     ((0.5, 0.5), "the profiler makes a step 100 % longer")],
)  # fmt: skip
def test_parts_that_are_not_told_apart_disturb_an_account_which_names_the_cause(
    neighbours_s, cause
):
    found = by_turns((0.6, 0.3), (0.3, 0.6), neighbours_s)
    assert found.is_disturbed
    assert {part.short for part in found.confused} == {"convolution", "softmax"}
    assert next(found.lines()).endswith(cause)
    assert found.facts()["account_disturbed"] is True
    assert largest_loss(found) is None


def test_a_profiled_steps_wait_for_the_loader_is_not_divided_by_what_the_profiler_costs():
    window = make.measurement(step_s=1.0).replaced({"data_wait_s": "a script"}, data_wait_s=None)
    one = op("convolution", "forward", 0.0, 0, 0, 0, steps_exclusive_s=(0.75, 0.75))
    profile = samples.op_profile(
        one, step_time_s=1.25, data_wait_s=0.25, steps_s=(1.25, 1.25), neighbours_s=(1.0, 1.0)
    )
    found = times(account_of(make.profile(ops=profile), ROOF, window))
    assert found["waiting for the loader"] == pytest.approx(0.25)
    assert found["the profiler"] == pytest.approx(-0.25)
    assert sum(found.values()) == pytest.approx(1.0)


def test_a_wait_that_both_window_and_profile_know_does_not_follow_the_pace_of_the_ops():
    window = make.measurement(step_s=1.0, wait_s=0.5)
    one = op("convolution", "forward", 0.0, 0, 0, 0, steps_exclusive_s=(0.6, 0.6))  # 1.5 as long
    profile = samples.op_profile(
        one, step_time_s=1.25, data_wait_s=0.5, steps_s=(1.25, 1.25), neighbours_s=(1.25, 1.25)
    )
    found = times(account_of(make.profile(ops=profile), ROOF, window))
    assert found["waiting for the loader"] == pytest.approx(0.5)
    assert found["convolution below its roof"] == pytest.approx(0.4)
    assert sum(found.values()) == pytest.approx(1.0)
    ahead = profile.replaced({}, data_wait_s=0.0, step_time_s=0.75, steps_s=(0.75, 0.75),
                             neighbours_s=(0.75, 0.75))  # fmt: skip
    found = times(account_of(make.profile(ops=ahead), ROOF, window))
    assert found["waiting for the loader"] == pytest.approx(0.5)
    assert found["convolution below its roof"] == pytest.approx(0.4)


def test_a_part_within_what_the_profiler_may_take_is_not_sure():
    found = by_turns((0.6, 0.5), (0.5, 0.5), (1.0, 1.6), (0.9, 1.0))
    assert found.profiler_cost == pytest.approx(1.25)  # the other pair shows 2
    assert {part.short for part in found.confused} == {"the host between ops", "the profiler"}


def test_a_traces_mean_step_has_its_idle_time_by_cause_and_what_is_not_explained():
    longer = samples.traced_step("ProfilerStep#1", idle_s=0.05)
    longer = longer.replaced(idle=(IdleTime(cause="input", time_s=0.05),))
    record = samples.trace_record(longer, samples.traced_step("ProfilerStep#2"), step_time_s=0.1)
    found = place_traces([record])[0].account
    assert times(found) == pytest.approx(
        {
            "convolution": 0.009,
            "device idle: input": 0.025,
            "device idle: launches": 0.015,
            "the first step of the trace, against the others": 0.1 - 0.11,
            "not explained": 0.061,  # its ops are not all in the record
        }
    )
    assert sum(times(found).values()) == pytest.approx(0.1, abs=1e-15)
    assert found.seconds_of("not explained") == pytest.approx(0.061)


@pytest.mark.parametrize(
    ("kernels", "is_copy"),
    [(("Memcpy HtoD (Pinned -> Device)",), True), (("Memcpy DtoH",), True),
     (("CopyHostToDevice",), True), (("Im2d2Col",), False),
     (("Memcpy DtoD",), False), (("Memcpy HtoD", "elementwise"), False), ((), False)],
)  # fmt: skip
def test_a_copy_from_the_host_is_not_held_against_the_devices_memory(kernels, is_copy):
    copy = samples.traced_op(label="copy", kernels=kernels)
    [placed] = place_traces([samples.trace_record(samples.traced_step("s"), ops=(copy,))])
    name = "copies from and to the host that nothing hides"
    assert (name in times(placed.account)) is is_copy


def test_an_op_that_other_work_hides_takes_nothing_and_a_step_of_no_time_is_no_error():
    hidden = op("relu", "forward", 0.1, 0, 0, 0, exclusive_s=0.0)
    assert "relu below its roof" not in times(account(*OPS, hidden))
    steps = (samples.TracedStep.of("no device", name="s", wall_s=0.0, idle=()),)
    [placed] = place_traces([samples.trace_record(*steps, step_time_s=0.0)])
    found = placed.account
    assert {row["share"] for row in found.rows()} == {None}
    assert list(found.lines())


def test_a_trace_without_a_device_leaves_the_rest_to_the_host():
    step = samples.TracedStep.of("no device", name="s", wall_s=0.1, idle=())
    on_host = samples.traced_op(kernels=())
    [placed] = place_traces([samples.trace_record(step, ops=(on_host,))])
    assert times(placed.account) == pytest.approx(
        {"convolution": 0.009, "the host between ops: Python, autograd, dispatch": 0.091}
    )


def loss(*ops, **changes):
    return largest_loss(account(*ops, **changes))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("host", {"traced_s": 1.0}),
        ("traffic", {"traced_s": 0.7, "step_s": 0.72}),
        ("idle", {"traced_s": 1.0, **BUSY}),
        ("input", {"traced_s": 1.0, "wait_s": 0.3}),
    ],
)
def test_the_largest_part_that_can_be_removed(kind, changes):
    assert loss(*OPS, **changes).kind == kind


def test_a_difference_names_its_parts_and_what_the_roofs_allow():
    before, after = account(*OPS, traced_s=1.0), account(*OPS[1:], traced_s=0.55, step_s=0.55)
    assert Difference(before, after).words == (
        "of 450 ms saved: each op at its roof 200, unfused memory traffic 100, the host between "
        "ops 100, convolution 50; the roofs allow 2.67 times, measured are 1.82"
    )
    kept = account(*OPS[1:], traced_s=0.65, step_s=0.65)
    assert Difference(before, kept).words.endswith(
        "roofs allow 2.67 times, measured are 1.54: 380 ms of the host between ops do not shrink"
    )
    assert Difference(after, before).words.startswith(
        "of 450 ms added: each op at its roof 200, unfused"
    )
    profile = make.profile(ops=samples.op_profile(*OPS, step_time_s=1.0))
    assert "roofs" not in Difference(before, account_of(profile, None, None)).words


def test_of_two_repetitions_in_a_step_one_is_meant():
    one, two = account(*OPS, traced_s=1.0), account(*OPS, *OPS, traced_s=1.8, step_s=1.8)
    found = Difference(one, two.divided(2))  # equal roofs allow nothing
    assert found.words == "of 100 ms saved: the host between ops 100"
    assert sum(found.gains_s.values()) == pytest.approx(0.1)


#: 95 % of the compute roof.
NEAR = op("convolution 3x3", "forward", 0.97, 190, 5, 5)


@pytest.mark.parametrize(
    ("ops", "changes"),
    [
        ([NEAR], {"traced_s": 0.98}),
        ([NEAR], {"traced_s": 0.98, "device_busy_share": 0.97 / 0.98, "launch_gap_s": 0.0}),
        ([NEAR], {"traced_s": 1.0, "device_busy_share": 0.99, "launch_gap_s": 0.01}),  # 1 % idle
        (OPS, {"traced_s": 1.5}),  # disturbed
        ([NEAR], {"traced_s": 1.5, **BUSY}),  # a gap of the profiler's own
    ],
)
def test_a_healthy_step_and_a_disturbed_account_are_accused_of_nothing(ops, changes):
    assert loss(*ops, **changes) is None
    seen = {name: changes[name] for name in changes if name != "traced_s"}
    steps = samples.op_profile(*ops, step_time_s=changes["traced_s"], **seen)
    runs = place_runs([make.run_record(ops=steps)], [make.ceilings_record()])
    assert not [one for one in find_all(runs) if one.kind == "next knob"]


def test_of_each_configuration_the_last_run_has_its_account():
    steps = samples.op_profile(*OPS, step_time_s=0.95)
    records = [
        make.run_record("first", ops=steps),
        make.run_record("other", 20, ops=steps),
        make.run_record("last", ops=steps),
        make.run_record("no ops"),
    ]
    found = newest_accounts(place_runs(records, [make.ceilings_record()]))
    assert {run.name for run, _ in found} == {"other", "last"}
    disturbed = make.run_record("later", ops=steps.replaced(step_time_s=1.5))
    found = newest_accounts(place_runs([*records, disturbed], [make.ceilings_record()]))
    assert {run.name for run, _ in found} == {"other", "last"}
    for run, one in found:
        assert one.step_time_s == 1.0
        assert run.point is not None
    [(run, one), *_] = found
    beside = addition_of(run).metrics
    seconds = {name: beside[name] for name in beside if name.startswith("account_")}
    assert seconds["account_roof_s"] == pytest.approx(0.32)
    assert sum(seconds.values()) == pytest.approx(one.step_time_s)
    table = run_tables([run])["accounts"]
    assert sum(row["time_ms"] for row in table.rows) == pytest.approx(1000)


def test_a_notebook_has_the_account_as_a_table():
    run = place_runs([make.run_record(ops=samples.op_profile(*OPS, step_time_s=0.9))], [])[0]
    table = step_account(run)
    assert list(table.columns) == [
        "name", "class", "seconds", "share", "of_its_roof", "low_s", "high_s"
    ]  # fmt: skip
    assert table["seconds"].sum() == pytest.approx(1.0)
    assert table["share"].sum() == pytest.approx(1.0)
    with pytest.raises(UserError, match="run run-1: no times of ops"):
        step_account(place_runs([make.run_record()], [])[0])


@pytest.mark.parametrize("kinds", range(9))
def test_the_lines_add_small_parts_up_where_there_are_several(kinds):
    more = [op(f"kind_{n}", "forward", 0.01 * n, 0, 0, 0) for n in range(1, kinds + 1)]
    whole = account(*OPS, *more, traced_s=1.0)
    lines = list(whole.lines())
    assert lines[0].split()[:4] == ["320", "ms", "32", "%"]
    assert len(lines) == min(len(whole.parts), 8)
    assert ("smaller parts" in lines[-1]) == (len(whole.parts) > 8)
