"""The first minutes on a device that this project has not met: what it claims, checked there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from bench.config import RunConfig
from bench.errors import UnsupportedError, UserError, fault_line
from bench.launcher.device_lock import device_names
from bench.launcher.measurement import launch_measurement, measure, measure_roofs
from bench.launcher.profile import count_known_work, launch_profile
from bench.machine.gpu_drivers import management_facts
from bench.profilers.ncu.tool import NcuTool
from bench.records import Backend, CeilingsRecord, Measurement, ProfileRecord, RunRecord, ToolName
from bench.records.folders import RecordFolder
from bench.records.metrics import (
    executed_flops,
    gain_of,
    iteration_dram_bytes,
    profiled_step_cost,
)
from bench.records.profile import CASTS


@dataclass(frozen=True)
class Answer:
    """What one check saw; `passed` is None where the machine cannot answer it."""

    device: str  # the UUID of a card
    driver: str | None
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

    def __init__(self, backend: Backend, records: Path) -> None:
        self.backend, self.records = backend, records
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
        self._measure = cache(partial(measure, records=records))

    def run(self, **settings: Any) -> RunRecord:
        """Measure the usual configuration with these settings, once for equal ones."""
        return self._measure(RunConfig(**{**self._usual, **settings}))

    def window(self, **settings: Any) -> Measurement:
        """Return what `run` measured. Raises `RuntimeError` where it measured nothing whole."""
        record = self.run(**settings)
        if record.outcome != "ok" or record.measurement is None:
            raise RuntimeError(f"{record.config.arch}: {record.outcome}, {record.reason}")
        return record.measurement

    def profile(self, tool: ToolName, **settings: Any) -> ProfileRecord:
        """Profile a step of what `run` measured."""
        timed = self.run(**settings)
        return launch_profile(timed.config, RecordFolder.create(self.records), (tool,), timed)


def first_contact(backend: Backend, records: Path, minutes: float) -> Iterator[Answer]:
    """Answer each check that begins within so many minutes; one that raises has failed.

    What is measured for them stays in `records`.
    """
    contact, deadline_s = Contact(backend, records), time.monotonic() + 60 * minutes
    facts = management_facts(device_names(backend)[0]) if backend == "cuda" else {}
    device, driver = facts.get("uuid", backend), facts.get("driver") or None
    for name, (expected, question) in CHECKS.items():
        begin_s, seen, passed = time.monotonic(), "time was up", None
        try:
            if begin_s <= deadline_s:
                seen, passed = question(contact)
        except UnsupportedError as error:
            seen = str(error)
        except Exception as error:
            seen, passed = fault_line(error), False
        yield Answer(device, driver, name, expected, seen, passed, time.monotonic() - begin_s)


def level_of(record: RunRecord | CeilingsRecord | ProfileRecord) -> str:
    """Return the verdict with its findings."""
    if record.verdict is None:
        return "no verdict"
    codes = ", ".join(finding.code for finding in record.verdict.findings)
    return f"{record.verdict.level} ({codes})" if codes else record.verdict.level


def _roofs(contact: Contact) -> Seen:
    record = measure_roofs(contact.backend, records=contact.records)
    peaks = [
        f"{roof.math_mode} {(roof.peak_flops_per_s or 0) / 1e12:.4g} TFLOP/s"
        for roof in record.ceilings
    ]
    return f"{level_of(record)}: {', '.join(peaks)}", "clean" in level_of(record)


def _precisions(contact: Contact) -> Seen:
    on_gpu = ("fp32", "tf32", "amp", "amp-fp16")
    seen = [
        f"{precision} {contact.window(precision=precision).throughput_samples_per_s:.4g} images/s "
        f"{level_of(contact.run(precision=precision))}"
        for precision in (on_gpu if contact.backend == "cuda" else ("fp32", "amp"))
    ]
    return "; ".join(seen), "invalid" not in "".join(seen)


def _fp8(contact: Contact) -> Seen:
    """What fp8 makes of amp's pace and loss, and the casts that it takes for that."""
    step = {"arch": "vit_b_16", "batch_size": 64, "explain": True}
    in_fp8, amp = contact.run(precision="fp8", **step), contact.window(precision="amp", **step)
    ours, ops = contact.window(precision="fp8", **step), in_fp8.ops.ops if in_fp8.ops else ()
    casts_s = sum(op.exclusive_s for op in ops if op.label == CASTS)
    if ours.last_loss is None or not amp.last_loss:
        return "a loss is not known", None
    faster, loss = amp.step_s / ours.step_s, ours.last_loss / amp.last_loss
    seen = f"{faster:.3g} times as fast, {loss:.3g} of the loss, {level_of(in_fp8)}"
    return f"{seen}, {CASTS} {casts_s / ours.step_s:.0%}", abs(loss - 1) <= 0.1 and casts_s > 0


