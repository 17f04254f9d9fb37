"""Damaged and arbitrary files for the reader of traces, and what it may do with them.

As a program: `python tests/bench/profilers/traces/trace_fuzz.py --inputs 100000`.
"""

import argparse
import gzip
import json
import math
import random
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[4])]

from nsys_files import GENERAL, database, step
from trace_files import ALEXNET, MI300X, V100, cut

from bench.errors import UserError
from bench.profilers.traces import read_trace

TOKENS = [
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\n", b"\x00", b"\x01", b" ", b"//"),
    *(b"NaN", b"-Infinity", b"null", b"true", b"-1", b"0", b"1e999", b"-0.0", b"9" * 400, b"1.5"),
    *(b'""', b'"x"', b"[]", b"{}", b"[[]]", b'"NaN"', b'"-12.5"', b"\\ud800", b"\xff", b"\xc3"),
    *(
        b'"ts": ',
        b'"dur": ',
        b'"cat": ',
        b'"args": ',
        b'"ph": "X", ',
        b'"pid": ',
        b'"correlation": ',
    ),
    *(
        b'"cpu_op"',
        b'"kernel"',
        b'"cuda_runtime"',
        b'"traceEvents": [',
        b'"Input Dims": [[2, 3]], ',
    ),
    *(
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\x1f\x8b",
        b"[" * 3000,
        b'{"a":' * 3000,
        b"SQLite format 3\x00",
    ),
]
OPERATIONS = ("insert", "delete", "replace", "copy", "cut", "digit", "pack")


@cache
def bases():
    """Whole files of few events in every form, the last an export of Nsight Systems."""
    texts = [json.dumps(cut(name, 1)) for name in (V100, MI300X, ALEXNET)]
    files = [text.encode() for text in texts]
    files += [json.dumps(cut(MI300X, 1)["traceEvents"]).encode(), gzip.compress(files[0], mtime=0)]
    files += [texts[1].encode("utf-16"), texts[1].replace('"ts": ', '"a": NaN, "ts": ').encode()]
    with tempfile.TemporaryDirectory() as folder:
        path = database(Path(folder), GENERAL, step(), step(77, 20_000, gpu=1))
        return [*files, path.read_bytes()]


def mutated(base, changes):
    """`base` after `changes`: operation, where (0 to 1), how much, a token."""
    content = bases()[base % len(bases())]
    for operation, where, much, token in changes:
        at = int(where * len(content))
        end = min(len(content), at + much)
        head, piece, tail = content[:at], content[at:end], content[end:]
        chosen = TOKENS[token % len(TOKENS)]
        content = {
            "insert": head + chosen + piece + tail,
            "delete": head + tail,
            "replace": head + chosen + tail,
            "copy": head + piece + piece + tail,
            "cut": head,
            "digit": head + str(token % 10).encode() + content[at + 1 :],
            "pack": gzip.compress(content, 1, mtime=0) if token % 8 == 0 else content,
        }[operation]
    return content


def check(content, path):
    """Refused in one line with the path, or read as spans with usable times and ids."""
    path.write_bytes(content)
    try:
        trace = read_trace(path)
    except UserError as error:
        message = str(error)
        assert str(path) in message
        assert "\n" not in message
        assert len(message) < 600
        return False
    assert trace.host or trace.device or trace.counters
    for spans in (trace.host, trace.device):
        for span in spans:
            assert -math.inf < span.begin_us <= span.end_us < math.inf
            assert isinstance(span.name, str)
            assert isinstance(span.correlation, int | None)
        begins = [span.begin_us for span in spans]
        assert begins == sorted(begins)
    for span in trace.host:
        hash((span.thread, span.dims, span.types, span.concrete, span.strides))
    for run in trace.device:
        hash((run.device, run.stream))
    for one in trace.counters:
        assert all(map(math.isfinite, one.values.values()))
    str((trace.rank, trace.device_name, trace.launches.keys()))
    return True


def changes_of(chosen):
    """A few random changes; most are small, so that much of the file stays whole."""
    return [
        (
            chosen.choice(OPERATIONS),
            chosen.random(),
            chosen.choice((0, 1, 1, 2, 5, 30, 200)),
            chosen.randrange(10**6),
        )
        for _ in range(chosen.choice((0, 1, 1, 1, 2, 3, 6)))
    ]


def tried(inputs, seed, path):
    """How many of random inputs were read, those that did harm, and the longest time of one."""
    read, harm, slowest = 0, [], 0.0
    for index in range(inputs):
        chosen = random.Random(f"{seed}/{index}")
        content = mutated(chosen.randrange(10**6), changes_of(chosen))
        begin = time.perf_counter()
        try:
            read += check(content, path)
        except Exception as error:
            harm.append(f"input {seed}/{index}: {type(error).__name__}: {error}"[:300])
        slowest = max(slowest, time.perf_counter() - begin)
    return read, harm, slowest


def main():
    """Try many inputs and print how many were read, refused and bad."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        read, harm, slowest = tried(given.inputs, given.seed, Path(folder) / "trace.json")
    print(*harm, sep="\n", end="\n" * bool(harm))
    refused = given.inputs - read - len(harm)
    print(
        f"{given.inputs} inputs, {read} read, {refused} refused, {len(harm)} bad;"
        f" {slowest:.2f} s at most"
    )
    return 1 if harm else 0


if __name__ == "__main__":
    sys.exit(main())
