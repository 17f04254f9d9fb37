"""What a trace holds is found whichever version of torch, on whichever device, wrote it."""

import gzip
import json
from itertools import pairwise

import pytest
from trace_files import ALEXNET, MI300X, V100, V100_LOADERS, cut, event, published, read

from bench.errors import UserError
from bench.profilers.ncu.metrics import DRAM, DURATION, sass_metric, sass_ops, tensor_metrics
from bench.profilers.traces import read_counters as trace_counters
from bench.profilers.traces import read_trace


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ops", "marks", "calls", "kernels", "copies", "fills", "ranges"),
    [
        (V100, 23622, 24, 11923, 8772, 12, 312, 0),
        (V100_LOADERS, 20538, 24, 12085, 8868, 12, 378, 0),
        (MI300X, 8004, 24, 3100, 2995, 550, 108, 0),
        (ALEXNET, 375, 8, 1862, 0, 0, 0, 77),
    ],
)
def test_published_traces_are_read_whole(name, ops, marks, calls, kernels, copies, fills, ranges):
    trace = published(name)
    host = [span.kind for span in trace.host]
    assert [host.count(kind) for kind in ("op", "mark", "call")] == [ops, marks, calls]
    device = [run.kind for run in trace.device]
    assert [device.count(kind) for kind in ("kernel", "copy", "fill")] == [kernels, copies, fills]
    assert (trace.counters.launches.total() if trace.counters else 0) == ranges
    for spans in (trace.host, trace.device):
        assert all(one.begin_us <= other.begin_us for one, other in pairwise(spans))


@pytest.mark.slow
def test_a_published_trace_names_its_device_rank_and_launches():
    trace = published(MI300X)
    assert (trace.of_the_device("name"), trace.rank) == ("AMD Instinct MI300X", 0)
    assert trace.world_size == 8
    assert published(V100).of_the_device("name") == "Tesla V100-DGXS-32GB"
    launched = [run for run in trace.device if run.correlation in trace.launches]
    assert len(launched) > 2500
    assert all(trace.launches[run.correlation].begin_us <= run.begin_us for run in launched)


def test_shapes_are_tuples_of_the_kind_that_torch_wrote(tmp_path):
    args = {
        "Input Dims": [[[3, 4], [3, 4]], []],
        "Input type": ["TensorList", "Scalar"],
        "Concrete Inputs": ["", "0"],
        "Input Strides": [[[4, 1], [4, 1]], []],
    }
    op = event("cpu_op", name="aten::cat", args=args)
    span, same, none = read(tmp_path, op, op, event("cpu_op", args={})).host
    assert span.dims == (((3, 4), (3, 4)), ())
    assert span.types == ("TensorList", "Scalar")
    assert span.concrete == ("", "0")
    assert span.strides == (((4, 1), (4, 1)), ())
    assert same.dims is span.dims
    assert (none.dims, none.types, none.concrete, none.strides) == (None, None, None, None)
    old = event("cpu_op", args={"Input dims": [[2, 3]]})
    text = event("cpu_op", args={"Input Dims": "[[2, 3]]", "Input type": None})
    assert [span.dims for span in read(tmp_path, old, text).host] == [((2, 3),), None]


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("Operator", "aten::add", "op"),
        ("Operator", "torch::autograd::AccumulateGrad", "op"),
        ("Operator", "ConvolutionBackward0", "op"),
        ("Operator", "detach_", "op"),
        ("Operator", "ProfilerStep#5", "mark"),
        ("Operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "mark"),
        ("cpu_op", "mylib::op", "op"),
        ("cpu_op", "anything", "op"),
        ("user_annotation", "aten::add", "mark"),
        *((name, "launch", "call") for name in ("Runtime", "cuda_runtime", "cuda_driver")),
        *((f"{device}_runtime", "launch", "call") for device in ("xpu", "mtia", "privateuse1")),
        *((name, "k", "kernel") for name in ("Kernel", "kernel", "mtia_ccp_events")),
        *(("Memcpy", "k", "copy"), ("gpu_memcpy", "k", "copy")),
        *(("Memset", "k", "fill"), ("gpu_memset", "k", "fill")),
        *((name, "k", None) for name in ("gpu_user_annotation", "python_function", "cuda_sync")),
        *((name, "k", None) for name in ("overhead", "Trace", "ac2g", None)),
    ],
)
def test_categories_of_events(tmp_path, category, name, kind):
    args = {"device": 0, "stream": "7", "correlation": 3, "external id": 4, "bytes": 12}
    one = event(category, name=name, args=args)
    trace = read(tmp_path, one, one | {"tid": "7"}, event("cpu_op", name="other"))
    host = [span for span in trace.host if span.name != "other"]
    assert len(trace.host) == len(host) + 1
    if kind in ("op", "mark", "call"):
        assert [(span.kind, span.name, span.thread) for span in host] == [(kind, name, (0, 7))] * 2
    elif kind is not None:
        assert [(run.kind, run.device, run.stream) for run in trace.device] == [(kind, 0, 7)] * 2
        run = trace.device[0]
        assert (run.correlation, run.external_id, run.size_bytes) == (3, 4, 12)
    assert len(host) + len(trace.device) == (0 if kind is None else 2)


