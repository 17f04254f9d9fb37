"""From a trace's intervals to nested ops: phases, own times, names."""

import pytest
from traces import BACKWARD_THREAD, TraceWriter, gpu_step

from bench.profilers.ops.op_nest import Kind, Nest, op_names

ENGINE = "autograd::engine::evaluate_function: ReluBackward0"


def nested(trace, timed=True):
    return Nest(trace.trace.host, timed=timed).tops


def test_own_time_is_what_no_inner_op_took():
    trace = TraceWriter()
    trace.host("aten::conv2d", 100, 50)
    trace.host("aten::convolution", 105, 40)
    trace.host("aten::empty", 110, 10)
    trace.host("aten::relu", 150, 20)  # begins as the first one ends
    outer, relu = nested(trace)
    (inner,) = outer.inner
    assert [op.own_s * 1e6 for op in (outer, inner, *inner.inner)] == pytest.approx([10, 30, 10])
    assert sum(op.own_s for op in outer.everything()) * 1e6 == pytest.approx(50)
    assert (relu.name, relu.inner) == ("relu", [])


@pytest.mark.parametrize(("names", "durations"), [("ab", (1, 1)), ("ba", (1, 2))])
def test_of_two_ops_that_begin_at_once_the_longer_or_the_first_is_the_outer(names, durations):
    trace = TraceWriter()
    for name, duration in zip(names, durations, strict=True):
        trace.host(f"aten::{name}", 100, duration)
    assert [(op.name, op.inner[0].name) for op in nested(trace)] == [("a", "b")]


def test_threads_do_not_nest_in_each_other():
    trace = TraceWriter()
    trace.host("aten::mul", 0, 100)
    trace.host("aten::add", 10, 20, tid=BACKWARD_THREAD)
    assert sorted((op.name, op.own_s * 1e6) for op in nested(trace)) == [
        ("add", pytest.approx(20)),
        ("mul", pytest.approx(100)),
    ]


def test_autograds_engine_marks_the_phases_in_any_thread():
    trace = TraceWriter()
    trace.host("aten::relu", 0, 10)
    trace.host(ENGINE, 20, 30, tid=BACKWARD_THREAD)
    trace.host("aten::threshold_backward", 25, 20, tid=BACKWARD_THREAD)
    trace.host("aten::relu", 60, 10)  # the next batch of an accumulated step
    trace.host(ENGINE, 80, 30, tid=BACKWARD_THREAD)
    trace.host("Optimizer.step#SGD.step", 120, 30, cat="user_annotation")
    trace.host("aten::add_", 125, 20)
    phases = {(op.name, op.phase) for top in nested(trace) for op in (top, *top.inner)}
    assert phases == {
        ("relu", "forward"),
        (ENGINE, "backward"),
        ("threshold_backward", "backward"),
        ("Optimizer.step#SGD.step", "optimizer"),
        ("add_", "optimizer"),
    }


def test_backward_within_the_forward_pass_is_backward():
    trace = TraceWriter()
    trace.host("CheckpointFunction", 0, 100)
    trace.host(ENGINE, 10, 20)
    trace.host("aten::mul", 12, 5)
    (outer,) = nested(trace)
    (engine,) = outer.inner
    phases = [op.phase for op in (outer, engine, *engine.inner)]
    assert phases == ["forward", "backward", "backward"]


def test_without_the_engine_no_phase_is_known():
    trace = TraceWriter()
    trace.host("aten::copy_", 0, 10)
    assert nested(trace)[0].phase is None


def test_only_operators_are_ops():
    names_and_kinds = {
        "aten::relu": ("relu", Kind.OP),
        "torchvision::nms": ("torchvision.nms", Kind.OP),
        "ReluBackward0": ("ReluBackward0", Kind.WRAPPER),
        "torch::autograd::AccumulateGrad": ("torch::autograd::AccumulateGrad", Kind.WRAPPER),
        ENGINE: (ENGINE, Kind.WRAPPER),
        "Torch-Compiled Region: 0/0": ("Torch-Compiled Region: 0/0", Kind.WRAPPER),
        "## Call CompiledFxGraph fk5w6m3j5mvej ##": ("CompiledFxGraph", Kind.REGION),
    }
    trace = TraceWriter()
    for place, name in enumerate(names_and_kinds):
        trace.host(name, 100 * place, 50)
    trace.host("model::head", 800, 50, cat="user_annotation")
    assert [(op.name, op.kind) for op in nested(trace)] == [
        *names_and_kinds.values(),
        ("model::head", Kind.WRAPPER),
    ]
    assert op_names(trace.trace.host) == ["relu", "torchvision.nms"]


def test_shapes_leave_out_what_is_no_tensor():
    trace = TraceWriter()
    trace.host("aten::cat", 0, 5, [[[2, 3], [4, 3]], []])
    trace.host("aten::mul", 10, 5, [[2, 3], [], [3]])
    assert [op.shapes for op in nested(trace)] == [(), ((2, 3), (3,))]


def test_what_ran_on_the_device_is_no_host_op():
    names = op_names(gpu_step().host)
    assert "cudnn_convolution" in names
    assert not [name for name in names if "cudaLaunch" in name or "bn_fw" in name]


def test_up_to_torch_1_9_the_node_marks_the_backward_pass():
    trace = TraceWriter()
    trace.host("aten::relu", 0, 10)
    trace.host("ReluBackward1", 20, 30, tid=BACKWARD_THREAD)
    trace.host("aten::threshold_backward", 25, 20, tid=BACKWARD_THREAD)
    trace.host("aten::add", 51, 3, tid=BACKWARD_THREAD)  # of two gradients, in no node
    trace.host("MulBackward0", 54, 3, tid=BACKWARD_THREAD)
    trace.host("aten::add_", 60, 10)
    phases = {(op.name, op.phase) for top in nested(trace) for op in top.everything()}
    assert phases == {
        ("relu", "forward"),
        ("ReluBackward1", "backward"),
        ("threshold_backward", "backward"),
        ("add", "backward"),
        ("MulBackward0", "backward"),
        ("add_", "optimizer"),
    }


@pytest.mark.parametrize("runs_the_model", [False, True])
def test_the_optimizers_mark_holds_its_ops_unless_it_runs_the_model(runs_the_model):
    trace = TraceWriter()
    trace.host("Optimizer.step#SGD.step", 100, 100, cat="user_annotation")
    trace.host("aten::mul", 110, 10)
    begin = 130 if runs_the_model else 300  # of a closure, or of the next step
    trace.host(ENGINE, begin, 10, tid=BACKWARD_THREAD)
    (mark,) = (op for op in nested(trace) if op.name.startswith("Optimizer"))
    assert mark.inner[0].phase == ("forward" if runs_the_model else "optimizer")
