"""A whole report, and what commands say of runs like its own, against the files in tests/golden.

With `--golden` the files are rewritten; look at the diff. Numbers have nine digits there, since
further ones differ between processors. Figures are kept as the data that a page draws.
"""

import json
import re
from datetime import timedelta
from functools import partial
from pathlib import Path

import factories as make
import numpy as np
import pytest
import samples
from golden import plain, rounded
from observed import Server, published, published_records, records_on_disk

from analysis.comparison.across import across_machines
from analysis.findings import find_all
from bench.errors import UserError
from bench.records import Copies, Finding, SampledSeries

LAB = make.environment()
FAST = make.environment(label="fast", device=make.gpu())
#: No roof was measured here: it is the datasheet's.
RENTED = make.environment(
    label="rented",
    torch="2.11.0",
    device=make.gpu(name="Tesla V100-SXM2-16GB", uuid="GPU-2", driver="550.2"),
)
SPEEDS = {"lab": 1.0, "fast": 8.0, "rented": 5.0}
#: A GPU's roofs are ten times as high as the processor's.
GPU = {"device": "Example GPU", "backend": "cuda", "peak_bytes_per_s": 5e11}
CEILINGS = [
    make.ceilings_record("roofs-of-lab"),
    make.ceilings_record(
        "roofs-of-fast",
        environment=FAST,
        ceilings=[
            make.ceiling(mode, **GPU, peak_flops_per_s=peak)
            for mode, peak in (("fp32", 2e12), ("bf16", 8e12))
        ],
    ),
]


def run(env, batch, precision="fp32", repeat=1, *, model="resnet18", slower=1.0, **changes):
    """10 GFLOP an image in a step of 0.4 s and 0.06 s an image on `lab`; amp takes 0.6 of it."""
    amp, on_gpu = precision == "amp", env is not LAB
    step_s = (0.4 + 0.06 * batch) * slower * (1 + 0.01 * repeat) / SPEEDS[env.label]
    step_s *= (0.6 if amp else 1.0) * (1 + 0.01 * (batch % 3))  # near a line, not on it
    times_s = tuple(step_s * (1 + 0.002 * (at % 5 - 2)) for at in range(10))
    measured = make.measurement(times_s=times_s, images=batch, wait_s=0.01 * step_s)
    if on_gpu:
        measured = measured.replaced(peak_memory_allocated_bytes=batch * 10**8)
    moved = batch * make.GIGA // (2 if amp else 1)
    known = {
        "environment": env,
        "created": make.NOON + timedelta(minutes=10 * repeat, seconds=batch),
        "resolved": make.resolved(
            backend=env.device.backend,
            math_mode="bf16" if amp else "fp32",
            autocast_dtype="bf16" if amp else "none",
            batch_size=batch,
        ),
        "complexity": make.complexity(
            arch=model,
            batch_size=batch,
            step_flops=10 * batch * make.GIGA,
            eager_bytes=2 * moved,
            fused_bytes=moved // 2,
        ),
        "measurement": measured,
    }
    settings = {"arch": model, "precision": precision, "repeat": repeat}
    return make.run_record(
        changes.pop("name", f"{env.label}-{model}-{precision}-{batch}-{repeat}"),
        batch,
        settings={**settings, **changes.pop("settings", {})},
        **{**known, **changes},
    )


def _measurements():
    """Curves with a knee and a cliff, repeats, pairs, and runs that went wrong."""
    for env in (FAST, RENTED):
        for precision in ("fp32", "amp"):
            yield from (run(env, 16, precision, repeat) for repeat in (1, 2, 3))
            yield run(env, 32, precision)
    yield from (run(LAB, batch) for batch in (8, 16, 32, 64))
    yield from (run(FAST, batch, slower=slower) for batch, slower in ((64, 1.0), (128, 3.0)))
    yield run(FAST, 32, model="vgg16")
    yield run(FAST, 64, model="vgg16", name="too-fast", slower=0.02)
    real = {"data": "/data/imagenet", "workers": 4}
    yield run(LAB, 16, name="real", settings=real, slower=1.2)
    waited = make.measurement(step_s=4.0, wait_s=1.6, images=32)
    yield run(LAB, 32, name="waits", settings=real, measurement=waited)
    two = make.measurement(step_s=0.25, images=32)
    yield run(FAST, 16, name="two", settings={"devices": 2}, measurement=two)
    loader = {"data": "/data/imagenet", "data_only": True}
    yield run(LAB, 16, name="loader", settings=loader, slower=0.2, complexity=None)
    for batch in (8, 16):
        work = make.complexity(
            arch="mymodels:gpt",
            batch_size=batch,
            step_flops=5 * batch * make.GIGA,
            image_size=None,
            sample="sequence",
            tokens_per_sample=128,
        )
        yield make.sequence_record(f"tokens-{batch}", batch, 0.3 + 0.04 * batch, complexity=work)
    yield _watched()
    drift = Finding(code="drift", level="suspect", message="the last third ran slower")
    yield run(RENTED, 64, name="drifts", verdict=make.suspect(drift))
    other = make.environment(label="arm", machine="arm64")
    yield make.run_record("roofless", environment=other)
    yield make.failed_record("fast-oom", environment=FAST)
    yield make.failed_record("crashed", outcome="crashed", reason="RuntimeError: no")