@pytest.mark.parametrize(
    ("begin", "duration", "end_us"),
    [(10, 5, 15), (10.25, 0.5, 10.75), ("10.25", "0.5", 10.75), (10, 0, 10)],
)
def test_times_are_numbers_or_texts(tmp_path, begin, duration, end_us):
    (run,) = read(tmp_path, event(ts=begin, dur=duration)).device
    assert (run.begin_us, run.end_us) == (float(begin), end_us)


def forms():
    """The same cut of a published trace in the forms that files have."""
    text = json.dumps(cut(MI300X))
    events = json.dumps(cut(MI300X)["traceEvents"])
    return {
        "plain": text.encode(),
        "gzip": gzip.compress(text.encode()),
        "two gzip members": gzip.compress(text[:999].encode()) + gzip.compress(text[999:].encode()),
        "mark in front": b"\xef\xbb\xbf" + text.encode(),
        "list": events.encode(),
        "list without its bracket": events[:-1].encode() + b"\n",
        "list after a comma": events[:-1].encode() + b",\n",
        "indented": json.dumps(cut(MI300X), indent=2).encode(),
        "control characters": text.replace("nccl:", "nccl:\x01\n").encode(),
        "NaN": text.replace(
            '"correlation": ', '"share": NaN, "most": -Infinity, "correlation": '
        ).encode(),
        "no UTF-8": text.encode().replace(b'"name": "python3"', b'"name": "\xff"'),
    }


def test_every_form_of_a_file_holds_the_same(tmp_path):
    def times(contents):
        path = tmp_path / "trace"
        path.write_bytes(contents)
        trace = read_trace(path)
        return [(span.kind, span.begin_us, span.end_us) for span in (*trace.host, *trace.device)]

    written = forms()
    assert len({*written.values()}) == len(written)
    expected = times(written["plain"])
    for form, contents in written.items():
        assert times(contents) == expected, form


def test_several_ranks_in_one_file_are_not_confused(tmp_path):
    ranks = [
        [
            event("cpu_op", name=f"aten::op{rank}", pid=100 + rank, args={"External id": 1}),
            event("cuda_runtime", pid=100 + rank, args={"correlation": 5}),
            event("kernel", pid=rank, args={"device": 0, "correlation": 5, "External id": 1}),
            event("cuda_runtime", pid=100 + rank, args={"correlation": 50 + rank}),
            event("kernel", pid=rank, args={"device": 0, "correlation": 50 + rank}),
        ]
        for rank in range(2)
    ]
    trace = read(tmp_path, *ranks[0], *ranks[1])
    assert {span.thread[0] for span in trace.host} == {100, 101}
    assert [run.device for run in trace.device] == [0, 0, 1, 1]
    assert [run.correlation for run in trace.device] == [None, 50, None, 51]
    assert [run.external_id for run in trace.device] == [None] * 4
    alone = read(tmp_path, *ranks[0])
    assert [run.correlation for run in alone.device] == [5, 50]
    assert alone.device[0].external_id == 1


def test_the_name_of_a_device_that_the_file_numbers_otherwise(tmp_path):
    devices = [{"id": number, "name": "A100"} for number in range(2)]
    one = event(pid="rank 3", args={"device": 0})
    assert read(tmp_path, one, deviceProperties=devices).of_the_device("name") == "A100"
    devices[1]["name"] = "H100"
    assert read(tmp_path, one, deviceProperties=devices).of_the_device("name") is None
    assert read(tmp_path, event(pid=1), deviceProperties=devices).of_the_device("name") == "H100"


def test_of_spans_that_begin_together_the_longest_is_first(tmp_path):
    spans = [event("cpu_op", dur=dur, args={"External id": dur}) for dur in (3, 5, 1, 5)]
    spans[3]["args"] = {"External id": 2}
    found = read(tmp_path, *spans).host
    ends = [(span.end_us, span.external_id) for span in found]
    assert ends == [(15, 2), (15, 5), (13, 3), (11, 1)]


def test_of_calls_within_each_other_the_outermost_is_the_launch(tmp_path):
    calls = [
        event("cuda_runtime", name=name, ts=ts, args={"correlation": 3})
        for name, ts in (("cuLaunchKernel", 12), ("cudaLaunchKernel", 10))
    ]
    assert read(tmp_path, *calls).launches[3].name == "cudaLaunchKernel"


