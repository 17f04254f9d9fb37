"""Ops of traces by op and shape: real traces against what others read, and small ones by hand."""

import ast
import csv
import json
from functools import cache
from pathlib import Path

import pytest

from bench.profilers.traces import DeviceSpan, HostSpan, ProfilerTrace, read_trace
from bench.profilers.traces.ops import op_rows
from bench.profilers.traces.steps import cut_steps
from bench.records.complexity import CalledOp, CallWork, OpWork
from bench.records.profile import COMMUNICATION

TRACES = Path(__file__).parents[3] / "data" / "traces"
MI300X = TRACES / "mi300x_resnet18_b10_8ranks_checkpointing.json.gz"
V100 = TRACES / "v100_resnet50_b32_workers0.pt.trace.json.gz"
THREAD, AUTOGRAD = (1, 1), (1, 2)


def linear(flops):
    return OpWork(label="linear", flops=flops, elementwise_flops=0, eager_bytes=256, fused_bytes=0)


@cache
def read(path, calls=()):
    """The ops of a trace with their work."""
    from bench.cost.printed_ops import work_of

    trace = read_trace(path)
    return op_rows(cut_steps(trace), trace, work_of, calls)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["CONV_fwd.csv", "CONV_bwd.csv", "GEMM.csv"])
def test_flop_and_kernel_time_of_every_shape_are_tracelenss(file):
    """But for the input's gradient of the first layer, which `output_mask` leaves out."""
    csv.field_size_limit(10**8)  # names of kernels
    text = (TRACES / "mi300x_resnet18_expected" / file).read_text("utf-8")
    for theirs in csv.DictReader(text.splitlines()):
        recomputed = theirs["is_recompute"] == "True"
        backward = recomputed or "bwd" in file or theirs["name"] == "aten::mm"
        name = theirs["name"].removeprefix("aten::")
        shapes = tuple(map(tuple, ast.literal_eval(theirs["Input Dims_first"])))
        phase = "backward" if backward else "forward"
        (ours,) = (
            op
            for called, op in read(MI300X)
            if (called.name, called.dims, called.phase) == (name, shapes, phase)
        )
        flops = float(theirs["GFLOPS_first"]) * 1e9
        if name == "addmm":
            flops -= 10 * 1000  # the bias: elementwise FLOP here
        if name == "convolution_backward" and shapes[1] == (10, 3, 224, 224):
            flops /= 2
        assert ours.flops / ours.calls == pytest.approx(flops, abs=1)
        assert 3 * ours.calls == pytest.approx(float(theirs["name_count"]))
        # Theirs is without the copies and fills that the op launched.
        theirs_s = float(theirs["Kernel Time (µs)_sum"]) / 1e6
        if any(kernel.startswith("Mem") for kernel in ours.kernels):
            assert theirs_s < 3 * ours.time_s
        else:
            assert theirs_s == pytest.approx(3 * ours.time_s)


@pytest.mark.slow
def test_no_rate_is_beyond_the_device_though_kernels_overlap():
    """An MI300X computes at most 1,307 TFLOP/s in bf16; these small convolutions far less."""
    ops = [op for _, op in read(MI300X)]
    assert max(op.flops / op.time_s for op in ops if op.flops) < 100e12
    # The published sum; the first layer's input needs no gradient.
    flops = sum(op.flops or 0 for op in ops if op.op == "convolution_backward")
    assert 3 * flops == pytest.approx(210.547e9, rel=1e-5)
    hidden = [op for op in ops if op.label == COMMUNICATION]
    for some in (ops, hidden):
        assert sum(op.exclusive_s for op in some) < sum(op.time_s for op in some)
    assert "c10d.allreduce_" in {op.op for op in hidden}


