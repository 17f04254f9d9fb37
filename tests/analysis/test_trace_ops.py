"""Ops of traces by op and shape: real traces against what others read, and small ones by hand."""

import ast
import csv
import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from analysis.traces.ops import OpTable
from analysis.traces.steps import cut_steps
from bench.profilers.traces import DeviceSpan, HostSpan, Trace, read_trace
from bench.records.complexity import CalledOp, CallWork, OpWork
from bench.records.profile import COMMUNICATION

TRACES = Path(__file__).parents[1] / "data" / "traces"
MI300X = "mi300x_resnet18_b10_8ranks_checkpointing.json.gz"
V100 = "v100_resnet50_b32_workers0.pt.trace.json.gz"
EXPECTED = TRACES / "mi300x_resnet18_expected"
THREAD, AUTOGRAD = (1, 1), (1, 2)


@cache
def table_of(name):
    trace = read_trace(TRACES / name)
    return OpTable(cut_steps(trace), trace)


@cache
def work_in(name):
    from bench.cost.called import work_of

    return work_of(table_of(name).ops)


@cache
def rows_of(name):
    return table_of(name).rows(work_in(name))


def expected(file):
    csv.field_size_limit(10**8)  # names of kernels
    with (EXPECTED / file).open(newline="", encoding="utf-8") as table:
        return list(csv.DictReader(table))


def shapes(row):
    return tuple(map(tuple, ast.literal_eval(row["Input Dims_first"])))


@pytest.mark.slow
@pytest.mark.parametrize("file", ["CONV_fwd.csv", "CONV_bwd.csv", "GEMM.csv"])
def test_flop_and_kernel_time_of_every_shape_are_tracelenss(file):
    """But for the input's gradient of the first layer, which `output_mask` leaves out."""
    for theirs in expected(file):
        recomputed = theirs["is_recompute"] == "True"
        backward = recomputed or "bwd" in file or theirs["name"] == "aten::mm"
        (ours,) = (
            row
            for row in rows_of(MI300X)
            if (row.op.name, row.op.dims) == (theirs["name"].removeprefix("aten::"), shapes(theirs))
            and row.op.phase == ("backward" if backward else "forward")
        )
        flops = float(theirs["GFLOPS_first"]) * 1e9
        if ours.op.name == "addmm":
            flops -= 10 * 1000  # the bias: elementwise FLOP here
        if ours.op.name == "convolution_backward" and shapes(theirs)[1] == (10, 3, 224, 224):
            flops /= 2
        assert ours.flops / ours.calls == pytest.approx(flops, abs=1)
        assert 3 * ours.calls == pytest.approx(float(theirs["name_count"]))
        # Theirs is without the copies and fills that the op launched.
        kernels_s = sum(time_s for name, time_s in ours.kernels if not name.startswith("Mem"))
        assert 3e6 * kernels_s == pytest.approx(float(theirs["Kernel Time (µs)_sum"]))


@pytest.mark.slow
def test_the_backward_convolutions_are_without_the_first_gradient():
    flops = 3 * sum(
        row.flops for row in rows_of(MI300X) if row.op.name == "convolution_backward" and row.flops
    )
    assert flops == pytest.approx(210.547e9, rel=1e-5)


@pytest.mark.slow
def test_no_rate_is_beyond_the_device_though_kernels_overlap():
    """An MI300X computes at most 1,307 TFLOP/s in bf16; these small convolutions far less."""
    fastest = max(row.flops / row.time_s for row in rows_of(MI300X) if row.flops)
    assert fastest < 100e12
    device_s = sum(row.exclusive_s for row in rows_of(MI300X))
    assert device_s < sum(row.time_s for row in rows_of(MI300X))
    hidden = [row for row in rows_of(MI300X) if row.label == COMMUNICATION]
    assert sum(row.exclusive_s for row in hidden) < sum(row.time_s for row in hidden)
    assert "c10d.allreduce_" in {row.op.name for row in hidden}


