"""What every worker does around its job: it runs, catches and writes. And jobs without a step."""

from __future__ import annotations

import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from typing_extensions import override

from bench.errors import UnsupportedError, UserError, one_line
from bench.machine import reason_of, value_or_none
from bench.machine.environment import read_environment
from bench.records import GPM, Account, CounterCheck, Outcome
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.training.devices import Device, open_device
from bench.training.team import DdpTeam, Team

#: What PyTorch's allocators and libraries say when memory runs out without an error class for it.
_MEMORY_PHRASES = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    # cuDNN's plans each ran out of memory, which torch's search for one keeps to itself
    "FIND was unable to find an engine",
    "GET was unable to find an engine",
)
#: What libraries also say for other reasons: of memory only where the device has next to none left.
_FULL_DEVICE_PHRASES = (
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "unhandled cuda error",  # NCCL, whose buffers are past torch's allocator
)
_FULL_FREE_SHARE = 0.05
_NOT_DETERMINISTIC = "does not have a deterministic implementation"
#: oneDNN's words where it has no kernel of an op in this type for this processor.
_NO_KERNEL = "could not create a primitive"


class Attempt(ABC):
    """One job of a worker: it runs, and however it ends, what it saw is in `worker.json`.

    Of a job on several devices each rank has the `team` of all.
    """

    #: Why a part of the account is not there that no run of this job gives.
    not_given = "not a part of this job"

    def __init__(
        self, folder: RecordFolder, journal: JournalWriter, team: Team | None = None
    ) -> None:
        self.folder, self.journal = folder, journal
        self.team: Any = team
        self.job = folder.read_job()
        #: The fields of the `Account` that were reached; `Unknown` where one failed.
        self.found: dict[str, Any] = {}

    @abstractmethod
    def run(self) -> None:
        """Do the job; what it has reached stays readable if this is interrupted or fails."""

    def facts(self) -> Mapping[str, Any]:
        """Return what was found up to now, by the fields of the `Account`."""
        return self.found

    def attempt(self) -> None:
        """Run, and write the account."""
        outcome, reason = outcome_of(self.run)
        self.journal.note("ended", outcome=outcome)
        self.write_account(outcome, reason)

    def write_account(self, outcome: Outcome, reason: str | None) -> None:
        """Write `worker.json`: what was reached up to where it ended."""
        why = reason or self.not_given
        account = Account.of(why, outcome=outcome, reason=reason, **self.facts())
        self.folder.release_reserve()
        self.folder.write(self.folder.worker, account)


class MachineAttempt(Attempt):
    """Gives the environment of every device that can be opened."""

    @override
    def run(self) -> None:
        here, label = self.folder.path, self.job.config.env
        for backend in ("cuda", "mps", "cpu"):
            with suppress(UnsupportedError):
                one = read_environment(open_device(backend).info(), here, label)
                self.found["environments"] = (*self.found.get("environments", ()), one)


#: How long known work lasts, and how long the same goes on before and after it.
_KNOWN_S, _AROUND_S = 2.0, 0.7


