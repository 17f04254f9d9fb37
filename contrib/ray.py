"""A sweep on the nodes of a Ray cluster: one Ray task per run.

Nodes that measure are started with `--resources='{"benchmark": 1}'`. A run on a CPU asks for all of
it, a run on a GPU for the GPU and a hundredth of it. So one run has a device, and a run on the CPU
has the whole host. Ray chooses the node, and starts a run again where its node is lost.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bench.config import RunConfig
from bench.config.run_config import run_options
from bench.errors import Unknown, UserError
from bench.launcher.device_lock import device_names
from bench.launcher.measurement import finish_run
from bench.launcher.processes import ENDS_WITH_STARTER
from bench.launcher.watch import project_environment
from bench.machine.repository import code_id
from bench.records import Account, Environment, Job, RunRecord
from bench.records.folders import (
    RecordFolder,
    cache_folder,
    record_folders,
    write_atomically,
)
from bench.records.journal import Event
from campaigns.local import Settler
from campaigns.plan import (
    Deliver,
    PastRun,
    PastRuns,
    SweepOrder,
    SweepWatch,
    Turn,
    take_over,
    turn_before,
)

#: How Ray starts its processes, by its own variables (src/ray/common/ray_config_def.h).
_PROCESSES = {
    # Ray gives way to everything else on a host (niceness 15); a measurement must not.
    "RAY_worker_niceness": "0",
    # A launcher whose Ray process is gone ends by itself and writes what was measured.
    "RAY_kill_child_processes_on_worker_exit": "false",
}
#: A run during which so many more nodes were lost may be what ends them.
_RETRIES = 2
_POLL_S, _TICK_S, _ANSWER_S = 0.1, 1.0, 5.0
#: Wait after Ctrl-C for the last records; a worker has 20 s to write what it measured.
_LAST_RECORDS_S = 40.0
#: Facts of one machine: which processes work on the folder, and the run made for it there.
_STAYS = frozenset({"owners.json", "mlflow_run"})

#: A record's identifier and its files' contents by name.
Parcel = tuple[str, dict[str, bytes]]


class NodeError(Exception):
    """Why a node could not measure a run; one line."""


class OtherCodeError(Exception):
    """A node, by its identifier, that has another version of this project."""


# On a node


def node_records() -> Path:
    """Return where this node keeps what it measures; by host, for homes that hosts share."""
    return cache_folder() / "ray" / (platform.node() or "host")


def unsent(campaign: str, known: Collection[str]) -> list[Parcel]:
    """Return the campaign's records here that are not `known`, once nothing measures here.

    They remain where a driver, or the connection to it, died before it had received them. Ray
    calls a node free as soon as its own process is dead; our launcher then has still to write: it
    is given `_LAST_RECORDS_S`, for who is on another machine may seem alive for ever.
    """
    deadline_s = time.monotonic() + _LAST_RECORDS_S
    while time.monotonic() < deadline_s and any(
        folder.in_use() for folder in record_folders(node_records(), missing_ok=True)
    ):
        time.sleep(_POLL_S)
    take_over(node_records(), lambda record_id: None)
    return [
        pack(folder)
        for folder in record_folders(node_records(), missing_ok=True)
        if folder.record_id not in known
        and isinstance(record := folder.readable_record(), RunRecord)
        and record.config.campaign == campaign
    ]


def measure(options: list[str], code: str, settle_s: float) -> Parcel:
    """Measure here as `mlproject run` with `options` does, and return the record.

    The launcher is a process of its own, which ends when Ray's has ended. Ray cancels a task by
    KeyboardInterrupt: then the launcher is asked to write what was measured. Raises `NodeError`,
    and `OtherCodeError` where the `code` here is another.
    """
    context = ray.get_runtime_context()
    if code != code_id():
        raise OtherCodeError(context.get_node_id())
    if settle_s:
        _settle(settle_s, context.get_job_id())
    command = [sys.executable, "-m", "mlproject", "run", "--no-track", "--format", "json"]
    launcher = subprocess.Popen(
        [*command, "--records", str(node_records()), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
        text=True,
        start_new_session=True,
    )
    cancelled, printed = False, None
    while printed is None:  # a wait without end would not notice that Ray interrupts it
        try:
            printed = launcher.communicate(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:
            cancelled = True
            launcher.terminate()  # SIGINT may be ignored by what Ray was started from
    out, err = printed
    if not out:
        why = err.strip().splitlines() or [f"mlproject run ended with {launcher.returncode}"]
        raise NodeError(why[-1])
    facts = json.loads(out)
    if facts["outcome"] == "interrupted" and not cancelled:
        raise NodeError(facts["reason"])
    return pack(RecordFolder(Path(facts["record"])))


def _environment() -> dict[str, str]:
    """This process's environment, less the thread count that Ray put there for its own tasks.

    Ray sets it after the process began; what was there from the beginning is the user's.
    """
    environment = {**project_environment(), ENDS_WITH_STARTER: "1"}
    if "OMP_NUM_THREADS" not in psutil.Process().environ():
        environment.pop("OMP_NUM_THREADS", None)
    return environment


def _settle(limit_s: float, job: str) -> None:
    """Wait until the device that Ray gave us is idle, and as cool as before the job's first run."""
    device = device_names("auto")[0]
    at_rest = Path(tempfile.gettempdir(), f"mlproject-at-rest-{job}-{device}.json")
    known = json.loads(at_rest.read_text("utf-8")) if at_rest.is_file() else None
    settler = Settler.of_device(device if device in ("cpu", "mps") else "cuda", device, known)
    write_atomically(at_rest, json.dumps(settler.at_rest_c))
    settler.settle(limit_s)


