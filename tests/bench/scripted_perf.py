"""A perf that is not here: takes the options of `perf stat`, obeys its FIFOs, counts by script."""

import json
import sys

from programs import program

#: What it counts in one window: event -> (value, unit); None: the machine does not support it.
CORES = {
    "task-clock": ("1.50", "msec"),
    "cycles": ("1000", ""),
    "instructions": ("2500", ""),
    "cache-references": ("80", ""),
    "cache-misses": ("20", ""),
    "branches": ("400", ""),
    "branch-misses": ("4", ""),
}


def install(folder, counts=CORES):
    """Write an executable `perf` into `folder`."""
    settings = json.dumps({"counts": counts})
    program(folder, "perf", f"#!{sys.executable}\nSETTINGS = {settings!r}\n{PROGRAM}")


PROGRAM = r"""
import argparse, json, os, select, subprocess, sys

settings = json.loads(SETTINGS)
arguments = sys.argv[1:]
if arguments == ["--version"]:
    print("perf version 6.1.192")
    sys.exit()
assert arguments.pop(0) == "stat"
options, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
parser = argparse.ArgumentParser()
parser.add_argument("-e", action="append", default=[])
for name in ("--control", "-D", "-o"):
    parser.add_argument(name)
parser.add_argument("-x", default=",")
given = parser.parse_args(options)
for event in given.e:
    if event not in settings["counts"]:
        sys.stderr.write("event syntax error: '%s'\n" % event)
        sys.exit(129)
gate = given.control and [os.open(path, os.O_RDWR) for path in given.control[5:].split(",")]
windows = 0 if given.D == "-1" else 1
child = subprocess.Popen(command)
while child.poll() is None:
    if gate and select.select(gate[:1], [], [], 0.02)[0]:
        for word in os.read(gate[0], 100).split():
            windows += {b"enable": 1, b"disable": 0}[word]
            os.write(gate[1], b"ack\n\0")
with open(given.o, "w") as file:
    file.write("# started on Sat Nov 21 12:57:24 2026\n\n")
    for event in given.e:
        count, unit = settings["counts"][event] or ("<not supported>", "")
        if count[0] != "<" and not windows:
            count = "<not counted>"
        elif count[0] != "<":
            count = "%.2f" % (float(count) * windows) if "." in count else str(int(count) * windows)
        file.write(given.x.join([count, unit, event, "900", "100.00", "", ""]) + "\n")
sys.exit(child.returncode)
"""
