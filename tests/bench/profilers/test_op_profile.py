"""Op times of real steps on this CPU, and of a GPU's trace; PyTorch's profiler as a tool."""

import shutil
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import samples
import torch
from fakes import Card, QueueingDevice, ScriptedClock
from gpu_steps import TraceWriter, gpu_step
from small_models import CLASSIFIER, batch_normed

from bench.cost.estimate import op_work, step_complexity
from bench.errors import Unknown, UserError
from bench.profilers import torch_profiler
from bench.profilers.base import TorchTool
from bench.profilers.torch_profiler import (
    Synchronized,
    TimedStep,
    _profile,
    pairs_within,
    profile_ops,
)
from bench.profilers.traces import read_trace
from bench.profilers.traces.nest import DeviceTime, Kind, SeenOp
from bench.profilers.traces.spans import DeviceSpan
from bench.records import Account, OpProfile, StepSpec
from bench.records.profile import COMMUNICATION, HOST_COPY, profiler_cost
from bench.training.devices import open_device
from bench.training.step import TrainingStep, make_optimizer, open_precision
from bench.training.window import driven

CPU = open_device("cpu")
SIZE, BATCH = 32, 4


def one_convolution():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 1, bias=False),
        torch.nn.BatchNorm2d(6),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
    )


def step_of(precision="fp32", accumulated=1, model=batch_normed, compiled=False):
    torch.manual_seed(0)
    model = model().to(memory_format=torch.channels_last)
    images = torch.randn(BATCH, 3, SIZE, SIZE).to(memory_format=torch.channels_last)
    labels = torch.randint(6, (BATCH,))
    step = TrainingStep(
        CLASSIFIER,
        torch.compile(model) if compiled else model,
        make_optimizer(model, "sgd", fused=True),
        open_precision(precision, CPU),
        grad_accum_steps=accumulated,
    )

    def once():
        return step(lambda: (images, labels))

    once()
    return once


def spec_of(arch="small_models:batch_normed", precision="fp32", image_size=SIZE):
    return StepSpec(arch, batch_size=BATCH, image_size=image_size, precision=precision)


@cache
def work_of(precision="fp32", accumulated=1):
    return op_work(spec_of(precision=precision), grad_accum_steps=accumulated)


def modelled(profile):
    return [op for op in profile.ops if op.flops is not None]


def check_whole(profile, work):
    """Every convolution, product and norm of the model was found, with its own work."""
    assert sum(op.flops for op in modelled(profile)) == sum(call.flops for call in work)
    heavy = {call.label for call in work if call.flops or "norm" in call.op}
    assert heavy <= {op.label for op in modelled(profile)}
    assert list(profile.ops) == sorted(profile.ops, key=lambda op: -op.time_s)
    assert OpProfile.model_validate_json(profile.model_dump_json()) == profile


@pytest.mark.parametrize(("precision", "accumulated"), [("fp32", 2), ("amp", 1)])
@pytest.mark.slow
def test_every_modelled_flop_of_a_cpu_step_is_found(precision, accumulated):
    work = work_of(precision, accumulated)
    profile = profile_ops(step_of(precision, accumulated), CPU, work, pairs=2)
    check_whole(profile, work)
    by_kind = {(op.label, op.phase): op for op in modelled(profile)}
    assert by_kind["depthwise convolution 3x3 stride 2", "backward"].calls == accumulated
    assert by_kind["batch_norm", "forward"].op == "native_batch_norm"
    assert by_kind["optimizer", "optimizer"].calls == 1
    assert profile.iterations == 2
    assert profile.device_busy_share is None
    assert profile.missing["copies"] == "ops run on the host itself"