class RoofsAttempt(Attempt):
    """Measures the roofs of the job's backend, or does work that is known under the job's tool.

    Of several devices rank 0 measures its own first; then all measure what joins them.
    """

    @override
    def run(self) -> None:
        from bench.roofs import measure_all_reduces, measure_ceilings  # for these roofs alone
        from bench.roofs.cache_roofs import measure_cache_roofs

        def progress(probe: str) -> None:
            self.journal.note("probe", probe=probe)

        team = self.team or Team()
        device = team.open_device(self.job.config)
        self.found["environment"] = read_environment(device.info(), self.folder.path, "auto")
        self.journal.note("device", backend=device.backend, uuid=device.info().uuid)
        if self.job.tool:
            self._do_known_work(device)
            return
        how: Any = {"progress": progress}
        if team.shard.rank == 0:
            self.found["ceilings"], self.found["samples"] = measure_ceilings(device, **how)
            self.found["cache_roofs"] = measure_cache_roofs(device, **how)
            if device.backend == "cuda":
                self._do_known_work(device)
        if isinstance(team, DdpTeam):
            team.barrier()
            self.found["all_reduces"] = measure_all_reduces(device, team, **how)

    def _do_known_work(self, device: Device) -> None:
        """Do what proves counters: between two marks, or the task's under ncu or perf.

        NVML's counters are refreshed ten times a second, so it goes on beyond both marks.
        """
        from bench.profilers.perf import counting
        from bench.roofs import known_work

        def repeated(seconds: float) -> int:
            end_s, launches = time.perf_counter() + seconds, 0
            while not launches or time.perf_counter() < end_s:
                launch()
                device.synchronize()
                launches += 1
            return launches

        for probe in known_work(device):
            name, tool = probe.name.partition(" ")[0], self.job.tool
            if self.job.task.get("work", name) != name:
                continue
            launch = probe.prepare()
            repeated(_AROUND_S)
            self.journal.note(f"{name}_started")
            begin_s = time.perf_counter()
            by_perf = counting(self.job.task) if tool == "perf" else nullcontext()
            with profiled_range(device) if tool == "ncu" else by_perf:
                launches = repeated(0.0 if tool == "ncu" else _KNOWN_S)
            took_s = time.perf_counter() - begin_s
            self.journal.note(f"{name}_ended")
            repeated(_AROUND_S)
            check = CounterCheck.of(
                "the launcher knows what was counted",
                counter=tool or GPM,
                work=f"{probe.name} x {launches}",
                quantity="flops" if probe.math_mode else "bytes",
                known=probe.work_per_launch * launches,
                took_s=took_s,
            )
            self.found["counter_checks"] = (*self.found.get("counter_checks", ()), check)
            self.found |= {"iterations": launches, "window_s": took_s}


@contextmanager
def profiled_range(device: Device) -> Iterator[None]:
    """Let ncu count what is launched inside: only that, and all of it.

    The device is synchronised at both ends. ncu must run with `--profile-from-start off`,
    and the CUDA context must exist, as it does after a warm-up. Raises `UnsupportedError` on
    another backend.
    """
    if device.backend != "cuda":
        raise UnsupportedError(f"tool=ncu: counts on CUDA devices alone, not on {device.backend}")
    device.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    try:
        yield
        device.synchronize()
    finally:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def outcome_of(work: Callable[[], None]) -> tuple[Outcome, str | None]:
    """Run `work`; return its outcome and, unless it went well, the reason in one line.

    The traceback of a crash goes to the worker's console.
    """
    try:
        work()
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        outcome, reason = outcome_by(error)
        if outcome in ("oom", "crashed") and isinstance(error, Exception):
            traceback.print_exc()
        return outcome, reason
    return "ok", None


def outcome_by(error: BaseException | None) -> tuple[Outcome, str | None]:
    """Return the outcome of what has ended by `error`, and the reason in one line."""
    match error:
        case None:
            return "ok", None
        case KeyboardInterrupt():
            return "interrupted", "interrupted from outside"
        case UnsupportedError():
            return "unsupported", str(error)
        case UserError():
            return "refused", str(error)
        case Exception() if _NOT_DETERMINISTIC in str(error):
            what = str(error).strip().partition("\n")[0].partition(", but")[0]
            return "unsupported", f"deterministic=true: {what}; use deterministic=false"
        case RuntimeError() if _NO_KERNEL in str(error):
            why = f"{one_line(error).partition('. ')[0]}: oneDNN has none for this type here"
            return "unsupported", f"{why}; use precision=fp32, or amp, which takes what is native"
        case Exception():
            return ("oom" if _is_out_of_memory(error) else "crashed"), reason_of(error)
    code = error.code if isinstance(error, SystemExit) else type(error).__name__
    return "crashed", f"the code that was measured ended the process: sys.exit({code!r})"


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error) if isinstance(error, RuntimeError) else ""
    if any(phrase in text for phrase in _MEMORY_PHRASES):
        return True
    if not any(phrase in text for phrase in _FULL_DEVICE_PHRASES):
        return False
    # a context that has failed answers nothing
    free_bytes, total_bytes = value_or_none(torch.cuda.mem_get_info) or (1, 0)
    return free_bytes < _FULL_FREE_SHARE * total_bytes