def pack(folder: RecordFolder) -> Parcel:
    """Return the files of a record."""
    files = (path for path in folder.path.iterdir() if path.is_file() and path.name[0] != ".")
    return folder.record_id, {p.name: p.read_bytes() for p in files if p.name not in _STAYS}


# In the process that sweeps


def unpack(parcel: Parcel, records: Path) -> tuple[RecordFolder, RunRecord]:
    """Write a record's folder below `records`, whole or not at all, and return it.

    A folder that is there already stays as it is. Raises `UserError` where it cannot be written.
    """
    record_id, files = parcel
    folder, arriving = RecordFolder(records / record_id), records / ".arriving" / record_id
    try:
        if not folder.record.is_file():
            shutil.rmtree(arriving.parent, ignore_errors=True)  # of a driver that was killed
            arriving.mkdir(parents=True)
            for name, content in files.items():
                write_atomically(arriving / name, content)
            arriving.rename(folder.path)
            arriving.parent.rmdir()
    except OSError as error:
        raise UserError(
            f"records={str(records)!r}: cannot write there ({error.strerror}); "
            "mend that and give the same command again: the node keeps what it measured"
        ) from None
    record = folder.read_record()
    assert isinstance(record, RunRecord)  # nodes send nothing else  # noqa: S101
    return folder, record


