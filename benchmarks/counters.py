"""`mlproject counters` against pyarrow's CSV reader on the same bytes: speed and peak memory.

Writes one large file in the long and one in the raw form, then has a fresh process read it, ours
and pyarrow's by turns. pyarrow only turns the text into columns; ours adds them up as well.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from statistics import median

from side_by_side import output_of

from bench.profilers.files.ncu_metrics import metrics_for_chip

KERNELS = [
    f"void at::native::vectorized_elementwise_kernel<4, at::native::{name}, at::detail::Array<"
    "char *, 3>>(int, T2, T3)"
    for name in ("CUDAFunctor_add<float>", "threshold_kernel_impl<c10::BFloat16>", "FillFunctor")
] + [
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroup"
    f"size1x1x1_g1_execute_segment_k_off_kernel__5x_cudnn_{index}"
    for index in range(40)
]
METRICS = [name for names in metrics_for_chip("gh100") for name in names]
IDENTITY = (
    "ID,Process ID,Process Name,Host Name,Kernel Name,Context,Stream,Block Size,Grid Size,Device,CC"
)
#: One child reads once: the import of what it needs is not timed, a process's first read is.
CHILD = """
import json, resource, sys, time
from pathlib import Path
if sys.argv[1] == "ours":
    from bench.profilers.files.ncu_read import read_counters as read
else:
    from pyarrow.csv import read_csv as read
begin = time.perf_counter()
result = read(Path(sys.argv[2]))
seconds = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
peak *= 1 if sys.platform == "darwin" else 1024
kernels, dram = (result.kernels, result.dram_bytes) if sys.argv[1] == "ours" else (None, None)
print(json.dumps({"s": seconds, "peak": peak, "kernels": kernels, "dram_bytes": dram}))
"""


def unit_of(metric: str) -> str:
    """The unit that ncu prints for `metric` with base units."""
    return "ns" if "duration" in metric else "byte" if "bytes" in metric else "inst"


def quoted(cells: list[str]) -> str:
    """A line as ncu writes it: every cell in quotes."""
    return '"' + '","'.join(cells) + '"\n'


def write(path: Path, form: str, size: int, grouped: bool) -> dict[str, int]:
    """Write launches until the file has `size` bytes; return what a reader must find."""
    chosen = random.Random(0)
    launches = dram = written = 0
    mark = "," if grouped else ""
    with path.open("w", encoding="utf-8", newline="") as file:
        columns = IDENTITY.split(",")
        if form == "raw":
            file.write(quoted(columns + METRICS))
            file.write(quoted([""] * len(columns) + [unit_of(name) for name in METRICS]))
        else:
            header = ["Section Name", "Metric Name", "Metric Unit", "Metric Value"]
            file.write(quoted(columns + header))
        while written < size:
            identity = [str(launches), "20798", "python3.11", "127.0.0.1", chosen.choice(KERNELS)]
            identity += ["1", "7", "(256, 1, 1)", f"({launches % 4096}, 1, 1)", "0", "9.0"]
            values = [chosen.randrange(1, 10 ** chosen.randrange(3, 10)) for _ in METRICS]
            texts = [f"{value:{mark}}" for value in values]
            launches += 1
            dram += values[METRICS.index("dram__bytes.sum")]
            if form == "raw":
                text = quoted(identity + texts)
            else:
                section = "Command line profiler metrics"
                text = "".join(
                    quoted([*identity, section, name, unit_of(name), value])
                    for name, value in zip(METRICS, texts, strict=True)
                )
            written += file.write(text)
    return {"kernels": launches, "dram_bytes": dram}


def read(reader: str, path: Path) -> dict[str, float]:
    """Have a fresh process read `path` once."""
    found: dict[str, float] = json.loads(
        output_of([sys.executable, "-c", CHILD, reader, str(path)])
    )
    return found


def main() -> None:
    """Print a table: form, size, seconds of both, the ratio of speeds, peak memory of both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mb", type=int, default=1000, help="of each file, in 10^6 bytes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the files go; default: temporary files")
    given = parser.parse_args()
    print("| form | MB | ours s | pyarrow s | ours / pyarrow speed | ours MB | pyarrow MB |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for form, grouped in (("long", False), ("raw", False), ("long", True)):
            path = Path(folder) / "counters.csv"
            truth = write(path, form, given.size_mb * 10**6, grouped)
            taken: dict[str, list[dict[str, float]]] = {"ours": [], "pyarrow": []}
            for _ in range(given.repeats):
                for reader, results in taken.items():
                    results.append(read(reader, path))
            for result in taken["ours"]:
                assert {name: result[name] for name in truth} == truth
            ours, theirs = (median(one["s"] for one in taken[name]) for name in taken)
            peaks = [max(one["peak"] for one in taken[name]) / 1e6 for name in taken]
            name = f"{form}, 1,234" if grouped else form
            print(
                f"| {name} | {path.stat().st_size / 1e6:.0f} | {ours:.2f} | {theirs:.2f} |"
                f" {theirs / ours:.2f} | {peaks[0]:.0f} | {peaks[1]:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