@pytest.mark.slow
def test_a_step_of_torch_1_9_has_the_flop_of_its_model_and_nearly_all_kernels_are_matched():
    from bench.cost.estimate import op_work, step_complexity
    from bench.records import StepSpec

    spec = StepSpec("resnet50", 32, "fp32", fused_optimizer=False)
    flops = step_complexity(spec).step_flops
    for rows, least in ((read(V100), 0.997), (read(V100, tuple(op_work(spec))), 0.999)):
        ops = [op for _, op in rows]
        assert sum(op.flops or 0 for op in ops) == pytest.approx(flops)
        whole_s = sum(op.time_s for op in ops)
        assert 1e6 * whole_s == pytest.approx(100_593, abs=1)  # busy: nothing overlaps
        assert sum(op.time_s for op in ops if op.flops is not None) > least * whole_s
        assert {op.phase for op in ops} == {"forward", "backward", "optimizer"}


@pytest.mark.slow
def test_a_step_recorded_here_has_the_flop_of_its_model(tmp_path):
    """A trace of a CPU: times are the ops' own on the host."""
    import torch
    from torch.profiler import profile

    layers = torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
    model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(8 * 49, 5))
    with profile(record_shapes=True) as profiler:
        model(torch.randn(4, 3, 16, 16)).sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    ops = [op for _, op in read(tmp_path / "trace.json")]
    conv, linear = 2 * 4 * 8 * 49 * 27, 2 * 4 * 8 * 49 * 5
    # The images need no gradient.
    assert sum(op.flops or 0 for op in ops) == 2 * conv + 3 * linear
    assert {op.label for op in ops if op.flops} == {"convolution 3x3 stride 2", "linear"}
    assert all(op.exclusive_s == op.time_s > 0 for op in ops)


def host(name, begin, end, thread=THREAD, kind="op", **facts):
    return HostSpan(name, kind, begin, end, thread, **facts)


def launched(number, begin, end, kernel="k()", *, stream=7, at, thread=THREAD):
    """A call of the host and the kernel that it launched."""
    call = host("cudaLaunchKernel", at, at + 1, thread, kind="call", correlation=number)
    return call, DeviceSpan(kernel, "kernel", begin, end, 0, stream, number)


ASKED = {}


def table(host_spans, pairs):
    spans = [*host_spans, *(call for call, _ in pairs)]
    spans.sort(key=lambda span: (span.begin_us, -span.end_us))
    trace = ProfilerTrace("t.json", spans, [run for _, run in pairs])

    def rows(work, calls=()):
        """The ops with this work; `ASKED` has those that it was asked for."""
        return op_rows(cut_steps(trace), trace, lambda ops: ASKED.update(last=ops) or work, calls)

    return rows


MM = {"dims": ((4, 8), (8, 2)), "types": ("float", "float")}


def linear_step():
    """Two layers' products; the second runs beside the first one."""
    spans = [
        host("aten::linear", 0, 20),
        host("aten::mm", 2, 18, **MM),
        host("aten::mm", 30, 40, **MM),
        host("AddmmBackward0", 50, 70, AUTOGRAD),
        host("aten::mm", 52, 60, AUTOGRAD, **MM),
    ]
    pairs = [
        launched(1, 100, 200, "gemm<float>()", at=5),
        launched(2, 150, 210, "gemm<float>()", at=35, stream=8),
        launched(3, 210, 220, "split()", at=55, thread=AUTOGRAD),
    ]
    late = DeviceSpan("graph_node()", "kernel", 300, 330, 0, 7, 99)
    return table(spans, [*pairs, (host("x", 400, 401, kind="call"), late)])


def test_ops_of_one_shape_are_one_row_and_phases_are_not_mixed():
    forward = CalledOp("mm", "forward", MM["dims"], MM["types"])
    backward = CalledOp("mm", "backward", MM["dims"], MM["types"])
    rows = linear_step()({forward: linear(128), backward: "no list"})
    assert set(ASKED["last"]) == {forward, backward, CalledOp("linear", "forward")}
    assert [(called, op.op, op.label, op.calls) for called, op in rows] == [
        (forward, "mm", "linear", 2),
        (CalledOp("graph_node"), "graph_node", "graph_node", 1),
        (backward, "mm", "linear", 1),
    ]
    first, replayed, last = (op for _, op in rows)
    assert first.time_s == pytest.approx(160e-6)
    assert first.exclusive_s == pytest.approx(110e-6)  # 50 us of the two are the same
    assert (first.kernels, first.shapes) == (("gemm<float>",), "4x8, 8x2")
    assert (first.flops, first.eager_bytes, first.missing) == (256, 512, {})
    assert (last.flops, last.missing["eager_bytes"]) == (None, "no list")
    assert "launched by no op" in replayed.missing["flops"]