def test_the_trace_of_the_last_step_is_kept_as_a_file_that_is_read_again(tmp_path, monkeypatch):
    file = tmp_path / "trace.json"
    profile = profile_ops(step_of(), CPU, work_of(), pairs=1, trace_file=file)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json.gz"]
    trace = read_trace(tmp_path / "trace.json.gz")
    calls = sum(span.name == "aten::convolution_backward" for span in trace.host)
    assert calls == sum(op.calls for op in profile.ops if op.op == "convolution_backward")
    assert next(span.name for span in trace.host if span.kind == "mark") == "ProfilerStep#0"
    profile_ops(step_of(accumulated=2), CPU, (), pairs=1, trace_file=file)
    again = read_trace(tmp_path / "trace.json.gz")
    assert sum(span.name == "aten::convolution_backward" for span in again.host) == 2 * calls
    monkeypatch.setattr(torch_profiler, "MOST_BYTES", 1000)
    profile = profile_ops(step_of(), CPU, (), pairs=1, trace_file=file)
    assert "no trace of more than" in profile.missing["trace"]
    assert list(tmp_path.iterdir()) == []


def test_work_that_no_op_did_is_reported_and_the_rest_adds_up_to_the_steps_flop():
    work = work_of()
    profile = profile_ops(step_of(), CPU, [*work, work[0], work[0]], pairs=1)
    assert f"3 of the cost model's {len(work) + 2} calls were not seen" in profile.missing["unseen"]
    assert "1 ones_like (backward)" in profile.missing["unseen"]
    assert "2 convolution (forward)" in profile.missing["unseen"]
    assert sum(op.flops for op in modelled(profile)) == step_complexity(spec_of()).step_flops


def test_without_a_cost_model_there_are_times_all_the_same():
    profile = profile_ops(step_of(), CPU, (), pairs=1)
    assert not modelled(profile)
    convolutions = [op for op in profile.ops if op.label == "conv2d"]
    assert convolutions[0].calls == 2
    assert "not a call of the cost model" in convolutions[0].missing["flops"]
    assert ("hardtanh", "hardtanh_") in {(op.label, op.op) for op in profile.ops}


def test_a_step_runs_for_the_tool_and_then_by_turns_without_and_with_it():
    runs = []
    profile = profile_ops(lambda: runs.append(torch.ones(1) + 1), CPU, (), pairs=3)
    assert len(runs) >= 3 * (1 + 3)
    assert len(profile.steps_s) == len(profile.neighbours_s) == profile.iterations >= 2
    assert [(op.op, op.calls) for op in profile.ops if op.op == "add"] == [("add", 1)]


@pytest.mark.slow
def test_waiting_for_every_op_finds_the_same_work_as_the_profiler():
    step, work = step_of(accumulated=2), work_of(accumulated=2)
    recorder = Synchronized(CPU)
    waited = _profile(recorder.method, [driven(recorder.recording(), step)[1](None)], work)
    check_whole(waited, work)
    profiled = profile_ops(step, CPU, work, pairs=1)
    kinds = [
        {(op.label, op.op, op.phase, op.calls, op.eager_bytes) for op in modelled(profile)}
        for profile in (waited, profiled)
    ]
    assert kinds[0] == kinds[1]
    assert not [op for op in waited.ops if "profiler" in op.op]
    assert "ran differently" in waited.missing["device_busy_share"]


def test_every_op_is_waited_for_and_its_wait_is_its_time(monkeypatch):
    clock = ScriptedClock()
    device = QueueingDevice(clock)
    monkeypatch.setattr("bench.profilers.torch_profiler.time.perf_counter", clock)
    tensor = torch.ones(3)

    def step():
        for seconds in (2.0, 3.0):
            device.queue(seconds)
            torch.add(tensor, tensor)

    recorded = driven(Synchronized(device).recording(), step)[1](None)
    assert [(op.name, op.own_s, op.phase) for op in recorded.ops] == [
        ("add", 2.0, None),
        ("add", 3.0, None),
    ]
    assert recorded.wall_s == 5.0
    assert profile_ops(step, device, (), pairs=1).method == Synchronized(device).method


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_a_compiled_step_says_what_cannot_be_known():
    work = op_work(spec_of("test_op_profile:one_convolution"))
    step = step_of(model=one_convolution, compiled=True)
    profile = profile_ops(step, CPU, work, pairs=1)
    graphs = [op for op in profile.ops if op.label == "compiled graph"]
    assert {op.phase for op in graphs} == {"forward", "backward"}
    assert all("compiled" in op.missing["eager_bytes"] for op in graphs)
    assert "native_batch_norm" in profile.missing["unseen"]
    assert "convolution 1x1" in {op.label for op in modelled(profile)}


