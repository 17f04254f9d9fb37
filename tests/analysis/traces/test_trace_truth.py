"""What is not in a trace is not known: its host's times, or half of its kernels, are no answer."""

import json

import pytest

from analysis.presentation.columns import C, columns
from analysis.traces.placed import OUTSIDE
from analysis.traces.record import explained_trace
from bench.errors import UserError
from bench.profilers.traces import read_trace
from bench.records.complexity import OpWork

PRODUCT = [[2048, 2048], [2048, 2048]]
#: Of one product, by hand: 2 x 2048^3; two operands and the result in 2 bytes each.
MOVED = 3 * 2 * 2048**2
WORK = OpWork(
    label="linear",
    flops=2 * 2048**3,
    elementwise_flops=0,
    eager_bytes=MOVED,
    fused_bytes=MOVED,
)


class Events:
    """Events of one thread, in microseconds."""

    def __init__(self, devices=1, name="NVIDIA H100 80GB HBM3"):
        self.events, self.number = [], 0
        self.devices = [{"id": n, "name": name, "numSms": 132} for n in range(devices)]

    def add(self, category, name, at, lasts, pid=100, tid=100, **args):
        place = {"pid": pid, "tid": tid, "ts": 1e6 + at, "dur": lasts}
        self.events.append({"ph": "X", "cat": category, "name": name, **place, "args": args})

    def step(self, number, at, lasts):
        self.add("user_annotation", f"ProfilerStep#{number}", at, lasts)

    def launch(self, at, runs=None, call="cudaLaunchKernel", op="aten::mm", device=0, name="gemm"):
        """An op of 20 us with a call that launches, and what it ran: (begin, duration)."""
        self.number += 1
        ids = {"External id": self.number}
        shapes = {"Input Dims": PRODUCT, "Input type": ["c10::BFloat16"] * 2}
        self.add("cpu_op", op, at, 20, **ids, **shapes if op == "aten::mm" else {})
        ids["correlation"] = self.number
        self.add("cuda_runtime", call, at + 5, 5, **ids)
        for begin, lasts in runs or ():
            self.add("kernel", name, begin, lasts, device, 7, stream=7, device=device, **ids)

    def read(self, folder, device=None):
        path = folder / "trace.json"
        path.write_text(json.dumps({"traceEvents": self.events, "deviceProperties": self.devices}))
        trace = read_trace(path)
        return trace if device is None else trace.only(device)

    def placed(self, folder, mark=None, device=None):
        return placed(self.read(folder, device), mark)


def placed(trace, mark=None):
    """The trace as `mlproject trace` places it; every product's work is known."""

    def work_of(ops):
        return {op: WORK if op.name == "mm" else "not known" for op in ops}

    return explained_trace(trace, mark, work_of, number=1, name="trace.json", campaign="traces")


def parts_ms(found):
    return {part.name: 1e3 * part.time_s for part in found.account.parts}


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_parts_are_means_over_the_devices(devices, tmp_path):
    events = Events(devices)
    events.step(1, 0, 10_000)
    for device in range(devices):
        events.launch(100 + 20 * device, [(1000, 5000)], device=device)
        reduce = {"op": "nccl:all_reduce", "name": "ncclDevKernel_AllReduce_Sum"}
        events.launch(300 + 20 * device, [(6000, 2000)], device=device, **reduce)
    found = events.placed(tmp_path)
    parts = parts_ms(found)
    assert sum(time for name, time in parts.items() if "roof" in name) == pytest.approx(5)
    assert parts["communication that nothing hides"] == pytest.approx(2)
    assert sum(time for name, time in parts.items() if "idle" in name) == pytest.approx(3)
    assert "not explained" not in parts
    assert {op.calls for op in found.record.ops} == {1}
    assert any(f"over {devices} devices" in said for said in found.record.findings) == (devices > 1)


def unlike(devices):
    """A step in which device 1 works for 2 ms and every other for 7 ms of 10."""
    events = Events(devices)
    events.step(1, 0, 10_000)
    for device in range(devices):
        lasts = 2000 if device == 1 else 7000
        events.launch(100 + 20 * device, [(1000, lasts)], device=device)
    return events


