"""From a trace's intervals to nested ops: phases, own times, names."""

import pytest
from gpu_steps import BACKWARD_THREAD, HOST_THREAD, TraceWriter
from hypothesis import given
from hypothesis import strategies as st

from bench.profilers.traces.nest import DeviceTime, Kind, Nest, op_names

ENGINE = "autograd::engine::evaluate_function: ReluBackward0"
UPDATE = "Optimizer.step#SGD.step"


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


#: Intervals in order, those of autograd's own thread with `<` before their names, and their phases.
PHASES = {
    "autograd's engine, in its own thread": [
        ("relu", 0, 10, "forward"),
        ("<" + ENGINE, 20, 30, "backward"),
        ("<threshold_backward", 25, 20, "backward"),
        ("relu", 60, 10, "forward"),  # the next batch of an accumulated step
        ("<" + ENGINE, 80, 30, "backward"),
        (UPDATE, 120, 30, "optimizer"),
        ("add_", 125, 20, "optimizer"),
    ],
    "a backward pass within the forward pass": [
        ("CheckpointFunction", 0, 100, "forward"),
        (ENGINE, 10, 20, "backward"),
        ("mul", 12, 5, "backward"),
    ],
    "no engine": [("copy_", 0, 10, None)],
    "up to torch 1.9 the node alone": [
        ("relu", 0, 10, "forward"),
        ("<ReluBackward1", 20, 30, "backward"),
        ("<threshold_backward", 25, 20, "backward"),
        ("<add", 51, 3, "backward"),  # of two gradients, in no node
        ("<MulBackward0", 54, 3, "backward"),
        ("add_", 60, 10, "optimizer"),
    ],
    "an update before the next step's backward pass": [
        (UPDATE, 100, 100, "optimizer"), ("mul", 110, 10, "optimizer"),
        ("<" + ENGINE, 300, 10, "backward"),
    ],
    "an update whose closure runs the model": [
        (UPDATE, 100, 100, "forward"), ("mul", 110, 10, "forward"),
        ("<" + ENGINE, 130, 10, "backward"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", list(PHASES))
def test_phases_are_marked_by_autograd_and_by_the_optimizer(case):
    trace = TraceWriter()
    for name, begin, duration, _ in PHASES[case]:
        printed = name.strip("<")
        trace.host(
            f"aten::{printed}" if printed.islower() else printed, begin, duration,
            tid=BACKWARD_THREAD if name[0] == "<" else HOST_THREAD,
            cat="user_annotation" if printed == UPDATE else "cpu_op",
        )  # fmt: skip
    found = [op for top in nested(trace) for op in top.everything()]
    found.sort(key=lambda op: op.span.begin_us)
    assert [(op.name, op.phase) for op in found] == [
        (name.strip("<"), phase) for name, *_, phase in PHASES[case]
    ]


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


def test_loader_collectives_and_compiled_kernels_have_their_own_time():
    """The loader's 20 us have an op of 5, a kernel takes 30, gloo's 40 have 10 beside it."""
    trace = TraceWriter()
    mark = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    trace.host(mark, 0, 20, cat="user_annotation")
    trace.host("aten::stack", 5, 5)
    trace.host("graph_0_cpp_fused_gelu_0", 20, 30)
    trace.host("gloo:all_reduce", 40, 40, tid=99, cat="user_annotation")
    nest = Nest(trace.trace.host, timed=True)
    assert [(op.name, op.kind, round(1e6 * op.exclusive_s)) for op in nest.beside] == [
        (mark, Kind.LOADER, 15),
        ("gloo:all_reduce", Kind.COLLECTIVE, 30),
    ]
    assert round(1e6 * nest.beside[1].own_s) == 40
    kernel = nest.tops[-1]
    assert (kernel.kind, round(1e6 * kernel.own_s)) == (Kind.REGION, 30)


def test_waiting_for_a_collective_is_no_work_of_the_op_that_waits():
    trace = TraceWriter()
    trace.host("aten::linear", 0, 50)
    trace.host("_c10d_functional::wait_tensor", 10, 30)
    nest = Nest(trace.trace.host, timed=True)
    own_us = {op.name: round(1e6 * op.own_s) for op in nest.tops}
    assert own_us == {"linear": 20, "_c10d_functional.wait_tensor": 30}


# Device time: of which op, how busy the device was, what was copied


US = 1e-6


def on_device(trace):
    """The ops of a trace, each with its time of the device."""
    recorded = trace.trace
    nest = Nest(recorded.host, timed=False)
    device = DeviceTime(recorded.device)
    device.give_to(nest, recorded.launches)
    return nest.tops, device


def test_kernels_of_a_graph_or_a_compiled_region_go_by_their_own_names():
    trace = TraceWriter()
    region = trace.host("## Call CompiledFxGraph abc ##", 0, 50, cat="user_annotation")
    trace.device("void triton_poi_fused_relu_0(float*, int)", 100, 30, region)
    trace.device("void replayed<float, 4>(float*)", 200, 20)
    graph, replayed = on_device(trace)[0]
    [fused] = graph.inner
    assert [(op.name, op.kind, op.phase) for op in (fused, replayed)] == [
        ("triton_poi_fused_relu_0", Kind.KERNEL, None),
        ("replayed<float,4>", Kind.KERNEL, None),
    ]


def test_copies_are_added_up_by_direction():
    trace = TraceWriter()
    trace.copy("HtoD", 0, 10, 4096)
    trace.copy("DtoH", 20, 30, 8)
    trace.copy("HtoD", 60, 10, 1024)
    trace.copy("DtoD", 80, 1, 64)
    trace.copy("PtoP", 90, 1, 64)
    found = [
        (c.direction, c.calls, c.bytes, c.time_s) for c in DeviceTime(trace.trace.device).copies()
    ]
    assert found == [
        ("device to host", 1, 8, pytest.approx(30 * US)),
        ("host to device", 2, 5120, pytest.approx(20 * US)),
        ("device to device", 2, 128, pytest.approx(2 * US)),
    ]


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.booleans()), min_size=1)


@given(intervals)
def test_shares_of_overlapping_intervals_add_up_to_the_busy_time(spans):
    trace = TraceWriter()
    for begin, length, is_kernel in spans:
        trace.device("k()", begin, length, cat="kernel" if is_kernel else "gpu_memset")
    tops, device = on_device(trace)
    busy = {us for begin, length, _ in spans for us in range(begin, begin + length)}
    assert device.busy_s / US == pytest.approx(len(busy))
    span = max(b + n for b, n, _ in spans) - min(b for b, _, _ in spans)
    assert device.gap_s / US == pytest.approx(span - len(busy))
    kernels = {us for begin, n, is_kernel in spans if is_kernel for us in range(begin, begin + n)}
    of_kernels = [op for op in tops if op.runs[0].kind == "kernel"]
    assert sum(op.exclusive_s for op in of_kernels) / US == pytest.approx(len(kernels))
    assert sum(op.own_s for op in tops) / US == pytest.approx(sum(n for _, n, _ in spans))


def test_an_op_beside_another_keeps_its_kernels_own_time():
    """The second of two kernels at once has all of its time, and no exclusive time."""
    trace = TraceWriter()
    trace.device("first()", 100, 50, trace.host("aten::mul", 0, 5))
    trace.device("second()", 110, 30, trace.host("aten::add", 10, 5), stream=9)
    trace.device("ncclDevKernel_AllReduce()", 90, 100, trace.host("c10d::allreduce_", 20, 5))
    assert [(op.name, op.own_s / US, op.exclusive_s / US) for op in on_device(trace)[0]] == [
        ("mul", pytest.approx(50), pytest.approx(50)),
        ("add", pytest.approx(30), 0),
        ("c10d.allreduce_", pytest.approx(100), pytest.approx(50)),
    ]
