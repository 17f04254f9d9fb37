"""The first minutes on a device that this project has not met: what it claims, checked there."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.config import RunConfig
from bench.errors import UserError
from bench.launcher.device_lock import device_names
from bench.launcher.measurement import measure, measure_roofs
from bench.launcher.profile import launch_profile
from bench.launcher.watch import project_environment
from bench.profilers.ncu.tool import NcuTool
from bench.records import CeilingsRecord, Measurement, ProfileRecord, RunRecord, ToolName
from bench.records.folders import RecordFolder
from bench.records.metrics import executed_flops, profiled_step_cost

#: Within so much two measurements of one thing agree.
_CLOSE, _NEAR = 0.05, 0.2


class CannotTellError(Exception):
    """Why this machine cannot answer a check."""


@dataclass(frozen=True)
class Answer:
    """What one check saw; `passed` is None where the machine cannot answer it."""

    check: str
    expected: str
    seen: str
    passed: bool | None
    seconds: float

    def __str__(self) -> str:
        word = {True: "pass", False: "FAIL", None: "-"}[self.passed]
        return f"{word:4}  {self.check}: expected {self.expected}; {self.seen}"


class Contact:
    """Measures on one device into one folder of records."""

    def __init__(self, backend: str, records: Path) -> None:
        self.backend = backend
        self.records = records
        on_gpu = backend == "cuda"
        self._usual: dict[str, Any] = {
            "backend": backend,
            "campaign": "first-contact",
            "arch": "resnet50" if on_gpu else "resnet18",
            "batch_size": 256 if on_gpu else 4,
            "image_size": 224 if on_gpu else 64,
            "iters": 50 if on_gpu else 10,
            "warmup_iters": 5 if on_gpu else 2,
            "max_seconds": 10,
            "explain": False,
        }
        self._known: dict[RunConfig, RunRecord] = {}

    def run(self, **settings: Any) -> RunRecord:
        """Measure the usual configuration with these settings, once for equal ones."""
        config = RunConfig(**{**self._usual, **settings})
        if config not in self._known:
            self._known[config] = measure(config, records=self.records)
        return self._known[config]

    def window(self, **settings: Any) -> Measurement:
        """Return what `run` measured. Raises `RuntimeError` where it measured nothing whole."""
        record = self.run(**settings)
        if record.outcome != "ok" or record.measurement is None:
            raise RuntimeError(f"{record.config.arch}: {record.outcome}, {record.reason}")
        return record.measurement

    def rate(self, **settings: Any) -> float:
        """Return the images/s of what `run` measured."""
        return self.window(**settings).throughput_samples_per_s

    @cached_property
    def roofs(self) -> CeilingsRecord:
        """The device's roofs, measured when they are first asked for."""
        return measure_roofs(self.backend, records=self.records)

    def refusal(self, **settings: Any) -> str:
        """Return why these settings are refused, or how their run ended."""
        try:
            record = self.run(**settings)
        except UserError as error:
            return f"refused: {error}"
        return f"{record.outcome}: {record.reason}"

    def profile(self, tool: ToolName, **settings: Any) -> ProfileRecord:
        """Profile a step of what `run` measured."""
        timed = self.run(**settings)
        return launch_profile(timed.config, RecordFolder.create(self.records), (tool,), timed)


#: What a check sees, and whether it is as expected.
Seen = tuple[str, bool]
Question = Callable[[Contact], Seen]
#: By name: what is expected, whether it needs an NVIDIA GPU, and what finds out.
CHECKS: dict[str, tuple[str, bool, Question]] = {}


def first_contact(
    backend: str, records: Path, minutes: float, names: Collection[str] = ()
) -> Iterator[Answer]:
    """Answer each check that begins within so many minutes; one that raises has failed.

    All checks, or those of `names`. What is measured for them stays in `records`.
    """
    contact, deadline_s = Contact(backend, records), time.monotonic() + 60 * minutes
    for name, (expected, needs_cuda, question) in CHECKS.items():
        if names and name not in names:
            continue
        begin_s, passed = time.monotonic(), None
        try:
            if needs_cuda and backend != "cuda":
                raise CannotTellError("needs an NVIDIA GPU")
            if begin_s > deadline_s:
                raise CannotTellError("time was up")
            seen, passed = question(contact)
        except CannotTellError as error:
            seen = str(error)
        except Exception as error:
            seen, passed = f"{type(error).__name__}: {error}", False
        yield Answer(name, expected, seen, passed, time.monotonic() - begin_s)