class RayExecutor:
    """Measures runs on the nodes of the cluster at `address`.

    `note` receives a line for each problem of a node. A run waits `node_wait_s` for a node that
    has its device.
    """

    place = "the cluster"
    environments: tuple[Environment, ...] = ()  # they differ

    def __init__(self, address: str, *, node_wait_s: float, note: Callable[[str], None]) -> None:
        self._address, self._node_wait_s, self._note = address, node_wait_s, note
        self._nodes: dict[str, Mapping[str, Any]] = {}  # by identifier, as Ray describes them
        self._other_code: set[str] = set()
        self._running: dict[Any, RunConfig] = {}
        self._fetching: dict[Any, str] = {}
        self._without_s: dict[str, float] = {}  # since when no node has had a backend

    @contextlib.contextmanager
    def connected(self, campaign: str) -> Iterator[RayExecutor]:
        """Be the one driver of the cluster that sweeps `campaign`. Raises `UserError`."""
        _refuse_closed_port(self._address)
        # A run that Ray ended because its node ran out of memory would run out of it again.
        os.environ["RAY_task_oom_retries"] = "0"  # noqa: SIM112
        on_term = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(
                address=self._address,
                namespace="mlproject",
                runtime_env={"env_vars": _PROCESSES},
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            line = str(error).strip().splitlines()[0]
            raise UserError(f"address={self._address!r}: {line}") from None
        finally:
            signal.signal(signal.SIGTERM, on_term)  # Ray sets its own
        try:
            claim = _claimed(campaign)
            # No cloud makes Macs on demand.
            macs = any("mps" in node["Resources"] for node in _living_nodes().values())
            self.backends = {"cpu", "cuda", *(["mps"] if macs else [])}
            yield self
            del claim
        finally:
            with _muted_stdout():
                ray.shutdown()

    def sweep(self, order: SweepOrder, deliver: Deliver, watch: SweepWatch) -> Generator[Turn]:
        """Measure what is not measured yet; yield what became of each run, as it ends.

        Ctrl-C ends all workers, yields the runs that this interrupted, and is raised again.
        """
        self._order, self._deliver = order, deliver
        self._past = PastRuns(
            order.records, order.campaign, None, order.elsewhere, order.retry_failed
        )
        self._past.refresh()
        with _muted_stdout():
            try:
                yield from self._turns(watch)
            except KeyboardInterrupt:
                yield from self._interrupted()
                raise
            finally:
                self._cancel()

    def _turns(self, watch: SweepWatch) -> Iterator[Turn]:
        self._look_at_nodes()
        while self._fetching:  # what nodes kept of an earlier sweep need not be measured
            yield from self._wait(watch)
        for config in self._order.plan.runs:
            before = turn_before(config, self._past, self._order)
            if before is None:
                self._start(config)
            else:
                yield before
        while self._running or self._fetching:
            yield from self._wait(watch)

    def _wait(self, watch: SweepWatch) -> Iterator[Turn]:
        """Wait for tasks, at most a second, and yield what became of those that have ended."""
        self._look_at_nodes()
        tasks = [*self._running, *self._fetching]
        ray.wait(tasks, timeout=_TICK_S)
        for task in ray.wait(tasks, num_returns=len(tasks), timeout=0)[0]:
            if task in self._fetching:
                yield from self._fetch(task)
            elif turn := self._finished(task):
                yield turn
        yield from self._left_over()
        watch.on_event(Event("tick", time.perf_counter(), {}))

    def _start(self, config: RunConfig) -> None:
        asked = self._demand(config)
        others = f"!in({','.join(self._other_code)})" if self._other_code else "!none"
        options = {
            "num_cpus": 0,
            "num_gpus": asked.pop("GPU", 0),
            "resources": asked,
            "max_retries": _RETRIES,
            "retry_exceptions": [NodeError],
            "scheduling_strategy": "SPREAD",
            "label_selector": {"ray.io/node-id": others},
        }
        arguments = (run_options(config), code_id(), self._order.settle_s)
        self._running[ray.remote(measure).options(**options).remote(*arguments)] = config

    def _demand(self, config: RunConfig) -> dict[str, float]:
        """What a run asks of a node, by Ray's names; `auto` is a GPU if a node has one."""
        gpus = any("GPU" in node["Resources"] for node in self._nodes.values())
        if config.backend == "cuda" or (config.backend == "auto" and gpus):
            return {"GPU": config.devices, "benchmark": 0.01}
        return {"benchmark": 1, **({"mps": 1} if config.backend == "mps" else {})}

    def _finished(self, task: Any) -> Turn | None:
        """What became of a run, its record safe and delivered; None where it starts again."""
        config = self._running.pop(task)
        try:
            folder, record = unpack(ray.get(task), self._order.records)
        except exceptions.OutOfMemoryError:  # no process was left to write a record
            why = "Ray ended it because its node ran out of memory"
            folder = RecordFolder.create(self._order.records)
            job, blank = Job(config=config), Account.of_none("oom", why)
            folder.write(folder.config, job)
            record = finish_run(folder, job, datetime.now(timezone.utc), blank, Unknown(why))
        except exceptions.RayError as error:
            if isinstance(cause := getattr(error, "cause", None), OtherCodeError):
                self._leave_out(str(cause))
                self._start(config)
                return None
            why = f"no node measured it: {_line(error)}"
            return Turn(config, "left over", None, why, None)
        self._deliver(folder, record)
        return Turn.of(record)

    def _leave_out(self, node_id: str) -> None:
        if node_id in self._nodes and node_id not in self._other_code:
            name = self._nodes[node_id]["NodeManagerAddress"]
            self._note(f"node {name} is left out: its mlproject is not this one; update it there")
        self._other_code.add(node_id)

    def _left_over(self) -> Iterator[Turn]:
        """Runs that no node has been able to measure for too long."""
        now_s = time.monotonic()
        nodes = [self._nodes[node_id] for node_id in self._nodes.keys() - self._other_code]
        for backend in {config.backend for config in self._running.values()}:
            runs = {task: run for task, run in self._running.items() if run.backend == backend}
            asked = [self._demand(run).items() for run in runs.values()]
            if any(
                all(node["Resources"].get(name, 0) >= amount for name, amount in demand)
                for demand in asked
                for node in nodes
            ):
                self._without_s.pop(backend, None)
            elif backend not in self._without_s:
                self._without_s[backend] = now_s
                why = f"no node has {backend} and the resource benchmark"
                self._note(f"{why}: waiting at most {self._node_wait_s:.0f} s")
            elif now_s - self._without_s[backend] >= self._node_wait_s:
                why = f"no node had {backend} for {self._node_wait_s:.0f} s"
                for task, config in runs.items():
                    ray.cancel(task)
                    del self._running[task]
                    yield Turn(config, "left over", None, why, None)

    def _look_at_nodes(self) -> None:
        """Ask the nodes that joined for the records that an earlier sweep left there."""
        living = _living_nodes()
        for node_id in self._nodes.keys() - living.keys():
            name = self._nodes.pop(node_id)["NodeManagerAddress"]
            self._note(f"node {name} is gone; what it was measuring starts again elsewhere")
        known = [path.name for path in self._order.records.glob("*Z-*")]
        for node_id in living.keys() - self._nodes.keys():
            self._nodes[node_id] = living[node_id]
            there = NodeAffinitySchedulingStrategy(node_id, soft=False)
            task = ray.remote(unsent).options(num_cpus=0, scheduling_strategy=there)
            self._fetching[task.remote(self._order.campaign, known)] = node_id

    def _fetch(self, task: Any) -> Iterator[Turn]:
        """Take in what a node kept of earlier sweeps, and yield the runs that this makes needless.

        Without an answer it remains there.
        """
        name = self._nodes.get(self._fetching.pop(task), {}).get("NodeManagerAddress")
        try:
            parcels = ray.get(task)
        except exceptions.TaskUnschedulableError:
            return  # the node is gone, which is noted when Ray counts it out
        except exceptions.RayError as error:
            if name is not None:  # else it is gone
                self._note(f"node {name} does not send what it kept: {_line(error)}")
            return
        new = [parcel for parcel in parcels if not (self._order.records / parcel[0]).exists()]
        for folder, record in (unpack(parcel, self._order.records) for parcel in new):
            self._past.add(PastRun.of(record))
            self._deliver(folder, record)
        for run, config in [*self._running.items()]:
            if before := turn_before(config, self._past, self._order):
                ray.cancel(run)
                del self._running[run]
                yield before

    def _interrupted(self) -> Iterator[Turn]:
        """End all workers, and take in what they had measured."""
        self._cancel()
        deadline_s = time.monotonic() + _LAST_RECORDS_S
        while self._running and time.monotonic() < deadline_s:
            for task in ray.wait([*self._running], timeout=_TICK_S)[0]:
                turn = self._finished(task)
                if turn is not None and turn.record is not None:
                    yield turn

    def _cancel(self) -> None:
        for task in [*self._running, *self._fetching]:
            ray.cancel(task)


def _line(error: Exception) -> str:
    """The first line of what ended a task."""
    return str(getattr(error, "cause", None) or error).strip().partition("\n")[0]


def _living_nodes() -> dict[str, Mapping[str, Any]]:
    """The nodes that measure, by their identifiers."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    living = [node for node in nodes if node["Alive"] and "benchmark" in node["Resources"]]
    return {node["NodeID"]: node for node in living}


class Claim:
    """One sweep per campaign and cluster: the name of this actor; it dies with its driver."""


def _claimed(campaign: str) -> Any:
    """Return what holds the claim for as long as it is referred to."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    claim = ray.remote(Claim).options(
        name=f"sweep {campaign}", num_cpus=0, scheduling_strategy=here
    )
    try:
        return claim.remote()
    except ValueError:  # the name is taken
        raise UserError(
            f"campaign={campaign!r}: another sweep of it is under way on this cluster; "
            "wait for its end, or name another campaign"
        ) from None


@contextlib.contextmanager
def _muted_stdout() -> Iterator[None]:
    """Keep stdout from what Ray prints of a node's end, dozens of lines; `note` has one."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _refuse_closed_port(address: str) -> None:
    """Ray tries for a long time, and prints a page, where nothing listens."""
    host, _, port = address.rpartition(":")
    if "//" in address or not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"address={address!r}: no Ray cluster answers there ({why}); "
            "start one with: ray start --head --num-cpus=0"
        ) from None
