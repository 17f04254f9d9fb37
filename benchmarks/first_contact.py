"""The first minutes on a device that this project has not met: what it claims, checked there.

    python benchmarks/first_contact.py --out first-contact

Prints a line per check: what was expected, what was seen, and whether they agree. Leaves the
records, the files of profilers and `checks.md` in one folder, which `mlproject sync --records
FOLDER/records` uploads and `mlproject report --records FOLDER/records` reads. A check that this
machine cannot answer is named with its reason. Exit code 1 where a check failed.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import click
from side_by_side import PROJECT

from bench import RunConfig, UserError, measure, measure_roofs
from bench.launcher.profile import launch_profile
from bench.profilers.ncu import NcuTool
from bench.records import CeilingsRecord, ProfileRecord, RunRecord
from bench.records.folders import RecordFolder
from bench.records.verdict.record_metrics import executed_flops, profiled_step_cost
from bench.roofs import sustained_rate

LIMIT_S = 540.0
MOST_BYTES = 8e6
#: Within so much two measurements of one thing agree.
_CLOSE, _NEAR = 0.05, 0.2

#: Six steps whose first one overflows fp16, with the fused optimizer and without.
LOSSES = """
import json, sys, torch, torchvision
from bench.training.precision.amp import AmpFp16
from bench.training.step import TrainingStep, make_optimizer
from bench.training.workloads import find_workload
device, losses = sys.argv[1], {}
for fused in (True, False):
    torch.manual_seed(0)
    if device == "cuda":
        model = torchvision.models.resnet50(num_classes=1000)
        images = torch.randn(32, 3, 224, 224, device=device)
        batches = [images] * 6
    else:
        model, images = torch.nn.Linear(4, 1000), torch.ones(32, 4)
        batches = [images * 3e4] + [images] * 5
    model = model.to(device)
    labels = torch.randint(1000, (32,), device=device)
    optimizer = make_optimizer(model, "sgd", fused=fused)
    step = TrainingStep(find_workload("resnet50"), model, optimizer, AmpFp16(device))
    losses[fused] = [float(step(lambda: (batch, labels))) for batch in batches]
print(json.dumps([losses[True], losses[False]]))
"""
HAS_CUDA = "import torch; print(str(torch.cuda.is_available()).lower())"
#: FLOP/s of one product in bf16, second by second.
SECONDS = """
import json, time, torch
a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in "ab")
c = torch.empty_like(a)
rates = []
torch.mm(a, b, out=c); torch.cuda.synchronize()
for _ in range(6):
    n, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < 1:
        for _ in range(20): torch.mm(a, b, out=c)
        torch.cuda.synchronize(); n += 20
    rates.append(n * 2 * 8192**3 / (time.perf_counter() - begin))
print(json.dumps(rates))
"""


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

    def __init__(self, backend: str, out: Path) -> None:
        self.backend = backend
        self.records = out / "records"
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
        }
        self._known: dict[RunConfig, RunRecord] = {}

    def config(self, **settings: Any) -> RunConfig:
        """Return the usual configuration with these settings."""
        return RunConfig(**{**self._usual, **settings})

    def run(self, **settings: Any) -> RunRecord:
        """Measure, once for equal settings; raise `UserError` for what is refused."""
        config = self.config(**settings)
        if config not in self._known:
            self._known[config] = measure(config, records=self.records)
        return self._known[config]

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

    def profile(self, tool: Any, **settings: Any) -> ProfileRecord:
        """Look into a step of what `run` measured."""
        timed = self.run(**settings)
        return launch_profile(timed.config, RecordFolder.create(self.records), (tool,), timed)

    def only_on_cuda(self) -> None:
        """Raise `CannotTellError` on another backend."""
        if self.backend != "cuda":
            raise CannotTellError("needs an NVIDIA GPU")


#: What a check sees, and whether it is as expected.
Seen = tuple[str, bool]
Question = Callable[[Contact], Seen]
CHECKS: list[tuple[str, str, Question]] = []


def check(name: str, expected: str) -> Callable[[Question], Question]:
    """List a function as the check `name`."""

    def listed(function: Question) -> Question:
        CHECKS.append((name, expected, function))
        return function

    return listed


def printed_by(code: str, *arguments: str) -> Any:
    """Return the JSON that Python code prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return json.loads(done.stdout)