@pytest.mark.slow
def test_a_step_of_torch_1_9_has_the_flop_of_its_model_and_nearly_all_kernels_are_matched():
    from bench.cost import StepSpec, op_work, step_complexity

    spec = StepSpec("resnet50", 32, "fp32", fused_optimizer=False)
    flops = step_complexity(spec).step_flops
    alone = rows_of(V100)
    assert sum(row.flops or 0 for row in alone) == flops
    modelled = table_of(V100).rows_of_model(op_work(spec), work_in(V100))
    assert sum(row.flops or 0 for row in modelled) == flops
    for rows, least in ((alone, 0.997), (modelled, 0.999)):
        whole_s = sum(row.time_s for row in rows)
        assert 1e6 * whole_s == pytest.approx(100_593, abs=1)  # busy: nothing overlaps
        assert sum(row.time_s for row in rows if row.flops is not None) > least * whole_s
    assert {row.op.phase for row in modelled} == {"forward", "backward", "optimizer"}


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
    trace = read_trace(tmp_path / "trace.json")
    from bench.cost.called import work_of

    table = OpTable(cut_steps(trace), trace)
    rows = table.rows(work_of(table.ops))
    conv, linear = 2 * 4 * 8 * 49 * 27, 2 * 4 * 8 * 49 * 5
    # The images need no gradient.
    assert sum(row.flops or 0 for row in rows) == 2 * conv + 3 * linear
    assert {row.label for row in rows if row.flops} == {"convolution 3x3 stride 2", "linear"}
    assert all(row.exclusive_s == row.time_s > 0 for row in rows)


def host(name, begin, end, thread=THREAD, kind="op", **facts):
    return HostSpan(name, kind, begin, end, thread, **facts)


def launched(number, begin, end, kernel="k()", *, stream=7, at, thread=THREAD):
    """A call of the host and the kernel that it launched."""
    call = host("cudaLaunchKernel", at, at + 1, thread, kind="call", correlation=number)
    return call, DeviceSpan(kernel, "kernel", begin, end, 0, stream, number)


def table(host_spans, pairs):
    spans = [*host_spans, *(call for call, _ in pairs)]
    spans.sort(key=lambda span: (span.begin_us, -span.end_us))
    trace = Trace("t.json", spans, [run for _, run in pairs])
    return OpTable(cut_steps(trace), trace)


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


def known(flops=128, fused=0):
    return OpWork("linear", flops, 0, 256, fused)


def test_ops_of_one_shape_are_one_row_and_phases_are_not_mixed():
    step = linear_step()
    forward = CalledOp("mm", "forward", MM["dims"], MM["types"])
    backward = CalledOp("mm", "backward", MM["dims"], MM["types"])
    assert set(step.ops) == {forward, backward, CalledOp("linear", "forward")}
    rows = step.rows({forward: known(), backward: "no list"})
    assert [(row.op, row.label, row.calls) for row in rows] == [
        (forward, "linear", 2),
        (CalledOp("graph_node"), "graph_node", 1),
        (backward, "linear", 1),
    ]
    first, replayed, last = rows
    assert first.time_s == pytest.approx(160e-6)
    assert first.exclusive_s == pytest.approx(110e-6)  # 50 us of the two are the same
    assert first.kernels == (("gemm<float>", pytest.approx(160e-6)),)
    assert (first.flops, first.eager_bytes, first.missing) == (256, 512, {})
    assert (last.flops, last.missing["eager_bytes"]) == (None, "no list")
    assert "launched by no op" in replayed.missing["flops"]


def test_a_model_gives_what_it_has_and_the_rest_has_its_own_work():
    step = linear_step()
    backward = CalledOp("mm", "backward", MM["dims"], MM["types"])
    call = CallWork("linear", 128, 0, 256, 99, op="mm", phase="forward", shapes=MM["dims"])
    rows = step.rows_of_model([call], {backward: known(7)})
    by_flops = {row.flops: (row.op.phase, row.calls, row.fused_bytes) for row in rows}
    assert by_flops[128] == ("forward", 1, 99)
    assert by_flops[7] == ("backward", 1, 0)
    unmatched = [row for row in rows if row.op.name == "mm" and row.flops is None]
    assert [row.calls for row in unmatched] == [1]  # the model has one such call
    assert Counter(row.op.name for row in rows) == {"mm": 3, "graph_node": 1}