@pytest.mark.parametrize(
    ("devices", "told"), [(2, "device 0 is busy 7 "), (4, "device 1 is busy 2 ")]
)
def test_the_device_that_differs_is_named(devices, told, tmp_path):
    found = unlike(devices).placed(tmp_path)
    assert any(told in said for said in found.record.findings)
    assert sum(parts_ms(found).values()) == pytest.approx(10)
    assert "not explained" not in parts_ms(found)


@pytest.mark.parametrize(("device", "busy_ms"), [("0", 7), ("1", 2)])
def test_one_of_several_devices_has_its_own_account(device, busy_ms, tmp_path):
    found = unlike(2).placed(tmp_path, device=device)
    parts = parts_ms(found)
    assert sum(time for name, time in parts.items() if "idle" in name) == pytest.approx(
        10 - busy_ms
    )
    assert sum(parts.values()) == pytest.approx(10)
    assert "not explained" not in parts
    assert found.record.device == "NVIDIA H100 80GB HBM3"
    assert found.record.step_time_s == pytest.approx(0.01)
    assert [op.calls for op in found.record.ops] == [1]
    [told] = [said for said in found.record.findings if "what ran on" in said]
    assert told.endswith(f"device {1 - int(device)}")


def test_a_call_within_one_of_another_device_is_no_lost_launch(tmp_path):
    events = unlike(2)
    for device in range(2):
        within = {"correlation": 900 + device}
        events.add("cuda_driver", "cuLaunchKernelEx", 106 + 20 * device, 3, **within)
    for device, idle_ms in (("0", 3), ("1", 8)):
        parts = parts_ms(events.placed(tmp_path, device=device))
        assert "not explained" not in parts
        assert sum(ms for name, ms in parts.items() if "idle" in name) == pytest.approx(idle_ms)


def test_one_of_merged_ranks_has_the_steps_of_its_own_process(tmp_path):
    events = Events(2)
    for rank, lasts in enumerate((7000, 2000)):
        first = len(events.events)
        events.step(1, 0, 10_000)
        events.launch(100, [(1000, lasts)], device=rank)
        for event in events.events[first:]:
            event["pid"] = event["pid"] if event["cat"] == "kernel" else 100 + rank
    [step] = events.placed(tmp_path, device="1").record.steps
    assert step.device_busy_s == pytest.approx(0.002)


def test_a_device_that_ran_nothing_is_refused_with_those_that_ran(tmp_path):
    with pytest.raises(UserError, match="device '2' ran nothing; those that ran are 0, 1"):
        unlike(2).read(tmp_path, "2")


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"])
@pytest.mark.parametrize(("launches", "why"), [(True, "lacks: 8"), (False, "machine has")])
def test_host_times_of_a_devices_ops_have_no_rate_and_no_roof(name, launches, why, tmp_path):
    events = Events(8, name)
    for step in (0, 1):
        events.step(step, 1000 * step, 1000)
        for op in range(4):
            events.launch(1000 * step + 100 * op)
    if not launches:
        events.events = [one for one in events.events if one["cat"] != "cuda_runtime"]
    found = events.placed(tmp_path)
    assert not found.ceiling
    assert why in found.ceiling.reason
    assert (found.record.device, found.record.bound) == (None, "not known")
    assert {op.flops for op in found.record.ops} == {None}
    assert not any("roof" in part.name for part in found.account.parts)


def test_a_processors_own_trace_keeps_its_rates(tmp_path):
    events = Events(0)
    events.add("cpu_op", "aten::mm", 0, 20, **{"Input Dims": PRODUCT})
    [op] = events.placed(tmp_path).record.ops
    assert op.flops == 2 * 2048**3


def three_steps(lost, call="cudaLaunchKernel"):
    """Steps of 1 ms with eight kernels of 115 us each; `lost` are (step, launch)."""
    events = Events()
    for step in range(3):
        events.step(step, 1000 * step, 1000)
        for number in range(8):
            at = 1000 * step + 120 * number
            events.launch(at, None if (step, number) in lost else [(at + 20, 115)], call)
    return events


@pytest.mark.parametrize(
    "call", ["cudaLaunchKernel", "hipGraphLaunch", "urEnqueueKernelLaunch", "cuMemcpyHtoDAsync_v2"]
)
@pytest.mark.parametrize("step", [0, 1, 2])
@pytest.mark.parametrize("lost", [1, 8])
def test_a_step_that_lost_kernels_is_not_known_and_the_others_are(call, step, lost, tmp_path):
    found = three_steps({(step, number) for number in range(lost)}, call).placed(tmp_path)
    times = [one.computation_s for one in found.record.steps]
    assert times.pop(step) is None
    assert times == pytest.approx([0.00092] * 2)
    assert found.record.steps[step].missing["idle_s"].endswith(f": {lost}")
    [op] = found.record.ops
    assert (op.calls, op.time_s) == pytest.approx((8, 0.00092))
    assert found.record.step_time_s == pytest.approx(0.001)
    assert "not explained" not in parts_ms(found)