def rate_of(record: RunRecord) -> float:
    """Return images/s. Raises `RuntimeError` for a run without a window."""
    if record.outcome != "ok" or record.measurement is None:
        raise RuntimeError(f"{record.config.arch}: {record.outcome}, {record.reason}")
    return record.measurement.throughput_samples_per_s


def level_of(record: RunRecord | CeilingsRecord) -> str:
    """Return the verdict with its findings."""
    if record.verdict is None:
        return "no verdict"
    codes = ", ".join(finding.code for finding in record.verdict.findings)
    return f"{record.verdict.level} ({codes})" if codes else record.verdict.level


@check("loss scaling", "fused losses are finite after an overflow and equal to the plain ones")
def _losses(contact: Contact) -> Seen:
    fused, plain = printed_by(LOSSES, contact.backend)
    close = all(
        math.isfinite(one) and abs(one - other) <= _CLOSE * abs(other)
        for one, other in zip(fused[1:], plain[1:], strict=True)
    )
    return f"fused {[round(loss, 3) for loss in fused]}", close


@check("roofs", "a clean verdict; a power limit is a note")
def _roofs(contact: Contact) -> Seen:
    roofs = contact.roofs
    peaks = [
        f"{one.math_mode} {(one.peak_flops_per_s or 0) / 1e12:.4g} TFLOP/s"
        for one in roofs.ceilings
    ]
    return f"{level_of(roofs)}: {', '.join(peaks)}", "clean" in level_of(roofs)


@check("roofs that last", "the bf16 roof is at least 0.97 of a product's sixth second")
def _lasting(contact: Contact) -> Seen:
    contact.only_on_cuda()
    rates = printed_by(SECONDS)
    found = next((c for c in contact.roofs.ceilings if c.math_mode == "bf16"), None)
    if found is None or found.peak_flops_per_s is None or found.burst_flops_per_s is None:
        raise CannotTellError("no bf16 roof was measured")
    seen = (
        f"roof {found.peak_flops_per_s / 1e12:.4g}, in bursts {found.burst_flops_per_s / 1e12:.4g},"
        f" products by second {[round(rate / 1e12, 1) for rate in rates]} TFLOP/s"
    )
    return seen, found.peak_flops_per_s >= 0.97 * rates[-1]


@check("memory one way", "reading or writing alone reaches at least what both together do")
def _one_way(contact: Contact) -> Seen:
    contact.only_on_cuda()
    found = contact.roofs.ceilings[0]
    if found.peak_bytes_per_s is None or found.one_way_bytes_per_s is None:
        raise CannotTellError("the memory roof was not measured")
    both, one_way = found.peak_bytes_per_s / 1e9, found.one_way_bytes_per_s / 1e9
    kinds = [
        f"{sample.probe} {sustained_rate(sample.rates) / 1e9:.4g}"
        for sample in contact.roofs.samples
        if sample.quantity == "bytes_per_s" and len(sample.rates) > 1
    ]
    return f"{one_way:.4g} against {both:.4g} GB/s ({'; '.join(kinds)})", one_way >= 0.97 * both


@check("precisions", "each runs, and no verdict is invalid")
def _precisions(contact: Contact) -> Seen:
    gpus = ("fp32", "tf32", "amp", "amp-fp16")
    names = gpus if contact.backend == "cuda" else ("fp32", "amp")
    runs = {name: contact.run(precision=name) for name in names}
    seen = [f"{name} {rate_of(run):.4g} images/s {level_of(run)}" for name, run in runs.items()]
    return "; ".join(seen), not any("invalid" in level_of(run) for run in runs.values())


@check("warm-up", "at least 2 s on CUDA, at most a third of max_seconds or 2 iterations elsewhere")
def _warm_up(contact: Contact) -> Seen:
    times = contact.run(precision="fp32").measurement.warmup_times_s
    good = sum(times) >= 1.9 if contact.backend == "cuda" else sum(times) < 3.4 or len(times) == 2
    return f"{len(times)} iterations, {sum(times):.3g} s", good