def test_communication_is_a_row_of_its_own_whatever_launched_it():
    spans = [host("c10d::allreduce_", 0, 10, dims=(((64,),),), types=("TensorList",))]
    pairs = [
        launched(1, 100, 200, "ncclDevKernel_AllReduce()", at=5),
        launched(2, 150, 400, "gemm()", at=20, stream=8),
    ]
    communication, gemm = sorted(table(spans, pairs).rows({}), key=lambda row: row.time_s)
    assert (communication.label, communication.op.name) == (COMMUNICATION, "c10d.allreduce_")
    assert communication.exclusive_s == pytest.approx(50e-6)  # what nothing hides
    assert gemm.exclusive_s == gemm.time_s == pytest.approx(250e-6)


def test_a_fraction_that_changes_with_each_step_makes_no_new_row():
    spans, pairs = [], []
    for number, factor in enumerate(("0.00998", "-1.2e-05", "1.0")):
        facts = {"dims": ((3,), ()), "types": ("float", "Scalar"), "concrete": ("", factor)}
        spans.append(host("aten::mul", 10 * number, 10 * number + 9, **facts))
        pairs.append(launched(number, 100 + number, 101 + number, at=10 * number + 1))
    assert [row.calls for row in table(spans, pairs).rows({})] == [2, 1]


def test_without_values_sizes_come_from_the_backward_pass():
    lists = (("GenericList",) * 3, ((),) * 3)
    x, w, y = (2, 3, 8, 8), (4, 3, 3, 3), (2, 4, 4, 4)
    forward = {"dims": (x, w, *lists[1]), "types": ("float", "float", *lists[0]), "sequence": 7}
    backward = {
        "dims": (x, y, w, *lists[1]),
        "types": ("float", "float", "float", *lists[0]),
    }
    spans = [
        host("aten::convolution", 0, 20, **forward),
        host("aten::cudnn_convolution", 1, 19, **forward),
        host("CudnnConvolutionBackward", 30, 60, AUTOGRAD, dims=(y,), sequence=7),
        host("aten::cudnn_convolution_backward", 31, 59, AUTOGRAD, **backward),
        host("aten::cudnn_convolution_backward_weight", 33, 50, AUTOGRAD, dims=()),
    ]
    pairs = [launched(1, 100, 110, at=5), launched(2, 120, 130, at=40, thread=AUTOGRAD)]
    found = {op.name: op for op in table(spans, pairs).ops}
    assert found["convolution"].result is None  # which may be transposed
    assert found["cudnn_convolution"].result == y
    assert found["cudnn_convolution_backward"].output_mask == (False, True, False)


@pytest.mark.parametrize(
    "facts",
    [
        {"Input Dims": [{"a": 1}, [2**60, 3], "x", [1.5]], "Input type": ["float", 5]},
        {"Input Dims": [[2, 2], [2, 2]], "Input type": ["float"], "Concrete Inputs": ["(((", {}]},
        {"Input Dims": [[2]], "Input type": ["float"], "Input Strides": [["q"], 3]},
        {
            "Input Dims": [[2], []],
            "Input type": ["float", "Scalar"],
            "Concrete Inputs": ["", "nan"],
        },
    ],
)
@pytest.mark.slow
def test_whatever_a_file_has_for_arguments_is_read_and_gives_work_or_a_reason(facts, tmp_path):
    from bench.cost.called import work_of

    names = ("mm", "add", "convolution", "cudnn_convolution_backward", "_flash_attention_forward")
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 5, "args": facts}
    events = [{**event, "name": f"aten::{name}", "ts": 10 * n} for n, name in enumerate(names)]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    trace = read_trace(tmp_path / "trace.json")
    found = OpTable(cut_steps(trace), trace)
    rows = found.rows(work_of(found.ops))
    assert {row.op.name for row in rows} == set(names)
    assert all(row.missing for row in rows if row.flops is None)
