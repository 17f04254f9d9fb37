"""The launcher on a node: `python -m campaigns.sweep.ray.launcher ANSWER`, its order on stdin.

A process of its own between Ray's worker and ours. Its stdin is a leash: when whoever holds the
other end dies, however suddenly, the pipe ends, and the launcher ends its worker and keeps what
was measured. A worker in a session of its own would measure on and keep the device busy.
"""

from __future__ import annotations

import _thread
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from bench.config import RunConfig
from bench.errors import UserError
from bench.launcher.measurement import launch_measurement
from bench.machine.nvml import open_nvml
from bench.machine.probes import UnknownFactError
from bench.machine.source_hash import code_id
from bench.records import DeviceInfo
from bench.records.folders import RecordFolder, record_folders, write_atomically
from campaigns.sweep.locks import exclusive
from campaigns.sweep.machine import identify_machine
from campaigns.sweep.past import take_over
from campaigns.sweep.settle import Settler

_POLL_S = 0.2


def identify(order: dict[str, Any]) -> dict[str, Any]:
    """Return what the node has, after what was at work on its records has ended.

    Ray frees the node as soon as its own process is dead; our worker then has still to write.
    """
    records = Path(order["records"])
    while records.is_dir() and any(folder.in_use() for folder in record_folders(records)):
        time.sleep(_POLL_S)
    take_over(records, lambda record_id: None)
    environments = identify_machine(order["env"])
    return {
        "code": code_id(),
        "environments": [each.model_dump(mode="json") for each in environments],
        "at_rest_c": [Settler.of_device(each.device).at_rest_c for each in environments],
    }


def measure(order: dict[str, Any]) -> dict[str, Any]:
    """Measure one configuration on a device that nobody else measures on; leave its record."""
    config = RunConfig.model_validate(order["config"])
    device = _given(DeviceInfo.model_validate(order["device"]))
    with exclusive(device, lambda: None):
        if order["settle_s"]:
            Settler.of_device(device, order["at_rest_c"]).settle(order["settle_s"])
        launch_measurement(config, RecordFolder.create(Path(order["records"]), order["record_id"]))
    return {}


def _given(device: DeviceInfo) -> DeviceInfo:
    """The GPU that Ray gave this process, which numbers them as NVML does."""
    number = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
    if device.backend != "cuda" or not number.isdigit():
        return device
    try:
        nvml = open_nvml()
    except UnknownFactError:
        return device
    uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(int(number)))
    return device.model_copy(update={"uuid": uuid})


def _watch_leash() -> None:
    # Not through sys.stdin: a thread that waits in there stops Python from ending.
    while os.read(0, 1024):
        pass
    _thread.interrupt_main()


def main() -> int:
    """Do what the order says and write the answer, or in one line what was wrong."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_watch_leash, daemon=True).start()
    try:
        answer = {"identify": identify, "measure": measure}[order["do"]](order)
    except KeyboardInterrupt:
        answer = {"error": "interrupted"}
    except UserError as error:
        answer = {"error": str(error)}
    except Exception as error:
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"}
    write_atomically(Path(sys.argv[1]), json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
