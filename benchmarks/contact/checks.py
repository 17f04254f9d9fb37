"""The checks: what is expected of a device, and whether it is seen there."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from bench.profilers.ncu import NcuTool
from bench.records import CeilingsRecord, RunRecord
from bench.records.metrics import executed_flops, profiled_step_cost
from bench.roofs import sustained_rate
from contact.device import CannotTellError, Contact, printed_by

#: Within so much two measurements of one thing agree.
_CLOSE, _NEAR = 0.05, 0.2

#: Six steps whose first one overflows fp16, with the fused optimizer and without.
LOSSES = """
import json, sys, torch, torchvision
from bench.training.precision import AmpFp16
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
#: Relative error of a product in a process whose model's file has turned TF32 on.
OWN_SWITCHES = """
import json, sys, tempfile, types, torch
from pathlib import Path
from bench.config import RunConfig
from bench.records.journal import JournalWriter
from bench.worker.step_setup import StepSetup
def model():
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
sys.modules["own_switches"] = types.ModuleType("own_switches")
sys.modules["own_switches"].model = model
config = RunConfig(
    arch="own_switches:model", backend=sys.argv[1], precision="fp32", batch_size=2, image_size=32
)
journal = JournalWriter(Path(tempfile.mkdtemp()) / "journal.jsonl")
with StepSetup(config, journal).opened() as ready:
    ready.step()
    a = torch.randn(512, 512, device=ready.device.torch_device)
    exact = a.double() @ a.double()
    print(json.dumps(float((a @ a - exact).norm() / exact.norm())))
"""


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


@check("warm-up", "at least 2 s on CUDA, at most a third of max_seconds after the first elsewhere")
def _warm_up(contact: Contact) -> Seen:
    times = contact.run(precision="fp32").measurement.warmup_times_s
    after_first_s = sum(times[1:])
    if contact.backend == "cuda":
        good = after_first_s >= 1.9
    else:
        good = after_first_s < 3.4 or len(times) == 2
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


@check("switches of a model's file", "fp32 stays IEEE where the file turns TF32 on")
def _own_switches(contact: Contact) -> Seen:
    error = printed_by(OWN_SWITCHES, contact.backend)
    return f"relative error of a product {error:.2g}", error < 1e-5


@check("peak memory of two devices", "at most that of one device and one copy of the gradients")
def _peak_of_two(contact: Contact) -> Seen:
    contact.only_on_cuda()
    if printed_by("import torch; print(torch.cuda.device_count())") < 2:
        raise CannotTellError("needs two NVIDIA GPUs")
    small = {"arch": "vgg16", "precision": "fp32", "batch_size": 1, "iters": 10}
    one, two = (contact.run(**small, devices=devices) for devices in (1, 2))
    rate_of(two)
    peaks = [run.measurement.peak_memory_allocated_bytes for run in (one, two)]
    gradients = one.complexity.memory.gradients_bytes
    seen = f"{[round(peak / 1e6) for peak in peaks]} MB, gradients {gradients / 1e6:.0f} MB"
    return seen, peaks[1] - peaks[0] <= 1.5 * gradients


@check("warm-up of a tuning", "0.4 s or three iterations after the first one, and it is warm")
def _tuning(contact: Contact) -> Seen:
    contact.only_on_cuda()
    run = contact.run(arch="vgg16", precision="amp", batch_size=64, max_seconds=2, iters=100)
    rate_of(run)
    after_first = run.measurement.warmup_times_s[1:]
    seen = f"{run.measurement.warmup_times_s[0]:.3g} s, then {len(after_first)} iterations"
    enough = sum(after_first) >= 0.4 or len(after_first) >= 3
    return f"{seen} in {sum(after_first):.3g} s, {level_of(run)}", (
        enough and "not-warm" not in level_of(run)
    )


@check("clocks", "mean SM clocks of roofs and run within 10 %, or the slower is power-limited")
def _clocks(contact: Contact) -> Seen:
    contact.only_on_cuda()
    run = contact.run(precision="amp")
    clocks = {}
    for name, record in (("roofs", contact.roofs), ("run", run)):
        clocks[name] = record.telemetry.mean("gpu_sm_clock_mhz"), level_of(record)
    (slower_mhz, findings), (faster_mhz, _) = sorted(clocks.values())
    return f"{clocks}", slower_mhz >= 0.9 * faster_mhz or "power-limited" in findings
