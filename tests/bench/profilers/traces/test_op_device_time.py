"""Device time from a GPU's trace: of which op, how busy the device was, what was copied."""

import pytest
from gpu_steps import TraceWriter
from hypothesis import given
from hypothesis import strategies as st

from bench.profilers.traces.nest import DeviceTime, Kind, Nest

US = 1e-6


def nested(trace):
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
    graph, replayed = nested(trace)[0]
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
    tops, device = nested(trace)
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
    assert [(op.name, op.own_s / US, op.exclusive_s / US) for op in nested(trace)[0]] == [
        ("mul", pytest.approx(50), pytest.approx(50)),
        ("add", pytest.approx(30), 0),
        ("c10d.allreduce_", pytest.approx(100), pytest.approx(50)),
    ]
