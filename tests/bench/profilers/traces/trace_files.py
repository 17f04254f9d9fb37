"""Small traces: a few events of each kind out of the published ones, in the forms of their time.

The published ones are in tests/data/traces; their sources and licences are beside their names
below. Left out of the first three are flow arrows, memory events, call stacks, Python frames (but
the first of each kind, and those of recomputation), and arguments that the reader does not use.
"""

import gzip
import json
from functools import cache
from pathlib import Path

import msgspec
import pytest

from bench.errors import UserError
from bench.profilers.traces import read_trace

PUBLISHED = Path(__file__).parents[3] / "data" / "traces"
# torchvision resnet50, fp32, batch 32, V100-DGXS-32GB, torch 1.9 (categories of 2021), 6 steps,
# shapes; without and with four loader processes. pytorch/kineto, tb_plugin/samples at 041e7ce9,
# BSD-3-Clause
V100 = "v100_resnet50_b32_workers0.pt.trace.json.gz"
V100_LOADERS = "v100_resnet50_b32_workers4.pt.trace.json.gz"
# resnet18, bf16, batch 10, rank 0 of 8, activation checkpointing, RCCL beside computation, 3 steps,
# shapes; mi300x_resnet18_expected is what TraceLens reads out of it. AMD-AGI/TraceLens,
# tests/traces/mi300, MIT
MI300X = "mi300x_resnet18_b10_8ranks_checkpointing.json.gz"
# Forward pass of AlexNet on an A100, counters per kernel inside the trace.
# facebookresearch/HolisticTraceAnalysis, tests/data/cupti_profiler, MIT
ALEXNET = "a100_alexnet_cupti_counters.json.gz"


@cache
def published(name):
    """One of the published traces, read."""
    return read_trace(PUBLISHED / name)


@cache
def cut(name, of_each=2):
    """A published trace as a dict, with its first events of each phase and category."""
    file = msgspec.json.decode(gzip.decompress((PUBLISHED / name).read_bytes()))
    kept, seen = [], {}
    for event in file["traceEvents"]:
        kind = event.get("ph"), event.get("cat")
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= of_each:
            kept.append(event)
    return {**file, "traceEvents": kept}


def event(category="kernel", **fields):
    """One event; `fields` replace its own."""
    return {
        **{"ph": "X", "cat": category, "name": "k", "pid": 0, "tid": 7, "ts": 10, "dur": 5},
        **fields,
    }


def read(folder, *events, **others):
    """The trace of these events."""
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, **others}), encoding="utf-8")
    return read_trace(path)


def refusal(path):
    """The one line that refuses `path`."""
    with pytest.raises(UserError) as raised:
        read_trace(path)
    message = str(raised.value)
    assert str(path) in message
    assert "\n" not in message
    return message