def gpu_work():
    work = op_work(spec_of("test_op_profile:one_convolution", image_size=8))
    return [call for call in work if call.op not in ("mean", "_log_softmax")]


def profile_on_card(monkeypatch, trace):
    clock = ScriptedClock()

    @contextmanager
    def recorded(device):
        yield trace

    monkeypatch.setattr(torch_profiler, "recorded", recorded)
    monkeypatch.setattr(torch_profiler, "trace_of", lambda recording, keep: recording)
    monkeypatch.setattr("bench.profilers.torch_profiler.time.perf_counter", clock)
    return profile_ops(lambda: clock.pass_s(0.0012), Card(clock), gpu_work(), pairs=3)


def test_on_a_gpu_an_op_is_the_time_of_its_kernels(monkeypatch):
    profile = profile_on_card(monkeypatch, gpu_step())
    times = {(op.label, op.phase): op.time_s * 1e6 for op in modelled(profile)}
    assert times == pytest.approx(
        {
            ("convolution 1x1", "forward"): 320,
            ("batch_norm", "forward"): 90,
            ("batch_norm", "backward"): 80,
            ("optimizer", "optimizer"): 400,
        }
    )
    others = {(op.label, op.op, op.phase): op for op in profile.ops if op.flops is None}
    # No op launched the loader's copy; half of it hides behind the convolution.
    assert {key: (op.time_s, op.exclusive_s) for key, op in others.items()} == {
        (HOST_COPY, "to", "forward"): pytest.approx((50e-6, 50e-6)),
        (HOST_COPY, "Memcpy HtoD", None): pytest.approx((40e-6, 20e-6)),
    }
    assert "launched by no op" in others[HOST_COPY, "Memcpy HtoD", None].missing["flops"]
    # Busy is the union of what ran; gaps lie between.
    assert profile.exclusive_s == pytest.approx(960e-6)
    assert profile.device_busy_share == pytest.approx(960 / 1200)
    assert profile.launch_gap_s == pytest.approx((10 + 10 + 20) * 1e-6)
    (copies,) = profile.copies
    assert (copies.direction, copies.calls, copies.bytes) == ("host to device", 2, 6144)
    assert profile.step_time_s == pytest.approx(0.0012)


