"""A program that behaves as Nsight Compute's command line does, for machines without a GPU.

`ScriptedNcu(folder)` writes `ncu` into `folder`, to be put on PATH. It answers `--version`,
`--query-metrics` and `--import` in the forms of ncu 2024.1.1, and really runs the
program that it is given, then leaves a report of the scripted kernels and their counters:
`kernels` is a list of (mangled name, {metric: value}), one per launch.

Run as a program it is ncu itself; that part uses the standard library alone.
"""

import json
import subprocess
import sys
from pathlib import Path

VERSION = "NVIDIA (R) Nsight Compute\nVersion {version} (build 33998838) (public-release)"
PERMISSION = (
    "ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance "
    "Counters on the target device 0. For instructions on enabling permissions and to get more "
    "information see https://developer.nvidia.com/ERR_NVGPUCTRPERM"
)
HARDWARE = ("gpu__time_duration", "dram__bytes", "lts__t_bytes", "l1tex__t_bytes")
SASS = tuple(
    f"smsp__sass_thread_inst_executed_op_{width}{op}_pred_on"
    for width in "fhd"
    for op in ("add", "mul", "fma")
)
TENSOR = {
    "tu102": ("src_fp16_bf16_tf32_dst_fp32", "src_fp16_dst_fp16"),
    "tu116": (),
    "ad102": (
        *("src_fp16_dst_fp32", "src_fp16_dst_fp16", "src_bf16_dst_fp32", "src_tf32_dst_fp32"),
        *("src_fp64", "src_fp8"),
    ),
    "gh100": ("src_fp16", "src_bf16_dst_fp32", "src_tf32_dst_fp32", "src_fp64", "src_fp8"),
}
CHIPS = {
    chip: [*HARDWARE, *SASS, *(f"sm__ops_path_tensor_{kind}" for kind in kinds)]
    for chip, kinds in TENSOR.items()
}
IDENTITY = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC"),
)


class ScriptedNcu:
    """The program, its folder, and what it was asked."""

    def __init__(self, folder, **script):
        self.folder = Path(folder)
        self._script = self.folder / "script.json"
        self._asked = self.folder / "asked.jsonl"
        self.script(**script)
        self.program = self.folder / "ncu"
        self.program.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "{self.folder}" "$@"\n'
        )
        self.program.chmod(0o755)

    def script(
        self,
        version="2024.1.1.0",
        chips=CHIPS,
        device="gh100",
        kernels=(),
        error=None,
        error_ends_step=False,
    ):
        """Set what it knows, counts and complains of; `device` None: no driver."""
        known = {name: value for name, value in locals().items() if name != "self"}
        self._script.write_text(json.dumps(known))

    @property
    def asked(self):
        """Every command line that it was given, in order."""
        if not self._asked.exists():
            return []
        return [json.loads(line) for line in self._asked.read_text().splitlines()]


def main(folder, arguments):
    with (Path(folder) / "asked.jsonl").open("a") as log:
        log.write(f"{json.dumps(arguments)}\n")
    script = json.loads((Path(folder) / "script.json").read_text())
    options, program = _parsed(arguments)
    if "--version" in options:
        print(VERSION.format(version=script["version"]))
        return 0
    if "--query-metrics" in options:
        return _query(script, options)
    if "--import" in options:
        return _import(script, options)
    return _profile(script, options, program)


_FLAGS = {"--version", "--query-metrics", "--csv", "--force-overwrite"}


def _parsed(arguments):
    options, rest = {}, list(arguments)
    while rest and rest[0].startswith("-"):
        name = rest.pop(0)
        options[name] = None if name in _FLAGS else rest.pop(0)
    return options, rest


def _error(text):
    print(f"==ERROR== {text}", flush=True)
    return 1


def _query(script, options):
    chip = options.get("--chips", script["device"])
    if chip is None:
        return _error("Driver could not be loaded.")
    if chip not in script["chips"]:
        return _error(f"Invalid chip {chip}")
    print(f"Chip {chip}")
    for row in ("-" * 60, "Metric Name     Metric Type     Metric Unit", "-" * 60):
        print(row)
    for name in script["chips"][chip]:
        print(f"{name}     Counter     byte     # of something, described in")
        print(f"{' ' * len(name)}                          two lines, as dram__bytes or so")
    return 0


def _import(script, options):
    path = Path(options["--import"])
    try:
        report = json.loads(path.read_text())
    except FileNotFoundError:
        return _error(f"Could not open report file '{path}'.")
    except ValueError:
        return _error(f"Failed to load report file '{path}'.")
    metrics = [name for name in options["--metrics"].split(",") if name in report["metrics"]]
    _row((*IDENTITY, *metrics))
    _row(("",) * len(IDENTITY) + tuple(_unit(name) for name in metrics))
    for launch, (name, values) in enumerate(report["kernels"]):
        identity = ("1", "7", "(128, 1, 1)", "(1, 1, 1)", "0", "9.0")
        counts = (str(values.get(metric, 0)) for metric in metrics)
        shown = name if options.get("--print-kernel-base") == "mangled" else "kernel"
        _row((str(launch), "4242", "python", "127.0.0.1", shown, *identity, *counts))
    return 0


def _unit(metric):
    """The base unit; tensor operations have none."""
    units = {"duration": "nsecond", "bytes": "byte", "inst_executed": "inst"}
    return next((unit for word, unit in units.items() if word in metric), "")


def _row(cells):
    print(",".join(f'"{cell}"' for cell in cells))


def _profile(script, options, program):
    metrics = options["--metrics"].split(",")
    report = Path(options["--export"].replace("%%", "%") + ".ncu-rep")
    missing = [
        name for name in metrics if name.rpartition(".")[0] not in script["chips"][script["device"]]
    ]
    error = f"Failed to find metric {missing[0]}" if missing else script["error"]
    print("==PROF== Connected to process 4242 (/usr/bin/python3)", flush=True)
    code = 0
    if error:
        _error(error)
    if not (error and script["error_ends_step"]):
        code = subprocess.run(program, check=False).returncode
    if code:
        _error(f"The application returned an error code ({code}).")
    if error or code or not script["kernels"]:
        print("==WARNING== No kernels were profiled.")
        return code or 1
    for launch, (name, _) in enumerate(script["kernels"]):
        print(f'==PROF== Profiling "{name}" - {launch}: 0%....50%....100% - 1 pass')
    print("==PROF== Disconnected from process 4242")
    report.write_text(json.dumps({"metrics": metrics, "kernels": script["kernels"]}))
    print(f"==PROF== Report: {report}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