def test_a_model_gives_what_it_has_and_the_rest_has_its_own_work():
    backward = CalledOp("mm", "backward", MM["dims"], MM["types"])
    seen = {"op": "mm", "phase": "forward", "shapes": MM["dims"]}
    call = CallWork(**{**dict(linear(128)), "fused_bytes": 99}, **seen)
    rows = linear_step()({backward: linear(7)}, [call])
    found = {(op.op, op.phase, op.calls, op.flops, op.fused_bytes) for _, op in rows}
    assert found == {
        ("graph_node", None, 1, None, None),
        ("mm", "backward", 1, 7, 0),
        ("mm", "forward", 1, 128, 99),
        ("mm", "forward", 1, None, None),  # the model has one such call
    }


def test_a_fraction_that_changes_with_each_step_makes_no_new_row():
    spans, pairs = [], []
    for number, factor in enumerate(("0.00998", "-1.2e-05", "1.0")):
        facts = {"dims": ((3,), ()), "types": ("float", "Scalar"), "concrete": ("", factor)}
        spans.append(host("aten::mul", 10 * number, 10 * number + 9, **facts))
        pairs.append(launched(number, 100 + number, 101 + number, at=10 * number + 1))
    assert [op.calls for _, op in table(spans, pairs)({})] == [2, 1]


def test_without_values_sizes_come_from_the_backward_pass():
    x, w, y = (2, 3, 8, 8), (4, 3, 3, 3), (2, 4, 4, 4)
    lists = ("GenericList",) * 3
    forward = {"dims": (x, w, (), (), ()), "types": ("float", "float", *lists), "sequence": 7}
    backward = {"dims": (x, y, w, (), (), ()), "types": ("float", "float", "float", *lists)}
    spans = [
        host("aten::convolution", 0, 20, **forward),
        host("aten::cudnn_convolution", 1, 19, **forward),
        host("CudnnConvolutionBackward", 30, 60, AUTOGRAD, dims=(y,), sequence=7),
        host("aten::cudnn_convolution_backward", 31, 59, AUTOGRAD, **backward),
        host("aten::cudnn_convolution_backward_weight", 33, 50, AUTOGRAD, dims=()),
    ]
    pairs = [launched(1, 100, 110, at=5), launched(2, 120, 130, at=40, thread=AUTOGRAD)]
    table(spans, pairs)({})
    found = {op.name: op for op in ASKED["last"]}
    assert found["convolution"].result is None  # which may be transposed
    assert found["cudnn_convolution"].result == y
    assert found["cudnn_convolution_backward"].output_mask == (False, True, False)


@pytest.mark.parametrize(
    "facts",
    [
        {"Input Dims": [{"a": 1}, [2**60, 3], "x", [1.5]], "Input type": ["float", 5]},
        {"Input Dims": [[2, 2], [2, 2]], "Input type": ["float"], "Concrete Inputs": ["(((", {}]},
        {"Input Dims": [[2]], "Input type": ["float"], "Input Strides": [["q"], 3]},
        {"Input Dims": [[2]], "Input type": ["float", "Scalar"], "Concrete Inputs": ["", "nan"]},
    ],
)
@pytest.mark.slow
def test_whatever_a_file_has_for_arguments_is_read_and_gives_work_or_a_reason(facts, tmp_path):
    names = ("mm", "add", "convolution", "cudnn_convolution_backward", "_flash_attention_forward")
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 5, "args": facts}
    events = [{**event, "name": f"aten::{name}", "ts": 10 * n} for n, name in enumerate(names)]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    ops = [op for _, op in read(tmp_path / "trace.json")]
    assert {op.op for op in ops} == set(names)
    assert all(op.missing for op in ops if op.flops is None)