def _watched():
    """A run with phases, sensors, a process and windows that ended early."""
    phases = {"data": 0.1, "forward": 0.3, "backward": 0.5, "optimizer": 0.05}
    measured = samples.measurement(
        (1.0,) * 8,
        10,
        warmup_times_s=(1.0, 1.0),
        ended_early="max_seconds=9.5 after 8 of 10",
        warmup_ended_early="max_seconds=3.2 after 2 of 3",
        phase_times_s={name: (time_s,) * 8 for name, time_s in phases.items()},
    )
    values = {
        "gpu_power_w": (100.0, 300.0),
        "cpu_frequency_mhz": (3000.0,),
        "gpu_utilization_percent": (0.0,),
        "cpu_utilization_percent": (50.0,),
    }
    series = tuple(
        SampledSeries(name=name, source="test", times_s=tuple(range(len(one))), values=one)
        for name, one in values.items()
    )
    shares = {"thermal": 0.25}
    return make.run_record(
        "watched",
        settings={"iters": 10, "warmup_iters": 3},
        measurement=measured,
        process=samples.process_figures(
            real_s=20.0, user_s=30.0, system_s=10.0, max_rss_bytes=3 * 10**9
        ),
        telemetry=samples.telemetry(
            series=series, interval_s=1.0, energy_j=500.0, throttle_share=shares
        ),
        environment=make.environment(label="watched", storage="ext4"),
    )


def _profiles():
    """One of a run with everything a profile may have, and one without a result."""
    ops = samples.op_profile(
        samples.op_time("convolution 3x3", "backward", 0.1, flops=10**11, eager_bytes=10**9),
        samples.op_time("relu", "forward", 0.02, flops=0, elementwise_flops=10**8, fused_bytes=0),
        samples.op_time("view", "forward", 0.01, flops=None, why_missing="only a view"),
        device_busy_share=0.8,
        launch_gap_s=0.002,
        copies=(Copies(direction="host to device", calls=2, bytes=10**7, time_s=0.001),),
    )
    timed = run(FAST, 32)
    of_run = {
        "config": timed.config,
        "timed_record_id": timed.record_id,
        "resolved": timed.resolved,
        "environment": FAST,
        "complexity": timed.complexity,
    }
    cpu = samples.cpu_counters(flops=2 * 10**11)
    yield make.profile(
        "profile-whole",
        **of_run,
        ops=ops,
        cpu_counters=cpu,
        counters=samples.counters(*make.kernels(seconds=0.15)),
    )
    yield make.profile(
        "profile-killed", **of_run, outcome="crashed", reason="killed", ops=None, counters=None
    )


def _traces():
    """Two of one job, of which the second has a slower op and less idle time."""
    step = partial(samples.traced_step, "ProfilerStep#1")
    op = partial(samples.traced_op, kernels=("sgemm",))
    yield samples.trace_record(step(), ops=(op(), op(label="relu", op="relu", flops=None)))
    later = {"record_id": "trace-2", "source_file": "later.json"}
    yield samples.trace_record(
        step(wall_s=0.09, idle_s=0.02), ops=(op(time_s=0.02, exclusive_s=0.018),), **later
    )


def drawn(html):
    """What each figure of a page draws: a line for its name and axes, and one for each mark."""
    decoder, lines = json.JSONDecoder(), []
    for call in re.finditer(r'Plotly\.newPlot\(\s*"([^"]+)",\s*', html):
        marks, end = decoder.raw_decode(html, call.end())
        layout, _ = decoder.raw_decode(html, re.compile(r",\s*").match(html, end).end())
        axes = {name: _axis(of) for name, of in layout.items() if re.match("[xy]axis", name)}
        lines += [f"{call.group(1)}: {json.dumps(plain(axes), sort_keys=True)}"]
        lines += [f"  {json.dumps(_mark(one), ensure_ascii=False)}" for one in plain(marks)]
    return "\n".join(lines) + "\n"


def _axis(axis):
    kept = {name: axis[name] for name in ("type", "range") if name in axis}
    return {"label": axis.get("title", {}).get("text"), **kept}


def _mark(mark):
    """Where it stands, and once what it says there."""
    kept = {name: mark[name] for name in ("name", "x", "y", "yaxis") if mark.get(name)}
    for words in ("text", "hovertext"):
        if mark.get(words):
            kept[words] = [one for one in dict.fromkeys(np.atleast_1d(mark[words])) if one]
    return kept