def test_names_cannot_steer_the_terminal_that_shows_them(tmp_path):
    marked = event("user_annotation", name="step\x1b[2J\r\nover\u202e", pid=1)
    device = {"id": 0, "name": "Sample\x1b]0;mine\x07GPU"}
    trace = read(tmp_path, marked, event(name="k\x1b[31m"), deviceProperties=[device])
    assert [span.name for span in trace.host] == ["step [2J over"]
    assert [span.name for span in trace.device] == ["k [31m"]
    assert trace.of_the_device("name") == "Sample ]0;mine GPU"


@pytest.mark.parametrize(
    ("rank", "world_size", "known"),
    [(1, 8, (1, 8)), ("x", "many", (None, None)), (-1, [2], (None, None))],
)
def test_ranks_are_counts_or_not_known(tmp_path, rank, world_size, known):
    written = {"rank": rank, "world_size": world_size}
    trace = read(tmp_path, event(), distributedInfo=written)
    assert (trace.rank, trace.world_size) == known


# Counters inside a trace are added up as ncu's are, and what they do not give is said


A100 = {"id": 0, "name": "A100", "computeMajor": 8, "computeMinor": 0}


def counted(name="k", **fields):
    """One range with these counters."""
    return event("cuda_profiler_range", name=name, tid=0, **fields)


def whole(times=1):
    """Every counter that a total on an A100 is made of: each SASS op twice, each tensor op once."""
    sass = {sass_metric(op): 2 * times for op in sass_ops("ga100")}
    return sass | dict.fromkeys(tensor_metrics("ga100"), times) | {DRAM: 8 * times}


def test_a_published_trace_has_exact_sums_and_a_reason_for_what_it_does_not_give():
    trace = published(ALEXNET)
    sums = dict.fromkeys(("ffma", "fadd", "fmul", "hfma", "dadd"), 0)
    for (_, metric), summed in trace.counters.metrics.items():
        for op in sums:
            sums[op] += int(summed.total) if metric == sass_metric(op) else 0
    assert list(sums.values()) == [39_142_369_720, 964_651_656, 430_063_616, 275_791_872, 0]
    record = trace_counters(trace)
    assert (record.kernels, record.chip, record.files) == (77, "ga100", (ALEXNET,))
    assert (record.dram_bytes, record.flops, record.duration_s) == (None, None, None)
    assert "dram__bytes" in record.missing["dram_bytes"]
    assert "sm__ops_path_tensor" in record.missing["flops"]
    assert all(row.flops is None for row in record.per_kernel)
    nameless = [row for row in record.per_kernel if row.name == "(no name in the trace)"]
    assert [row.launches for row in nameless] == [1]


def test_whole_counters_make_whole_figures(tmp_path):
    ranges = [counted(args=whole()), counted(args=whole(10)), counted("other", args=whole())]
    record = trace_counters(read(tmp_path, *ranges, deviceProperties=[A100]))
    # Three widths of 1 + 1 + 2 FLOP, each counted twice, and five kinds of tensor work.
    assert record.flops == 12 * (3 * 4 * 2 + 5)
    assert record.dram_bytes == 12 * 8
    assert record.intensity_dram == record.flops / record.dram_bytes
    assert {row.name: row.launches for row in record.per_kernel} == {"k": 2, "other": 1}


@pytest.mark.parametrize("value", ["n/a", -1, float("nan"), [], True, 10**30])
def test_a_counter_without_a_value_is_told_and_no_zero(tmp_path, value):
    ranges = [counted(args=whole()), counted(args=whole() | {DRAM: value})]
    record = trace_counters(read(tmp_path, *ranges, deviceProperties=[A100]))
    assert record.dram_bytes is None
    assert "no number (n/a, nan) in 1 of 2 launches" in record.missing["dram_bytes"]
    assert record.flops == 2 * (3 * 4 * 2 + 5)


def test_counts_beyond_a_float_on_devices_of_two_chips(tmp_path):
    ranges = [
        counted(args={DRAM: value, DURATION: 500}, pid=number % 2)
        for number, value in enumerate((2**63 + 1, "4", 5e-324))
    ]
    devices = [A100, {"id": 1, "computeMajor": 9, "computeMinor": 0}]
    record = trace_counters(read(tmp_path, *ranges, deviceProperties=devices))
    assert record.dram_bytes == 2**63 + 5
    assert record.duration_s == 1.5e-6  # of nanoseconds
    assert record.missing["chip"] == "not one chip that is known: ga100, gh100"


def test_a_trace_without_counters_or_with_one_range_over_all_kernels(tmp_path):
    with pytest.raises(UserError, match="holds no counters; count with ncu"):
        trace_counters(read(tmp_path, event()))
    with pytest.raises(UserError, match="one range over many kernels"):
        trace_counters(read(tmp_path, counted("__profile__", args=whole())))
