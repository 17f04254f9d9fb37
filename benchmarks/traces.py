"""`read_trace` against the JSON parser alone (msgspec, into dicts) on the same bytes.

Writes a long trace, the events of a published one again and again with later times and new ids, and
has a fresh process read it, ours and the parser by turns. The parser only makes dicts of the text.
Seconds are the processor's, since both use one thread.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

import click
from side_by_side import PROJECT, output_of, take_turns, this_machine

PUBLISHED = PROJECT / "tests" / "data" / "traces"
NAMES = (
    "v100_resnet50_b32_workers0.pt.trace.json.gz",
    "mi300x_resnet18_b10_8ranks_checkpointing.json.gz",
)
#: Instants in microseconds, and ids that link events, as Kineto lays them out.
NUMBERS = re.compile(rb'"(ts|external ts|id|[Ee]xternal id|correlation|Ev Idx)": ?(\d+)')
STEP_US = 10_000_000
STEP_ID = 1_000_000
CHILD = """
import json, resource, sys, time
from pathlib import Path
path = Path(sys.argv[2])
if sys.argv[1] == "ours":
    from bench.profilers.traces import read_trace as read
else:
    import msgspec
    def read(path): return msgspec.json.decode(path.read_bytes())
begin = time.process_time()
result = read(path)
seconds = time.process_time() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
peak *= 1 if sys.platform == "darwin" else 1024
found = [len(result.host), len(result.device)] if sys.argv[1] == "ours" else None
print(json.dumps({"s": seconds, "peak": peak, "found": found}))
"""


def write(path: Path, published: Path, size: int) -> tuple[int, list[int]]:
    """Write about `size` bytes; return how often the events are there, and what must be found."""
    text = gzip.decompress(published.read_bytes())
    begin = text.index(b"[", text.index(b'"traceEvents"')) + 1
    end = text.rindex(b"]")
    events = text[begin:end]
    times = max(1, round(size / len(events)))
    with path.open("wb") as file:
        file.write(text[:begin])
        for number in range(times):

            def later(found: re.Match[bytes], number: int = number) -> bytes:
                name, digits = found.groups()
                step = STEP_US if name.endswith(b"ts") else STEP_ID
                return b'"%s": %d' % (name, int(digits) + number * step)

            file.write(NUMBERS.sub(later, events))
            file.write(b"," if number + 1 < times else b"")
        file.write(text[end:])
    kinds = re.findall(rb'"ph": ?"X",\s*"cat": ?"(\w+)"', events)
    host = {b"Operator", b"Runtime", b"cpu_op", b"user_annotation", b"cuda_runtime"}
    device = {b"Kernel", b"Memcpy", b"Memset", b"kernel", b"gpu_memcpy", b"gpu_memset"}
    return times, [times * sum(kind in wanted for kind in kinds) for wanted in (host, device)]


def compared(path: Path, truth: list[int], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Have fresh processes read `path` by turns; ours must find `truth`."""

    def read(reader: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            output_of([sys.executable, "-c", CHILD, reader, str(path)])
        )
        assert reader == "parser" or found["found"] == truth, (found, truth)
        return found

    return take_turns({"ours": lambda: read("ours"), "parser": lambda: read("parser")}, rounds)


@click.command(help=__doc__)
@click.option("--size-mb", default=1000, show_default=True, help="Of each file, in 10^6 bytes.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Where the files go.")
def main(size_mb: int, rounds: int, folder: Path | None) -> None:
    """Print a table: trace, size, seconds and peak memory of both, the ratio of the times."""
    print(f"{datetime.now(timezone.utc):%Y-%m-%d}, {this_machine()}; {rounds} rounds\n")
    print("| events of | times | MB | ours s | parser s | ours / parser | ours MB | parser MB |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "trace.json"
        for name in NAMES:
            times, truth = write(path, PUBLISHED / name, size_mb * 10**6)
            results = compared(path, truth, rounds)
            seconds = {side: median(one["s"] for one in results[side]) for side in results}
            peaks = {side: max(one["peak"] for one in results[side]) / 1e6 for side in results}
            print(
                f"| {name.partition('.')[0]} | {times} | {path.stat().st_size / 1e6:.0f} |"
                f" {seconds['ours']:.1f} | {seconds['parser']:.1f} |"
                f" {seconds['ours'] / seconds['parser']:.2f} |"
                f" {peaks['ours']:.0f} | {peaks['parser']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
