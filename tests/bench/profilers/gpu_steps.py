"""Events as torch's profiler exports them (torch 2.15, kineto): hosts ops and what a GPU ran."""

import json
import tempfile
from itertools import count
from pathlib import Path

from bench.profilers.traces import read_trace

HOST_THREAD, BACKWARD_THREAD = 4711, 4712


class TraceWriter:
    """Writes intervals in the order of their calls; times in microseconds."""

    def __init__(self):
        self.events = []
        self._ids = count(1)

    @property
    def trace(self):
        """What the reader of traces makes of the events."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            file.write_text(json.dumps({"traceEvents": self.events}))
            return read_trace(file)

    def _event(self, cat, name, pid, tid, ts, dur, arguments):
        known = {"cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
        self.events.append({"ph": "X", **known, "args": arguments})

    def host(self, name, ts, dur, dims=None, *, tid=HOST_THREAD, cat="cpu_op"):
        """An op or a mark on the host; returns the id by which kernels name it."""
        identity = next(self._ids)
        arguments = {"External id": identity, "Record function id": 0, "Ev Idx": identity - 1}
        if dims is not None:
            arguments |= {"Input Dims": dims, "Input type": ["float"] * len(dims)}
        self._event(cat, name, 4711, tid, ts, dur, arguments)
        return identity

    def device(self, name, ts, dur, launcher=None, *, cat="kernel", stream=7, **arguments):
        """A kernel, copy or memset, with the runtime call that queued it."""
        link = {} if launcher is None else {"External id": launcher}
        link["correlation"] = next(self._ids)
        queued = {**link, "cbid": 211}
        self._event("cuda_runtime", "cudaLaunchKernel", 4711, HOST_THREAD, ts - 5, 4, queued)
        place = {"device": 0, "context": 1, "stream": stream}
        self._event(cat, name, 0, stream, ts, dur, {**link, **place, **arguments})

    def copy(self, way, ts, dur, size_bytes, launcher=None, stream=7):
        """A copy, as CUPTI names it."""
        self.device(
            f"Memcpy {way} (Pinned -> Device)",
            ts,
            dur,
            launcher,
            cat="gpu_memcpy",
            stream=stream,
            **{"bytes": size_bytes, "memory bandwidth (GB/s)": size_bytes / dur / 1e3},
        )


def gpu_step():
    """One step of a convolution and a batch norm on a GPU, 1000 us of the device.

    Busy: copies 0-50 and 60-100 (of which 80-100 hides behind the kernel from 80), kernels 80-400,
    410-500, 520-600 and 610-1000, a memset 600-610.
    """
    trace = TraceWriter()
    trace.host("aten::to", 0, 40, [[4, 3, 8, 8], [], []])
    trace.copy("HtoD", 1000, 50, 3072, trace.host("aten::copy_", 5, 30, [[4, 3, 8, 8], []]))
    trace.host("aten::conv2d", 50, 100, [[4, 3, 8, 8], [6, 3, 1, 1]])
    trace.host("aten::convolution", 55, 90, [[4, 3, 8, 8], [6, 3, 1, 1], [], []])
    cudnn = trace.host("aten::cudnn_convolution", 60, 80, [[4, 3, 8, 8], [6, 3, 1, 1]])
    trace.device("void cudnn::conv<float>(float*, int)", 1080, 320, cudnn)
    trace.copy("HtoD", 1060, 40, 3072, stream=13)
    trace.host("aten::batch_norm", 160, 60, [[4, 6, 8, 8], [6], [6], [6], [6]])
    norm = trace.host("aten::cudnn_batch_norm", 165, 50, [[4, 6, 8, 8], [6], [6], [6], [6]])
    trace.device("void bn_fw<float, 4>(float*)", 1410, 90, norm)
    engine = "autograd::engine::evaluate_function: CudnnBatchNormBackward0"
    trace.host(engine, 300, 80, tid=BACKWARD_THREAD)
    trace.host("CudnnBatchNormBackward0", 305, 70, [[4, 6, 8, 8]], tid=BACKWARD_THREAD)
    dims = [[4, 6, 8, 8], [4, 6, 8, 8], [6], [6], [6], [6], [6], [], [128]]
    back = trace.host("aten::cudnn_batch_norm_backward", 310, 60, dims, tid=BACKWARD_THREAD)
    trace.device("void bn_bw<float>(float*)", 1520, 80, back)
    trace.host("Optimizer.step#SGD.step", 500, 100, cat="user_annotation")
    update = trace.host("aten::_fused_sgd_", 510, 80, [[], [], [], []])
    trace.device("Memset (Device)", 1600, 10, update, cat="gpu_memset", bytes=4)
    trace.device("void at::native::sgd<float>(int)", 1610, 390, update)
    return trace.trace
