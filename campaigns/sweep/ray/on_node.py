"""What runs on a node: the tasks that Ray starts, and the launcher that they start.

`python -m campaigns.sweep.ray.on_node ANSWER` is the launcher, a process of its own between Ray's
worker and ours; its order comes on stdin. When the process at the other end of that pipe dies,
however suddenly, the pipe ends: the launcher then ends its worker and keeps what was measured. A
worker without this watch on its parent would measure on and keep the device busy.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any, cast

import psutil

from bench.config import RunConfig
from bench.errors import UserError
from bench.launcher.device_lock import device_names, exclusive
from bench.launcher.measurement import launch_measurement
from bench.launcher.profile import recover
from bench.launcher.watch import project_environment
from bench.machine.probes import UnknownFactError, open_nvml
from bench.machine.repository import code_id
from bench.records import DeviceInfo, RunRecord
from bench.records.folders import RecordFolder, cache_folder, record_folders, write_atomically
from campaigns.sweep.local_devices import Settler, identify_machine
from campaigns.sweep.plan import take_over
from campaigns.sweep.ray.record_transfer import pack

_POLL_S = 0.1


class NodeError(Exception):
    """Why this node could not do what it was asked; one line."""


def node_records() -> Path:
    """Return where this node keeps what it measures; by host, for homes that hosts share."""
    return cache_folder() / "ray" / (platform.node() or "host")


def identify(env: str, campaign: str, known: Collection[str]) -> tuple[dict[str, Any], list[bytes]]:
    """Return what this node has, and its `unsent_records` after that. Raises `NodeError`."""
    facts = _launch({"do": "identify", "env": env, "records": str(node_records())})
    return facts, unsent_records(campaign, known)


def unsent_records(campaign: str, known: Collection[str]) -> list[bytes]:
    """Return the campaign's records here that the driver does not know, each packed.

    They remain where a driver, or the connection to it, died before it had received them.
    """
    return [
        pack(folder)
        for folder in record_folders(node_records(), missing_ok=True)
        if folder.record_id not in known
        and isinstance(record := folder.readable_record(), RunRecord)
        and record.config.campaign == campaign
    ]


def measure(order: dict[str, Any]) -> bytes:
    """Measure one configuration here and return its record's folder. Raises `NodeError`."""
    folder = RecordFolder(node_records() / order["record_id"])
    try:
        _launch(order | {"do": "measure", "records": str(folder.path.parent)})
    except NodeError:
        if not folder.config.is_file():
            raise
    while recover(folder) is None:  # the launcher was killed and its worker has not ended yet
        time.sleep(_POLL_S)
    return pack(folder)


def request_placeholder() -> None:
    """Do nothing: while it waits in Ray's queue, an autoscaler adds a machine for it."""


def _launch(order: dict[str, Any]) -> dict[str, Any]:
    """Start a launcher with `order` and return its answer.

    Ray cancels a task by KeyboardInterrupt. The pipe to the launcher is closed then, and the
    launcher is still waited for: it ends its worker and writes what was measured.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        answer, console = Path(temporary) / "answer.json", Path(temporary) / "console.txt"
        with console.open("wb") as output:
            launcher = subprocess.Popen(
                [sys.executable, "-m", "campaigns.sweep.ray.on_node", str(answer)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=_environment(),
                start_new_session=True,
            )
        pipe = cast("IO[bytes]", launcher.stdin)
        with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
            pipe.write(json.dumps(order).encode() + b"\n")
            pipe.flush()
            _wait(launcher)
        pipe.close()
        _wait(launcher)
        return _read_answer(answer, console)


def _wait(launcher: subprocess.Popen[bytes]) -> None:
    """Wait so that Ray can interrupt it: a plain wait would not notice."""
    while launcher.poll() is None:
        time.sleep(_POLL_S)


def _read_answer(answer: Path, console: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    except FileNotFoundError:
        lines = console.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise NodeError(lines[-1] if lines else "the launcher was killed") from None
    if "error" in facts:
        raise NodeError(facts["error"])
    return facts


def _environment() -> dict[str, str]:
    """This process's environment, less the thread count that Ray put there for its own tasks.

    Ray sets it after the process began; what was there from the beginning is the user's.
    """
    environment = project_environment()
    if "OMP_NUM_THREADS" not in psutil.Process().environ():
        environment.pop("OMP_NUM_THREADS", None)
    return environment


def _identify_here(order: dict[str, Any]) -> dict[str, Any]:
    """Return what the node has, after every process that works on its records has ended.

    Ray frees the node as soon as its own process is dead; our worker then has still to write.
    """
    records = Path(order["records"])
    while any(folder.in_use() for folder in record_folders(records, missing_ok=True)):
        time.sleep(_POLL_S)
    take_over(records, lambda record_id: None)
    environments = identify_machine(order["env"])
    return {
        "code": code_id(),
        "environments": [each.model_dump(mode="json") for each in environments],
        "at_rest_c": [Settler.of_device(each.device).at_rest_c for each in environments],
    }


def _measure_here(order: dict[str, Any]) -> dict[str, Any]:
    """Measure one configuration on a device that no other benchmark uses; its record stays."""
    config = RunConfig.model_validate(order["config"])
    device = _assigned(DeviceInfo.model_validate(order["device"]))
    with exclusive(device_names(config.backend, config.devices)):
        if order["settle_s"]:
            Settler.of_device(device, order["at_rest_c"]).settle(order["settle_s"])
        launch_measurement(config, RecordFolder.create(Path(order["records"]), order["record_id"]))
    return {}


def _assigned(device: DeviceInfo) -> DeviceInfo:
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


def _watch_parent() -> None:
    # Not through sys.stdin: a thread that waits in there stops Python from ending.
    while os.read(0, 1024):
        pass
    _thread.interrupt_main()


def main() -> int:
    """Carry out the order on stdin and write the answer, or in one line what was wrong."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_watch_parent, daemon=True).start()
    try:
        answer = {"identify": _identify_here, "measure": _measure_here}[order["do"]](order)
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