@pytest.mark.usefixtures("unpainted")
def test_a_report_of_everything(kept, monkeypatch, mlproject_command, tmp_path):
    imported = list(published_records().values())[:3]
    records = [*_measurements(), *CEILINGS, *_profiles(), *_traces(), *imported]
    Server(monkeypatch, {"r9": UserError("run r9: no record.json")}, records=records)
    (tmp_path / "notes.md").write_text("# Why\n\nTo see it | whole.\n", encoding="utf-8")
    prices = ("--price", "lab=0.5/h", "--price", "fast=2.5 EUR/h spot")
    words = ("--title", "Everything", "--author", "A. Author", "--notes", "notes.md")
    code, printed, errors = mlproject_command("report", "--no-log", "--out", "out", *prices, *words)
    assert (code, errors) == (1, "")  # 1: a run is above its roof
    arguments = ("report", "--no-log", "--out", "out", "--format", "json")
    _, facts, _ = mlproject_command(*arguments, *prices, *words)
    out = tmp_path / "out"
    html, markdown = ((out / name).read_text("utf-8") for name in ("report.html", "report.md"))
    texts = {"report.txt": re.sub(r"Written [\d: UTC-]+\.", "Written today.", markdown, count=1)}
    for table in sorted((out / "tables").glob("*.csv")):
        texts[f"tables/{table.name}"] = rounded(table.read_text("utf-8"))
    texts["printed.txt"] = printed
    texts["printed.json"] = rounded(f"{json.dumps(json.loads(facts), indent=1)}\n")
    kept("report", {**texts, "figures.txt": drawn(html)})


def test_what_two_published_reports_show(kept):
    runs = published()
    lines = across_machines(runs).sentences
    for one in find_all(runs):
        lines += ["", f"{one.kind}: {one.headline}", *one.evidence, ", ".join(one.runs)]
    kept("published", {"findings.txt": "\n".join(lines) + "\n"})


def _nights():
    """Nights of one configuration, of which the second half are slower."""
    for night in range(12):
        yield make.run_record(
            f"night-{night}",
            step_s=(1.0 if night < 6 else 1.1) * (1 + 0.002 * (night % 3)),
            created=make.NOON + timedelta(days=night),
            settings={"campaign": f"c{night}"},
        )


def _repeats(name, env=FAST, slower=1.0, *, sizes=(16, 32, 64), settings=None):
    """Three repeats of each batch size; `slower` is a factor of all or of each."""
    factors = slower if isinstance(slower, dict) else dict.fromkeys(sizes, slower)
    return [
        run(env, batch, repeat=n, name=f"{name}-{batch}-{n}", slower=factors[batch],
            settings=settings or {})
        for batch in sizes
        for n in (1, 2, 3)
    ]  # fmt: skip


def test_what_commands_say(kept, mlproject_command):
    slower, adamw = {16: 0.9, 32: 1.0, 64: 1.1}, {"optimizer": "adamw"}
    oom = make.failed_record("oom", settings={"batch_size": 32}, environment=FAST)
    halved = [run(FAST, 16, repeat=n, name=f"six-{n}") for n in range(1, 7)]
    for folder, records in (
        ("old", _repeats("old")),
        ("new", _repeats("new", slower=slower, settings=adamw)),
        ("crashed", [*_repeats("crashed", sizes=(16,)), oom]),
        ("lab", [*CEILINGS, *_repeats("lab", LAB)]),
        ("quiet", [*halved, *_repeats("quiet", sizes=(32,)), run(FAST, 64)]),
        ("nights", _nights()),
    ):
        records_on_disk(Path(folder), *records)
    texts, priced = {}, ("--price", "lab=0.5/h", "--price", "fast=2.5/h 2025-01-01")
    asked = ("--arch", "resnet18", "--batch-size", 24, "--batch-size", 48)
    for name, *arguments in (
        ("compare", "records=old", "records=new"),
        ("compare", "records=old", "records=crashed"),
        ("compare", "records=lab", "records=old", "--across", "machine", *priced),
        ("compare", "--aa", "records=quiet"),
        ("trend", "records=nights"),
        ("predict", "--records", "old", *asked),
    ):
        words = re.findall(r"\w+", " ".join(arguments[:2]).replace("records", ""))
        file = "-".join([name, *words])
        forms = {"text": "txt", "json": "json", **({"markdown": "md.txt"} if "lab" in file else {})}
        for form, suffix in forms.items():
            code, text, errors = mlproject_command(name, *arguments, "--format", form)
            if form == "json":
                text = f"{json.dumps(json.loads(text), indent=1)}\n"
            texts[f"{file}.{suffix}"] = f"{rounded(text)}{errors}exit code {code}\n"
    kept("commands", texts)