def test_where_each_step_lost_kernels_nothing_is_known(tmp_path):
    lost = {(step, number) for step in range(3) for number in range(7)}
    found = three_steps(lost, "hipGraphLaunch").placed(tmp_path)
    assert found.record.bound == "not known"
    assert found.record.missing["math_mode"].endswith(": 21")
    assert {one.idle_s for one in found.record.steps} == {None}
    parts = parts_ms(found)
    assert parts.pop("not explained") == pytest.approx(1 - 0.115)
    assert parts == pytest.approx({"linear": 0.115})


def test_launches_that_run_nothing_or_are_within_others_are_not_lost(tmp_path):
    events = three_steps(())
    events.add("cuda_runtime", "cudaStreamBeginCapture", 3000, 5, correlation=900)
    events.launch(3010)  # into a graph
    events.add("cuda_runtime", "cudaStreamEndCapture", 3050, 5, correlation=901)
    events.add("xpu_driver", "zeCommandListAppendLaunchKernel", 6, 2, correlation=902)
    events.add("cuda_runtime", "cudaLaunchHostFunc", 3070, 2, correlation=903)
    assert not events.read(tmp_path).lost


def test_kernels_with_other_ids_than_their_launches_are_not_lost(tmp_path):
    events = three_steps(())
    for one in events.events:
        if one["cat"] == "kernel":
            one["args"]["correlation"] += 1000
    assert not events.read(tmp_path).lost


def test_steps_that_the_device_spends_on_an_earlier_ones_work(tmp_path):
    events = Events()
    for step in range(3):
        events.step(step, 10_000 * step, 10_000)
    events.launch(100, [(120, 35_000)])
    found = events.placed(tmp_path)
    assert found.record.step_time_s == pytest.approx(0.03512 / 3)
    assert "100 % computation" in " ".join(found.record.findings)
    assert not any(said.endswith(": ") for said in found.record.findings)
    assert parts_ms(found)["linear below its roof"] == pytest.approx(35 / 3, rel=0.01)
    assert found.record.bound == "slow kernels"


def test_time_outside_the_marks_is_not_the_first_steps(tmp_path):
    events = Events()
    for step in range(10):
        events.add("user_annotation", f"mine {step}", 2000 * step, 1000)
        events.launch(2000 * step, [(2000 * step + 30, 900)])
    parts = parts_ms(events.placed(tmp_path, "mine"))
    assert parts.pop(OUTSIDE) == pytest.approx(1)
    assert sum(parts.values()) == pytest.approx(1)
    assert not any("first step" in name for name in parts)


@pytest.mark.parametrize(("late", "lasts"), [(4, 94), (29, 94)])
def test_what_lasts_into_the_next_of_its_stream_is_cut_there(late, lasts, tmp_path):
    events = Events()
    for step in range(3):
        events.step(step, 1000 * step, 1000)
        for number in range(10):
            ran_us = 1.6e6 if 10 * step + number == late else lasts
            begin_us = 1000 * step + 50 + 95 * number
            events.launch(1000 * step + 20 * number, [(begin_us, ran_us)])
    events.add("cuda_runtime", "cudaDeviceSynchronize", 2990, 10)
    found = events.placed(tmp_path)
    [op] = found.record.ops
    assert op.time_s == pytest.approx(0.00094, rel=0.01)
    assert found.record.steps[1].device_busy_s == pytest.approx(0.00094, rel=0.01)
    assert any("cut where the next" in said for said in found.record.findings)


def test_nothing_lasts_beyond_the_end_of_the_recording(tmp_path):
    events = three_steps(())
    events.events[-1]["dur"] = 2e6  # the last kernel
    events.add("cpu_op", "aten::item", 3050, 3.6e9)
    assert events.read(tmp_path).device[-1].end_us > 3e6
    events.events.append({"ph": "i", "name": "Record Window End", "ts": 1e6 + 3100})
    trace = events.read(tmp_path)
    assert max(run.end_us for run in trace.device) == 1e6 + 3100
    assert max(span.end_us for span in trace.host) == 1e6 + 3100
    assert "or the recording, ends: 1" in trace.left_out
    events.events.append({"ph": "i", "name": "Record Window End", "ts": 1e6 + 2000})
    assert max(run.end_us for run in events.read(tmp_path).device) == 1e6 + 3100, "the last of two"