def _telemetry(contact: Contact) -> Seen:
    precision = "amp" if contact.backend == "cuda" else "fp32"
    telemetry = contact.run(precision=precision).telemetry
    if telemetry is None:
        return "none", False
    names, power_w = [gauge.name for gauge in telemetry.series], telemetry.mean("gpu_power_w")
    seen = f"{', '.join(names)}; without: {telemetry.missing}"
    if contact.backend != "cuda":
        return seen, "cpu_utilization_percent" in names
    if not power_w or telemetry.energy_j is None:
        return seen, False
    by_power_j = power_w * contact.window(precision=precision).window_s
    seen = f"{telemetry.energy_j:.4g} J counted, {by_power_j:.4g} J by power; {seen}"
    return seen, abs(telemetry.energy_j / by_power_j - 1) <= 0.2


def _profile(contact: Contact) -> Seen:
    record = contact.profile("torch", precision="fp32")
    seen = f"{level_of(record)} {record.ops.missing if record.ops else ''}"
    return seen, "invalid" not in seen and record.ops is not None


def _counters(contact: Contact) -> Seen:
    """What ncu counts of a step, and over a whole window the device itself."""
    if reason := NcuTool().obstacle(contact.backend):
        return reason, None
    timed, record = contact.run(precision="amp"), contact.profile("ncu", precision="amp")
    cost, executed, counters = profiled_step_cost(record), executed_flops(record), record.counters
    if counters is None or cost is None or executed is None or counters.dram_bytes is None:
        return f"{record.outcome}: {record.missing}", False
    own = iteration_dram_bytes(timed)
    seen = (
        f"{executed / cost.flops:.3g} of the FLOP, {counters.dram_bytes / 1e9:.4g} GB (fused "
        f"{cost.fused_bytes / 1e9:.4g}, eager {cost.eager_bytes / 1e9:.4g}; GPM "
        f"{'none' if own is None else format(own / 1e9, '.4g')}), {level_of(record)}"
    )
    near = own is None or abs(own / counters.dram_bytes - 1) <= 0.1
    return seen, near and 1.0 <= executed / cost.flops <= 1.3 and "invalid" not in level_of(record)


def _known_work(contact: Contact) -> Seen:
    """What each counter says over what is true; a cache's misses are shown, and not judged."""
    on_gpu = contact.backend == "cuda"
    roofs = measure_roofs("cuda", records=contact.records, if_missing=True) if on_gpu else None
    checks, said = [*(roofs.counter_checks if roofs else ())], []
    try:
        checks += count_known_work("ncu" if on_gpu else "perf", contact.backend)
    except UserError as error:
        said = [str(error)]
    seen = "; ".join([*(one.sentence for one in checks), *said])
    misses = ("perf", "bytes")
    judged = [check for check in checks
              if check.share is not None and (check.counter, check.quantity) != misses]  # fmt: skip
    return seen, all(one.is_right for one in judged) if judged else None


def _memory(contact: Contact) -> Seen:
    ratios = {}
    for precision in ("fp32", "amp"):
        peak = contact.window(precision=precision).peak_memory_allocated_bytes
        model = contact.run(precision=precision).complexity
        if model is None or peak is None:
            return "waits for an NVIDIA GPU", None
        ratios[precision] = model.memory.needed_bytes / peak
    seen = ", ".join(f"{precision} {ratio:.3f}" for precision, ratio in ratios.items())
    return f"modelled over allocated: {seen}", all(abs(r - 1) <= 0.08 for r in ratios.values())


def _without(contact: Contact) -> Seen:
    config, folder = contact.run(precision="amp").config, RecordFolder.create(contact.records)
    removals = launch_measurement(config, folder, without="host").removals
    gains = [gain.ratio for removal in removals if (gain := gain_of(removal))]
    if removals and not gains:
        return "; ".join(removal.missing["with_s"] for removal in removals), None
    return f"times as fast without the host: {gains}", bool(gains)


#: What a check sees, and whether it is as expected; None where this machine cannot answer.
Seen = tuple[str, bool | None]
#: By name: what is expected, and what finds out.
CHECKS: dict[str, tuple[str, Callable[[Contact], Seen]]] = {
    "roofs": ("a clean verdict; a power limit is a note", _roofs),
    "precisions": ("each runs, and no verdict is invalid", _precisions),
    "fp8": ("a loss within 10 % of amp's, and casts and scales beside the products", _fp8),
    "telemetry": ("each series, and energy that agrees with power", _telemetry),
    "profile": ("the work of the timed run, and the kernels of each op", _profile),
    "known work": ("each counter within 5 % of known bytes and FLOP", _known_work),
    "counters": (
        "executed FLOP 1.0 to 1.3 of the model's; DRAM bytes, GPM's within 10 % of ncu's",
        _counters,
    ),
    "memory": ("the model's peak within 8 % of what was allocated", _memory),
    "without": ("turns without the host's work", _without),
}