def printed_by(program: str, *arguments: str) -> Any:
    """Return what a function of `bench.worker.contact_programs` returns in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.worker.contact_programs", program, *arguments],
        env=project_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return json.loads(done.stdout)


def level_of(record: RunRecord | CeilingsRecord | ProfileRecord) -> str:
    """Return the verdict with its findings."""
    if record.verdict is None:
        return "no verdict"
    codes = ", ".join(finding.code for finding in record.verdict.findings)
    return f"{record.verdict.level} ({codes})" if codes else record.verdict.level


def check(name: str, expected: str, *, cuda: bool = False) -> Callable[[Question], Question]:
    """List a function as the check `name`; `cuda` for one of NVIDIA GPUs alone."""

    def listed(question: Question) -> Question:
        CHECKS[name] = expected, cuda, question
        return question

    return listed


@check("loss scaling", "fused losses are finite after an overflow and equal to the plain ones")
def _losses(contact: Contact) -> Seen:
    fused, plain = printed_by("losses", contact.backend)
    close = all(
        math.isfinite(one) and abs(one - other) <= _CLOSE * abs(other)
        for one, other in zip(fused[1:], plain[1:], strict=True)
    )
    return f"fused {[round(loss, 3) for loss in fused]}", close


@check("roofs", "a clean verdict; a power limit is a note")
def _roofs(contact: Contact) -> Seen:
    peaks = [
        f"{one.math_mode} {(one.peak_flops_per_s or 0) / 1e12:.4g} TFLOP/s"
        for one in contact.roofs.ceilings
    ]
    level = level_of(contact.roofs)
    return f"{level}: {', '.join(peaks)}", "clean" in level


@check("roofs that last", "the bf16 roof is at least 0.97 of a product's sixth second", cuda=True)
def _lasting(contact: Contact) -> Seen:
    rates = printed_by("product_rates")
    found = next((c for c in contact.roofs.ceilings if c.math_mode == "bf16"), None)
    if found is None or found.peak_flops_per_s is None or found.burst_flops_per_s is None:
        raise CannotTellError("no bf16 roof was measured")
    seen = (
        f"roof {found.peak_flops_per_s / 1e12:.4g}, in bursts {found.burst_flops_per_s / 1e12:.4g},"
        f" products by second {[round(rate / 1e12, 1) for rate in rates]} TFLOP/s"
    )
    return seen, found.peak_flops_per_s >= 0.97 * rates[-1]


@check(
    "memory one way", "reading or writing alone reaches at least what both together do", cuda=True
)
def _one_way(contact: Contact) -> Seen:
    found = contact.roofs.ceilings[0]
    if found.peak_bytes_per_s is None or found.one_way_bytes_per_s is None:
        raise CannotTellError("the memory roof was not measured")
    both, one_way = found.peak_bytes_per_s / 1e9, found.one_way_bytes_per_s / 1e9
    return f"{one_way:.4g} against {both:.4g} GB/s", one_way >= 0.97 * both


@check("precisions", "each runs, and no verdict is invalid")
def _precisions(contact: Contact) -> Seen:
    on_gpu = ("fp32", "tf32", "amp", "amp-fp16")
    seen = [
        f"{one} {contact.rate(precision=one):.4g} images/s {level_of(contact.run(precision=one))}"
        for one in (on_gpu if contact.backend == "cuda" else ("fp32", "amp"))
    ]
    return "; ".join(seen), not any("invalid" in one for one in seen)


@check("warm-up", "at least 2 s on CUDA, at most a third of max_seconds after the first elsewhere")
def _warm_up(contact: Contact) -> Seen:
    times = contact.window(precision="fp32").warmup_times_s
    after_first_s = sum(times[1:])
    seen = f"{len(times)} iterations, {sum(times):.3g} s"
    if contact.backend == "cuda":
        return seen, after_first_s >= 1.9
    return seen, after_first_s < 3.4 or len(times) == 2


@check("telemetry", "each series of the device, and energy that agrees with power")
def _telemetry(contact: Contact) -> Seen:
    precision = "amp" if contact.backend == "cuda" else "fp32"
    telemetry = contact.run(precision=precision).telemetry
    if telemetry is None:
        return "none", False
    series = {one.name: one.values for one in telemetry.series}
    seen = f"{', '.join(series)}; without: {telemetry.missing}"
    power = series.get("gpu_power_w")
    if contact.backend != "cuda":
        return seen, "cpu_utilization_percent" in series
    if not power or telemetry.energy_j is None:
        return seen, False
    by_power_j = statistics.fmean(power) * contact.window(precision=precision).window_s
    seen = f"{telemetry.energy_j:.4g} J counted, {by_power_j:.4g} J by power; {seen}"
    return seen, abs(telemetry.energy_j / by_power_j - 1) <= _NEAR


@check("layout of fp32", "vgg16 in NCHW is not slower than in NHWC, and below its roof", cuda=True)
def _layouts(contact: Contact) -> Seen:
    settings = {"arch": "vgg16", "precision": "fp32", "batch_size": 64}
    nhwc, nchw = (contact.rate(**settings, channels_last=last) for last in ("true", "false"))
    return f"NHWC {nhwc:.4g}, NCHW {nchw:.4g} images/s", nchw >= 0.97 * nhwc


@check("peak memory", "with and without cuDNN's search within 20 %", cuda=True)
def _peak_memory(contact: Contact) -> Seen:
    windows = [
        contact.window(precision="amp", cudnn_benchmark=searches) for searches in (True, False)
    ]
    peaks = [one.peak_memory_allocated_bytes or 0 for one in windows]
    warm_up = [round((one.warmup_peak_memory_bytes or 0) / 1e6) for one in windows]
    seen = f"{[round(peak / 1e6) for peak in peaks]} MB in the window, {warm_up} MB in the warm-up"
    return seen, abs(peaks[0] / peaks[1] - 1) <= _NEAR


@check("graphs beside a loader", "three runs end well", cuda=True)
def _graphs(contact: Contact) -> Seen:
    small = {"arch": "resnet18", "precision": "amp", "batch_size": 64, "cuda_graphs": True}
    runs = [contact.run(**small, data="fakedata", iters=20, repeat=n) for n in (1, 2, 3)]
    seen = [f"{run.outcome} {run.reason or ''}" for run in runs]
    return ", ".join(seen), all(run.outcome == "ok" for run in runs)


@check("time limit under graphs", "a window of 2 s ends before 3 s", cuda=True)
def _limit(contact: Contact) -> Seen:
    small = {"arch": "resnet18", "precision": "amp", "batch_size": 64, "cuda_graphs": True}
    window = contact.window(**small, iters=100_000, max_seconds=2)
    return f"{window.window_s:.3g} s, {window.ended_early}", window.window_s < 3


@check("captured accumulation", "refused with a remedy", cuda=True)
def _accumulation(contact: Contact) -> Seen:
    seen = contact.refusal(arch="resnet18", compile="reduce-overhead", grad_accum_steps=2)
    return seen, seen.startswith("refused") and "compile=default" in seen


@check("determinism", "vgg16 is refused on CUDA, with a remedy, and runs on a CPU")
def _determinism(contact: Contact) -> Seen:
    seen = contact.refusal(arch="vgg16", batch_size=4, deterministic=True, iters=5)
    refused = seen.startswith("refused") and "deterministic=false" in seen
    return seen, refused if contact.backend == "cuda" else seen.startswith("ok")


@check("hidden synchronisations", "none, with data from memory and from a loader", cuda=True)
def _syncs(contact: Contact) -> Seen:
    syncs = [
        contact.window(precision="amp", data=data).hidden_syncs
        for data in ("synthetic", "fakedata")
    ]
    return f"{syncs} an iteration", syncs == [0, 0]


@check("profile", "the same work as the timed run, and every kernel of a call of the model")
def _profile(contact: Contact) -> Seen:
    record = contact.profile("torch", precision="fp32")
    seen = f"{level_of(record)} {record.ops.missing if record.ops else ''}"
    return seen, "invalid" not in seen and record.ops is not None


@check(
    "counters", "executed FLOP are 1.0 to 1.3 of the model's, and DRAM bytes are counted", cuda=True
)
def _counters(contact: Contact) -> Seen:
    if reason := NcuTool().obstacle("cuda"):
        raise CannotTellError(reason)
    record = contact.profile("ncu", arch="resnet18", precision="amp", batch_size=64)
    cost, executed, counters = profiled_step_cost(record), executed_flops(record), record.counters
    if counters is None or cost is None or executed is None or counters.dram_bytes is None:
        return f"{record.outcome}: {record.missing}", False
    seen = (
        f"{executed / cost.flops:.3g} of the FLOP, {counters.dram_bytes / 1e9:.4g} GB (fused "
        f"{cost.fused_bytes / 1e9:.4g}, eager {cost.eager_bytes / 1e9:.4g}), {level_of(record)}"
    )
    return seen, 1.0 <= executed / cost.flops <= 1.3 and "invalid" not in level_of(record)


@check("compile", "each mode runs")
def _compile(contact: Contact) -> Seen:
    modes = ("default", "reduce-overhead") if contact.backend == "cuda" else ("default",)
    small = {"arch": "resnet18", "precision": "fp32", "iters": 10}
    seen = {mode: contact.refusal(**small, compile=mode) for mode in modes}
    return f"{seen}", all(one.startswith("ok") for one in seen.values())


@check("switches of a model's file", "fp32 stays IEEE where the file turns TF32 on")
def _own_switches(contact: Contact) -> Seen:
    error = printed_by("product_error", contact.backend)
    return f"relative error of a product {error:.2g}", error < 1e-5


@check(
    "peak memory of two devices",
    "at most that of one device and one copy of the gradients",
    cuda=True,
)
def _peak_of_two(contact: Contact) -> Seen:
    if len(device_names("cuda", 2)) < 2:
        raise CannotTellError("needs two NVIDIA GPUs")
    small = {"arch": "vgg16", "precision": "fp32", "batch_size": 1, "iters": 10}
    windows = [contact.window(**small, devices=devices) for devices in (1, 2)]
    one, two = (window.peak_memory_allocated_bytes or 0 for window in windows)
    cost = contact.run(**small, devices=1).complexity
    if cost is None:
        raise CannotTellError("the model's gradients were not counted")
    gradients = cost.memory.gradients_bytes
    seen = f"{one / 1e6:.0f} and {two / 1e6:.0f} MB, gradients {gradients / 1e6:.0f} MB"
    return seen, two - one <= 1.5 * gradients


@check(
    "warm-up of a tuning",
    "0.4 s or three iterations after the first one, and it is warm",
    cuda=True,
)
def _tuning(contact: Contact) -> Seen:
    short = {"arch": "vgg16", "precision": "amp", "batch_size": 64, "max_seconds": 2, "iters": 100}
    first_s, *others_s = contact.window(**short).warmup_times_s
    level = level_of(contact.run(**short))
    seen = f"{first_s:.3g} s, then {len(others_s)} iterations in {sum(others_s):.3g} s, {level}"
    enough = sum(others_s) >= 0.4 or len(others_s) >= 3
    return seen, enough and "not-warm" not in level


@check(
    "clocks",
    "mean SM clocks of roofs and run within 10 %, or the slower is power-limited",
    cuda=True,
)
def _clocks(contact: Contact) -> Seen:
    clocks = {}
    for name, record in (("roofs", contact.roofs), ("run", contact.run(precision="amp"))):
        telemetry = record.telemetry
        mean = None if telemetry is None else telemetry.mean("gpu_sm_clock_mhz")
        if mean is None:
            raise CannotTellError(f"no clocks were sampled beside the {name}")
        clocks[name] = mean, level_of(record)
    (slower_mhz, findings), (faster_mhz, _) = sorted(clocks.values())
    return f"{clocks}", slower_mhz >= 0.9 * faster_mhz or "power-limited" in findings
