"""Several first commands at once in each of some new folders, most of them killed while they work.

Arguments: a folder, how many folders to make in it, a seed. A first command is a process of its own
that opens the store. Imports are made once, before: a kill then lands on the making of the store.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import mlflow.store.db.utils  # noqa: F401

from tracking.connection import Server
from tracking.store import import_store

AT_ONCE = 4
SPAN_S = 2.0


def first_command(folder):
    """Return the process that opens the store of `folder`, and ends with 0 if it could."""
    if process := os.fork():
        return process
    code = 1
    try:
        os.chdir(folder)
        assert Server().experiments
        code = 0
    finally:
        os._exit(code)


def main(place, count, seed):
    """Exit code: 0 if every process that was not killed could open its store."""
    import_store()
    dice = random.Random(seed)
    failed = 0
    for number in range(count):
        folder = Path(place, str(number))
        folder.mkdir()
        started_s = time.monotonic()
        processes = [first_command(folder) for _ in range(AT_ONCE)]
        for at_s, process in sorted((dice.random() * SPAN_S, one) for one in processes[1:]):
            time.sleep(max(0.0, started_s + at_s - time.monotonic()))
            os.kill(process, signal.SIGKILL)  # it is there until it is waited for
        codes = [os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in processes]
        failed += sum(code not in (0, -signal.SIGKILL) for code in codes)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