#: Kernels and copies with the op that launches each: name, begin and duration of the device's run.
CARDS = {
    "communication is no work of the device": (
        [("aten::relu", "void relu(float*)", 100, 200),
         ("record_param_comms", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)", 250, 200),
         ("aten::add", "void add(float*)", 460, 40)],
        {"relu": (200, 200), COMMUNICATION: (200, 150), "add": (40, 40)},
    ),
    "a copy from the host is none on the device, whatever op makes it": (
        [("aten::_to_copy", "HtoD", 100, 90), ("aten::_to_copy", "DtoD", 400, 90),
         ("aten::relu", "void relu(float*)", 600, 30)],
        {HOST_COPY: (90, 90), "cast": (90, 90), "relu": (30, 30)},
    ),
    "a replayed graph is its kernels": (
        [(None, "void conv<float>(float*)", 100, 90), (None, "void conv<float>(float*)", 300, 90)],
        {"conv<float>": (180, 180)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("runs", "times_us"), CARDS.values(), ids=CARDS.keys())
def test_on_a_gpu_what_runs_has_its_own_class(monkeypatch, runs, times_us):
    trace = TraceWriter()
    for number, (op, name, begin, duration) in enumerate(runs):
        launcher = None if op is None else trace.host(op, 50 * number, 10, [[8, 8]])
        if "to" in name:
            trace.copy(name, begin, duration, 256, launcher)
        else:
            trace.device(name, begin, duration, launcher, stream=number)
    profile = profile_on_card(monkeypatch, trace.trace)
    found = {op.label: (op.time_s * 1e6, op.exclusive_s * 1e6) for op in profile.ops}
    assert found == {label: pytest.approx(times) for label, times in times_us.items()}
    waits_s = times_us.get(COMMUNICATION, (0, 0))[1] / 1e6
    assert profile.exposed_communication_s == pytest.approx(waits_s)
    assert profile.computing_s == pytest.approx(profile.exclusive_s - waits_s)
    reasons = {op.label: op.missing for op in profile.ops}
    if waits_s:
        assert "other ranks" in reasons[COMMUNICATION]["flops"]
        assert profile.device_busy_share * 1200e-6 == pytest.approx(390e-6)
    if "conv<float>" in reasons:
        assert "a CUDA graph" in reasons["conv<float>"]["phase"]
        assert [(op.phase, op.calls) for op in profile.ops] == [(None, 2)]


def test_copies_of_unknown_size_are_missing_with_the_reason(monkeypatch):
    trace = gpu_step()
    for run in trace.device:
        run.size_bytes = None
    profile = profile_on_card(monkeypatch, trace)
    assert profile.copies is None
    assert "bytes" in profile.missing["copies"]


def test_a_gpu_without_kernels_is_refused_with_a_remedy(monkeypatch):
    trace = TraceWriter()
    trace.host("aten::relu", 0, 5)
    with pytest.raises(UserError, match=r"recorded no kernel.*driver"):
        profile_on_card(monkeypatch, trace.trace)


def seen(wall_s, ops, neighbours_s, kernels=0):
    device = DeviceTime([DeviceSpan("k", "kernel", 0, 1e6, 0, 7)] * kernels)
    return TimedStep(wall_s, ops, device if kernels else Unknown("no"), neighbours_s=neighbours_s)


def relu(seconds):
    return SeenOp("relu", Kind.OP, "forward", (), seconds, [], seconds)


def test_times_are_medians_of_steps_scaled_to_their_neighbours_pace():
    steps = [
        seen(wall_s, [relu(t) for t in times], neighbours_s=wall_s)
        for wall_s, times in [(10, (1, 1)), (12, (1.2, 1.44)), (30, (9, 9)), (12, (1.2, 1.8))]
    ]
    (op,) = (profile := _profile("by hand", steps, ())).ops
    # to 12 s: 2.4, 2.64 and 3; the third step was disturbed
    assert (op.calls, op.time_s, op.exclusive_s) == (2, pytest.approx(2.64), pytest.approx(2.64))
    assert op.steps_exclusive_s == pytest.approx((2, 2.64, 3))
    assert (profile.step_time_s, profile.steps_s) == (12, (10, 12, 12))
    assert profile.method == "by hand; 1 of 4 steps left out, which took much longer"


def test_kernels_do_not_take_the_pace_of_the_host():
    steps = [seen(wall_s, [relu(1.0)], kernels=3, neighbours_s=wall_s) for wall_s in (10, 20)]
    (op,) = (profile := _profile("by hand", steps, ())).ops
    assert (op.time_s, profile.step_time_s) == (1.0, 15)


@pytest.mark.parametrize(
    ("steps_s", "neighbours_s", "cost"),
    [
        ((2.04, 2.10, 2.06), (2, 2, 2), 1.02),
        ((1.96, 1.94), (2, 2), 1.0),  # it makes no step shorter
        ((3, 1.4, 2.8), (2, 2, 2), 1.0),  # a restless machine
        ((3.6, 3.2, 9), (2, 1.6, 4), 1.8),  # what each pair shows at least
    ],
)
def test_what_the_profiler_costs_by_steps_and_their_neighbours(steps_s, neighbours_s, cost):
    assert profiler_cost(steps_s, neighbours_s) == pytest.approx(cost)


def test_a_step_that_lost_kernels_is_left_out_and_counted():
    steps = [
        seen(wall_s, [relu(wall_s)], kernels=kernels, neighbours_s=13)
        for wall_s, kernels in [(10, 90), (12, 100), (14, 100)]
    ]
    profile = _profile("by hand", steps, ())
    assert (profile.iterations, profile.step_time_s) == (2, 13)
    assert profile.method == "by hand; 1 of 3 steps left out, of which it lost kernels"


def profiled_as(monkeypatch, steps_s, *spans, alone=True):
    """Two pairs of steps that take `steps_s`; of each profiled one these are the spans."""
    clock, trace = ScriptedClock(), TraceWriter()
    for span in spans:
        trace.host(*span[:3], cat=(*span, "cpu_op")[3])

    @contextmanager
    def recorded(device):
        yield trace.trace

    monkeypatch.setattr(torch_profiler, "recorded", recorded)
    monkeypatch.setattr(torch_profiler, "trace_of", lambda recording, keep: recording)
    monkeypatch.setattr("bench.profilers.torch_profiler.time.perf_counter", clock)
    seconds = iter(steps_s)
    return profile_ops(lambda: clock.pass_s(next(seconds)), CPU, (), pairs=2, alone=alone)


def test_the_neighbours_of_a_step_are_before_and_after_it_but_for_the_one_that_obtains_memory(
    monkeypatch,
):
    steps_s = (9.0, 8.0, 1.0, 1.1, 8.0, 1.2, 1.3, 8.0, 1.1)
    profile = profiled_as(monkeypatch, steps_s, ("aten::relu", 0, 5))
    assert profile.steps_s == pytest.approx((1.1, 1.3))
    assert profile.neighbours_s == pytest.approx((1.1, 1.15))


def test_memory_that_a_profile_takes_is_obtained_before_the_profiled_step(monkeypatch):
    obtained, empty = [], torch.empty
    monkeypatch.setattr(torch_profiler, "_ROOM_BYTES", 2**20)
    monkeypatch.setattr(torch_profiler, "_resident_bytes", iter((2**20, 2**22)).__next__)
    monkeypatch.setattr(torch, "empty", lambda size, dtype: obtained.append(size) or empty(size))
    profiled_as(monkeypatch, (1.0,) * 9, ("aten::relu", 0, 5))
    assert obtained == [0, 3 * 2**20, 3 * 2**20]


def test_no_step_is_profiled_after_a_disturbed_one_and_for_a_disturbed_one_another_is(monkeypatch):
    steps_s = (9.0, 8.0, 1.0, 1.1, 8.0, 3.0, 1.2, 4.0, 8.0, 1.0, 1.3, 8.0, 1.1)
    profile = profiled_as(monkeypatch, steps_s, ("aten::relu", 0, 5))
    assert profile.steps_s == pytest.approx((1.1, 1.3))
    assert profile.neighbours_s == pytest.approx((2.0, 1.05))
    assert profile.method.endswith("; 1 of 3 steps left out, which took much longer")


def test_ranks_take_as_many_steps_however_long_each_takes_theirs(monkeypatch):
    steps_s = (9.0, 8.0, 1.0, 1.1, 8.0, 3.0, 4.0, 8.0, 1.0)  # a tenth step is there for none
    profile = profiled_as(monkeypatch, steps_s, ("aten::relu", 0, 5), alone=False)
    assert profile.steps_s == pytest.approx((1.1, 4.0))
    assert profile.neighbours_s == pytest.approx((2.0, 2.0))


def test_what_a_loader_computes_in_the_steps_own_process_is_the_wait_for_its_batch(monkeypatch):
    mark = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    spans = [("aten::relu", 0, 3e5), (mark, 3e5, 5e5, "user_annotation"), ("aten::div", 4e5, 3e5)]
    profile = profiled_as(monkeypatch, (1.0,) * 9, *spans)
    assert [(op.op, op.exclusive_s) for op in profile.ops] == [("relu", pytest.approx(0.3))]
    assert profile.data_wait_s == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("left_s", "step_s", "pairs"), [(0.0, 1.0, 2), (12.0, 1.0, 3), (99.0, 1.0, 5), (99.0, 11.0, 1)]
)
def test_how_many_pairs_there_is_time_for(left_s, step_s, pairs):
    assert pairs_within(left_s, step_s) == pairs


def test_the_tool_is_one_worker_without_anything_around_it():
    worker = TorchTool().worker(Path())
    assert (worker.name, worker.prefix, worker.environment) == ("torch", (), {})
    assert TorchTool().obstacle("mps") is None


def test_the_tools_section_is_what_the_worker_timed_or_its_reason():
    profile = samples.facts(OpProfile, method="m", iterations=1, step_time_s=1.0, ops=())
    timed, untimed = (
        samples.facts(Account, outcome="ok", **facts) for facts in ({"ops": profile}, {})
    )
    assert TorchTool().read(Path(), timed) is profile
    with pytest.raises(UserError, match="torch: no op times: not in this sample"):
        TorchTool().read(Path(), untimed)
