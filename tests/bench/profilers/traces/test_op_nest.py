"""From a trace's intervals to nested ops: phases, own times, names."""

import random
from functools import partial

import pytest
from gpu_steps import BACKWARD_THREAD, HOST_THREAD, TraceWriter
from hypothesis import given
from hypothesis import strategies as st

from bench.profilers.traces.nest import DeviceTime, Kind, Nest, SeenOp, op_names
from bench.profilers.traces.ops import CallsInOrder, join
from bench.records.complexity import CallWork

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


@pytest.mark.parametrize(
    ("mark", "collective"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "gloo:all_reduce"),
        ("enumerate(DataPipe)#BatcherIterDataPipe", "oneccl_bindings_for_pytorch::allreduce"),
        ("fetch_next_batch", "mpi:all_reduce"),
        ("waiting for data", "ucc:allreduce"),
    ],
)
def test_loader_collectives_and_compiled_kernels_have_their_own_time(mark, collective):
    """The loader's 20 us have an op of 5, a kernel takes 30, the collective's 40 10 beside it."""
    trace = TraceWriter()
    trace.host(mark, 0, 20, cat="user_annotation")
    trace.host("aten::stack", 5, 5)
    trace.host("graph_0_cpp_fused_gelu_0", 20, 30)
    trace.host(collective, 40, 40, tid=99, cat="user_annotation")
    nest = Nest(trace.trace.host, timed=True)
    assert [(op.name, op.kind, round(1e6 * op.exclusive_s)) for op in nest.beside] == [
        (mark, Kind.LOADER, 15),
        (collective, Kind.COLLECTIVE, 30),
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


# Ops meet the cost model's calls: each call once, each nanosecond once


def work(op, *shapes, phase="forward", flops=1):
    return CallWork(
        op=op,
        phase=phase,
        shapes=shapes,
        label=op,
        flops=flops,
        elementwise_flops=0,
        eager_bytes=10 * flops,
        fused_bytes=5 * flops,
    )


def seen(name, *shapes, own=1.0, inner=(), phase="forward", kind=Kind.OP):
    return SeenOp(name, kind, phase, shapes, own, list(inner))


def joined(tops, calls):
    return [
        (op.name, op.work and op.work.flops, op.own_s) for op in join(tops, CallsInOrder(calls))
    ]


X, W, Y = (4, 3, 8, 8), (6, 3, 1, 1), (4, 6, 8, 8)
MM = ((4, 8), (8, 10))
BACKWARD = partial(seen, phase="backward")


def in_place():
    """Autograd keeps a copy of what the op will overwrite."""
    inner = [seen("clone", X, own=4), seen("hardtanh", X, own=5)]
    return seen("hardtanh_", X, own=1, inner=inner)


#: The timed ops, the model's calls in their order, and what each op is joined with.
JOINS = {
    "the outermost op that is a call takes what it calls": (
        [seen("conv2d", X, W, own=1, inner=[
            seen("convolution", X, W, own=2, inner=[seen("mkldnn_convolution", X, W, own=30)]),
        ])],
        [work("convolution", X, W)],
        [("convolution", 1, 33)],
    ),
    "calls of the same shapes are taken in order": (
        [seen("relu", shape) for shape in (W, X, X, X)],
        [work("relu", X, flops=1), work("relu", X, flops=2), work("relu", W, flops=3)],
        [("relu", flops, 1) for flops in (3, 1, 2, None)],
    ),
    "phases do not mix": (
        [seen("mul", X), BACKWARD("mul", X), seen("mul", X, phase=None)],
        [work("mul", X, phase="backward", flops=2), work("mul", X, flops=1)],
        [("mul", flops, 1) for flops in (1, 2, None)],
    ),
    "casts of autocast are calls beside their convolution": (
        [seen("conv2d", X, W, own=5, inner=[
            seen("to", W, own=1, inner=[seen("_to_copy", W, own=2, inner=[seen("copy_", W, W)])]),
            seen("conv2d", X, W, own=3, inner=[seen("convolution", X, W, own=30)]),
        ])],
        [work("_to_copy", W, flops=0), work("convolution", X, W, flops=7)],
        [("conv2d", None, 5), ("_to_copy", 0, 4), ("convolution", 7, 33)],
    ),
    # bf16 weight gradients are cast inside; the next call casts the same shape again.
    "a cast of the backend's own is part of its op": (
        [BACKWARD("convolution_backward", X, X, W, own=30, inner=[seen("_to_copy", W, own=4)]),
         BACKWARD("_to_copy", W, own=2)],
        [work("convolution_backward", X, X, W, phase="backward", flops=9),
         work("_to_copy", W, phase="backward", flops=0)],
        [("convolution_backward", 9, 34), ("_to_copy", 0, 2)],
    ),
    "what autograd copies before an op in place is a call of its own": (
        [in_place()],
        [work("clone", X, flops=0), work("hardtanh_", X, flops=2)],
        [("hardtanh_", 2, 6), ("clone", 0, 4)],
    ),
    "without that call it is part of the op": (
        [in_place()], [work("hardtanh_", X, flops=2)], [("hardtanh_", 2, 10)],
    ),
    "what an op in place calls is not the next call like it": (
        [seen("relu_", X, inner=[seen("relu", X)]) for _ in range(2)],
        [work("relu_", X, flops=flops) for flops in (1, 2)],
        [("relu_", 1, 2), ("relu_", 2, 2)],
    ),
    "a copy that another op makes is part of it": (
        [seen("relu", X, inner=[seen("clone", X)])],
        [work("relu", X), work("clone", X)],
        [("relu", 1, 2)],
    ),
    "a linear layer under autocast is its casts and its product": (
        [seen("linear", (4, 8), (10, 8), own=0.5, inner=[
            *(seen("_to_copy", shape) for shape in ((10, 8), (4, 8))),
            seen("linear", (4, 8), (10, 8), inner=[seen("t", (10, 8)), seen("mm", *MM)]),
        ])],
        [work("_to_copy", (10, 8)), work("_to_copy", (4, 8)), work("mm", *MM)],
        [("linear", None, 0.5), ("_to_copy", 1, 1), ("_to_copy", 1, 1), ("linear", 1, 3)],
    ),
    "what is no call is one op with all it calls": (
        [seen("to", X, own=1, inner=[
            seen("_to_copy", X, own=2, inner=[seen("copy_", X, own=30)]),
        ])],
        [],
        [("to", None, 33)],
    ),
    "time of marks and of autograd belongs to no op": (
        [seen("ReluBackward0", own=50, inner=[seen("mul", X, own=3)], kind=Kind.WRAPPER)],
        [work("mul", X)],
        [("mul", 1, 3)],
    ),
    "a compiled graph is not the ops that it still calls": (
        [seen("CompiledFxGraph", own=20, inner=[seen("convolution", X, W)], kind=Kind.REGION)],
        [work("convolution", X, W)],
        [("CompiledFxGraph", None, 20), ("convolution", 1, 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(JOINS))
def test_ops_meet_their_calls(case):
    tops, calls, shares = JOINS[case]
    assert joined(tops, calls) == shares


@pytest.mark.parametrize(
    ("timed", "model"),
    [
        (seen("cudnn_batch_norm", X, (6,), (6,)), work("native_batch_norm", X, (6,))),
        (
            seen("cudnn_batch_norm_backward", X, X, (6,), (128,)),
            work("native_batch_norm_backward", X, X, (6,)),
        ),
        (
            seen("cudnn_convolution_backward", X, Y, W),
            work("convolution_backward", Y, X, W),
        ),
        (seen("add_", X, X), work("add", X, X)),
        (seen("_index_put_impl_", X, W), work("index_put", X, W)),
        (seen("linear", (2, 5, 8), (10, 8), (10,)), work("addmm", (10,), (10, 8), (8, 10))),
        (seen("addmm", (10,), (4, 8), (8, 10)), work("addmm", (10,), (4, 8), (8, 10))),
        (seen("mm", (4, 8), (8, 10)), work("mm", (4, 8), (8, 10))),
        # Compiled code gives the result's place too.
        (seen("mm", (4, 8), (8, 10), (4, 10)), work("mm", (4, 8), (8, 10))),
        (seen("addmm", (10,), (4, 8), (8, 10), (4, 10)), work("addmm", (10,), (4, 8), (8, 10))),
        (seen("addmm", (4, 10), (4, 8), (8, 10)), work("mm", (4, 8), (8, 10))),
        (
            seen("_scaled_dot_product_flash_attention", X, X, X),
            work("_scaled_dot_product_flash_attention_for_cpu", X, X, X),
        ),
        (
            seen("_scaled_dot_product_efficient_attention_backward", X, X, X, X, W),
            work("_scaled_dot_product_flash_attention_for_cpu_backward", X, X, X, X, X),
        ),
    ],
)
def test_a_backends_own_name_for_the_same_work_is_known(timed, model):
    assert joined([timed], [model]) == [(timed.name, 1, 1)]


@pytest.mark.parametrize(
    ("timed", "model"),
    [
        (seen("cudnn_batch_norm", W), work("native_batch_norm", X)),
        (seen("mm", (4, 8), (8, 10)), work("mm", (8, 4), (4, 10))),
        (seen("mm"), work("mm", (4, 8), (8, 10))),
        (
            seen("_scaled_dot_product_flash_attention_backward", X, X, X, X),
            work("_scaled_dot_product_flash_attention_for_cpu", X, X, X),
        ),
        (seen("relu", X, kind=Kind.WRAPPER), work("relu", X)),
        (seen("relu", X, kind=Kind.KERNEL), work("relu", X)),
    ],
)
def test_other_work_is_not_joined(timed, model):
    assert [op.work for op in join([timed], CallsInOrder([model]))] in ([], [None])


def test_no_time_is_lost_or_counted_twice_in_any_tree():
    draw = random.Random(3)
    names, shapes = ["a", "b", "b_", "clone"], [X, W]

    def tree(depth):
        inner = [tree(depth - 1) for _ in range(draw.randrange(3) if depth else 0)]
        kind = draw.choice([Kind.OP, Kind.OP, Kind.REGION])
        return seen(
            draw.choice(names), draw.choice(shapes), own=draw.random(), inner=inner, kind=kind
        )

    for _ in range(200):
        tops = [tree(4) for _ in range(3)]
        calls = [work(draw.choice(names), draw.choice(shapes)) for _ in range(10)]
        ops = join(tops, CallsInOrder(calls))
        whole_s = sum(op.own_s for top in tops for op in top.everything())
        assert sum(op.own_s for op in ops) == pytest.approx(whole_s)
        taken = [id(op.work) for op in ops if op.work]
        assert len(taken) == len(set(taken))
