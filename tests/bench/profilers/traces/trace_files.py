"""Small traces: a few events of each kind out of the published ones, in the forms of their time.

The published ones are in tests/data/traces, with their sources and licences.
"""

import gzip
import json
from functools import cache
from pathlib import Path

import msgspec

from bench.profilers.traces import read_trace

PUBLISHED = Path(__file__).parents[3] / "data" / "traces"
V100 = "v100_resnet50_b32_workers0.pt.trace.json.gz"
V100_LOADERS = "v100_resnet50_b32_workers4.pt.trace.json.gz"
MI300X = "mi300x_resnet18_b10_8ranks_checkpointing.json.gz"
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