def test_an_op_ends_with_what_is_around_it(tmp_path):
    events = Events(0)
    events.step(1, 0, 1000)
    events.add("cpu_op", "aten::mm", 10, 80)
    events.add("cpu_op", "aten::item", 500, 3.6e9)
    found = events.placed(tmp_path)
    assert {op.op: 1e6 * op.time_s for op in found.record.ops} == pytest.approx(
        {"mm": 80, "item": 500}
    )
    assert any("cut where what is around them" in said for said in found.record.findings)


def test_a_copy_whose_span_is_lost_is_not_known(tmp_path):
    events = three_steps(())
    events.add("cuda_runtime", "cudaMemcpyAsync", 1500, 5, correlation=900)
    times = [step.computation_s for step in events.placed(tmp_path).record.steps]
    assert times.pop(1) is None
    assert None not in times


def test_kernels_of_one_graph_may_overlap_and_short_overlaps_stay(tmp_path):
    events = Events()
    events.launch(0, [(100, 900), (200, 300)], "cudaGraphLaunch")
    events.launch(50, [(980, 100)])
    trace = events.read(tmp_path)
    assert [run.duration_us for run in trace.device] == [900, 300, 100]
    assert trace.left_out is None


@pytest.mark.parametrize("duration", [7.5e12, 9.2e15, "9223372036854775.807"])
def test_an_op_without_an_end_is_left_out(duration, tmp_path):
    events = Events(0)
    for number in range(5):
        events.add("cpu_op", "aten::mm", 100 * number, 80)
    events.add("cpu_op", "aten::item", 490, duration)
    found = events.placed(tmp_path)
    assert found.record.step_time_s == pytest.approx(0.00048)
    assert any("without an end (1)" in said for said in found.record.findings)


def test_device_work_of_another_writer_is_not_the_hosts(tmp_path):
    events = Events(0)
    events.step(1, 0, 1000)
    events.add("cpu_op", "aten::mm", 10, 20, **{"Input Dims": "64,64;\r\n64,64"})
    events.events += [
        {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "Ascend Hardware"}},
        {"ph": "X", "name": "MatMulV2", "pid": 2, "tid": 3, "ts": 1e6 + 100, "dur": 700},
    ]
    for one in events.events:
        one.setdefault("cat", None)
    found = events.placed(tmp_path)
    assert "without a category of Ascend Hardware (1)" in found.ceiling.reason
    assert found.record.bound == "not known"


def test_waits_and_copies_of_other_runtimes_are_what_cudas_are(tmp_path):
    causes = []
    for wait, copy, name in (
        ("cudaStreamSynchronize", "cudaMemcpyAsync", "Memcpy HtoD"),
        ("urEventWait", "urEnqueueUSMMemcpy", "Memcpy M2D (Memory -> Device)"),
        ("musaStreamSynchronize", "musaMemcpyAsync", "Memcpy HtoD"),
        ("hipEventSynchronize", "hipMemcpyWithStream", "MEMORY_COPY_HOST_TO_DEVICE"),
    ):
        events = Events()
        events.step(1, 0, 10_000)
        events.add("xpu_runtime", copy, 20, 1100, correlation=90)
        events.add("gpu_memcpy", name, 100, 1000, 0, 7, device=0, stream=7, correlation=90)
        events.launch(1300, [(1320, 1000)])
        events.add("xpu_runtime", wait, 2410, 5900)
        events.launch(8450, [(8480, 1400)])
        [step] = events.placed(tmp_path).record.steps
        causes.append(step.idle_s_by_cause)
    assert causes[1:] == [pytest.approx(causes[0])] * 3
    assert causes[0]["synchronisation"] > 0.005


def test_a_list_of_many_shapes_is_short_for_people():
    [column] = columns((C.shapes,))
    short = column.show(", ".join(["64x3x7x7"] + ["64"] * 160))
    assert short == "64x3x7x7 and 160 more"
    assert column.show("2x3, 3x4, 4") == "2x3, 3x4, 4"