@check("telemetry", "each series of the device, and energy that agrees with power")
def _telemetry(contact: Contact) -> Seen:
    record = contact.run(precision="amp" if contact.backend == "cuda" else "fp32")
    telemetry, window_s = record.telemetry, record.measurement.window_s
    series = {one.name: one.values for one in telemetry.series}
    seen = f"{', '.join(series)}; without: {telemetry.missing}"
    power = series.get("gpu_power_w")
    if contact.backend != "cuda":
        return seen, "cpu_utilization_percent" in series
    if not power or telemetry.energy_j is None:
        return seen, False
    by_power_j = statistics.fmean(power) * window_s
    seen = f"{telemetry.energy_j:.4g} J counted, {by_power_j:.4g} J by power; {seen}"
    return seen, abs(telemetry.energy_j / by_power_j - 1) <= _NEAR


@check("layout of fp32", "vgg16 in NCHW is not slower than in NHWC, and below its roof")
def _layouts(contact: Contact) -> Seen:
    contact.only_on_cuda()
    settings = {"arch": "vgg16", "precision": "fp32", "batch_size": 64}
    rates = {
        last: rate_of(contact.run(**settings, channels_last=last)) for last in ("true", "false")
    }
    seen = f"NHWC {rates['true']:.4g}, NCHW {rates['false']:.4g} images/s"
    return seen, rates["false"] >= 0.97 * rates["true"]


@check("peak memory", "with and without cuDNN's search within 20 %")
def _peak_memory(contact: Contact) -> Seen:
    contact.only_on_cuda()
    found = [
        contact.run(precision="amp", cudnn_benchmark=searches).measurement
        for searches in (True, False)
    ]
    peaks = [one.peak_memory_allocated_bytes for one in found]
    warm_up = [one.warmup_peak_memory_bytes for one in found]
    seen = (
        f"{[round(p / 1e6) for p in peaks]} MB in the window, {[round(p / 1e6) for p in warm_up]}"
    )
    return f"{seen} MB in the warm-up", abs(peaks[0] / peaks[1] - 1) <= _NEAR


@check("graphs beside a loader", "three runs end well")
def _graphs(contact: Contact) -> Seen:
    contact.only_on_cuda()
    small = {"arch": "resnet18", "precision": "amp", "batch_size": 64, "cuda_graphs": True}
    runs = [contact.run(**small, data="fakedata", iters=20, repeat=n) for n in (1, 2, 3)]
    return ", ".join(f"{run.outcome} {run.reason or ''}" for run in runs), all(
        run.outcome == "ok" for run in runs
    )


@check("time limit under graphs", "a window of 2 s ends before 3 s")
def _limit(contact: Contact) -> Seen:
    contact.only_on_cuda()
    run = contact.run(
        arch="resnet18", precision="amp", batch_size=64, cuda_graphs=True,
        iters=100_000, max_seconds=2,
    )  # fmt: skip
    rate_of(run)
    return f"{run.measurement.window_s:.3g} s, {run.measurement.ended_early}", (
        run.measurement.window_s < 3
    )


@check("captured accumulation", "refused with a remedy")
def _accumulation(contact: Contact) -> Seen:
    contact.only_on_cuda()
    seen = contact.refusal(arch="resnet18", compile="reduce-overhead", grad_accum_steps=2)
    return seen, seen.startswith("refused") and "compile=default" in seen


@check("determinism", "vgg16 is refused on CUDA, with a remedy, and runs on a CPU")
def _determinism(contact: Contact) -> Seen:
    seen = contact.refusal(arch="vgg16", batch_size=4, deterministic=True, iters=5)
    refused = seen.startswith("refused") and "deterministic=false" in seen
    return seen, refused if contact.backend == "cuda" else seen.startswith("ok")


@check("hidden synchronisations", "none, with data from memory and from a loader")
def _syncs(contact: Contact) -> Seen:
    contact.only_on_cuda()
    runs = [contact.run(precision="amp"), contact.run(precision="amp", data="fakedata")]
    syncs = [run.measurement.hidden_syncs for run in runs]
    return f"{syncs} an iteration", syncs == [0, 0]


@check("profile", "the same work as the timed run, and every kernel of a call of the model")
def _profile(contact: Contact) -> Seen:
    record = contact.profile("torch", precision="fp32")
    codes = [finding.code for finding in record.verdict.findings]
    seen = f"{record.verdict.level} ({', '.join(codes)}) {record.ops.missing if record.ops else ''}"
    return seen, record.verdict.level != "invalid" and record.ops is not None


@check("counters", "executed FLOP are 1.0 to 1.3 of the model's, and DRAM bytes are counted")
def _counters(contact: Contact) -> Seen:
    contact.only_on_cuda()
    if reason := NcuTool().obstacle("cuda"):
        raise CannotTellError(reason)
    record = contact.profile("ncu", arch="resnet18", precision="amp", batch_size=64)
    cost, executed = profiled_step_cost(record), executed_flops(record)
    if record.counters is None or cost is None or executed is None:
        return f"{record.outcome}: {record.missing}", False
    seen = (
        f"{executed / cost.flops:.3g} of the FLOP, {record.counters.dram_bytes / 1e9:.4g} GB "
        f"(fused {cost.fused_bytes / 1e9:.4g}, eager {cost.eager_bytes / 1e9:.4g}), "
        f"{record.verdict.level}"
    )
    return seen, 1.0 <= executed / cost.flops <= 1.3 and record.verdict.level != "invalid"


@check("compile", "each mode runs")
def _compile(contact: Contact) -> Seen:
    modes = ("default", "reduce-overhead") if contact.backend == "cuda" else ("default",)
    small = {"arch": "resnet18", "precision": "fp32", "iters": 10}
    runs = {mode: contact.run(**small, compile=mode) for mode in modes}
    seen = [f"{mode} {run.outcome} {run.reason or ''}" for mode, run in runs.items()]
    return "; ".join(seen), all(run.outcome == "ok" for run in runs.values())


def answers(contact: Contact, names: Collection[str], deadline_s: float) -> Iterator[Answer]:
    """Run every check of `names` that begins before `deadline_s`; one that raises has failed."""
    for name, expected, question in CHECKS:
        if name not in names:
            continue
        begin_s = time.monotonic()
        answer = partial(Answer, name, expected)
        if begin_s >= deadline_s:
            yield answer("time was up", None, 0.0)
            continue
        try:
            seen, passed = question(contact)
        except CannotTellError as error:
            yield answer(str(error), None, time.monotonic() - begin_s)
        except Exception as error:
            yield answer(f"{type(error).__name__}: {error}", False, time.monotonic() - begin_s)
        else:
            yield answer(seen, passed, time.monotonic() - begin_s)


def table_of(found: list[Answer]) -> str:
    """Return the answers as a Markdown table."""
    words = {True: "pass", False: "**fail**", None: "not answered"}
    lines = ["| check | expected | seen | | s |", "|---|---|---|---|---|"]
    for one in found:
        cells = (one.check, one.expected, one.seen, words[one.passed], f"{one.seconds:.0f}")
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def make_room(out: Path) -> None:
    """Delete ncu's reports, whose CSVs stay, where the folder is too large to be carried."""
    files = [path for path in out.rglob("*") if path.is_file()]
    if sum(path.stat().st_size for path in files) > MOST_BYTES:
        for path in files:
            if path.suffix == ".ncu-rep":
                path.unlink()


@click.command(help=__doc__.split("\n\n    ")[0])
@click.option(
    "--backend", type=click.Choice(["cuda", "cpu"]), help="default: CUDA where there is one"
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("first-contact"))
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.1),
    default=LIMIT_S / 60,
    show_default=True,
    help="begin no check after so long",
)
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice([name for name, _, _ in CHECKS]),
    help="run this check; default: all of them",
)
def main(backend: str | None, out: Path, minutes: float, names: tuple[str, ...]) -> None:
    """Run every check and leave the folder."""
    if out.exists() and any(out.iterdir()):
        raise click.UsageError(f"--out {out}: holds files already; name another folder")
    if backend is None:
        backend = "cuda" if printed_by(HAS_CUDA) else "cpu"
    deadline_s = time.monotonic() + 60 * minutes
    contact, found = Contact(backend, out), []
    out.mkdir(parents=True, exist_ok=True)
    for answer in answers(contact, names or [name for name, _, _ in CHECKS], deadline_s):
        click.echo(str(answer))
        found.append(answer)
        # After each, so that an end in between loses one check alone.
        (out / "checks.md").write_text(table_of(found), encoding="utf-8")
        (out / "checks.json").write_text(json.dumps([asdict(one) for one in found], indent=1))
    make_room(out)
    failed = [one.check for one in found if one.passed is False]
    click.echo(f"{sum(one.passed is True for one in found)} passed, {len(failed)} failed: {out}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
