"""A whole report, and what commands say of runs like its own, against the files in tests/golden.

`pytest tests/analysis/report/test_golden.py --golden` rewrites the files; look at the diff.
Numbers have nine digits there, since further ones differ between processors. Figures are kept as
the data that a page draws.
"""

import base64
import json
import re
from datetime import timedelta
from functools import partial
from pathlib import Path

import factories as make
import numpy as np
import pytest
import samples
from observed import Server, published_records, records_on_disk

from bench.errors import UserError
from bench.records import Copies, Finding

GOLDEN = Path(__file__).parents[2] / "golden"

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
    drift = Finding(code="drift", level="suspect", message="the last third ran slower")
    yield run(RENTED, 64, name="drifts", verdict=make.suspect(drift))
    other = make.environment(label="arm", machine="arm64")
    yield make.run_record("roofless", environment=other)
    yield make.failed_record("fast-oom", environment=FAST)
    yield make.failed_record("crashed", outcome="crashed", reason="RuntimeError: no")


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


@pytest.fixture
def kept(request):
    """Holds texts, by the names of their files, against all files of a folder, or writes those."""

    def check(folder, texts):
        folder = GOLDEN / folder
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.*")}
        if request.config.getoption("golden"):
            for path in files.values():
                path.unlink()
            for name, text in texts.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text, encoding="utf-8", newline="\n")
            return
        assert sorted(texts) == sorted(files)
        for name, path in files.items():
            assert texts[name].splitlines() == path.read_text("utf-8").splitlines(), name

    return check


def rounded(text):
    """Numbers with a long fraction, to nine digits."""
    return re.sub(r"-?\d+\.\d{6,}(e[+-]\d+)?", lambda found: f"{float(found.group()):.9g}", text)


def _plain(value):
    """Plotly's data with arrays as lists and numbers of nine digits."""
    if isinstance(value, dict):
        if "bdata" in value:
            array = np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
            return _plain(array.tolist())
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def drawn(html):
    """What each figure of a page draws: a line for its name and axes, and one for each mark."""
    decoder, lines = json.JSONDecoder(), []
    for call in re.finditer(r'Plotly\.newPlot\(\s*"([^"]+)",\s*', html):
        marks, end = decoder.raw_decode(html, call.end())
        layout, _ = decoder.raw_decode(html, re.compile(r",\s*").match(html, end).end())
        axes = {name: _axis(of) for name, of in layout.items() if re.match("[xy]axis", name)}
        lines += [f"{call.group(1)}: {json.dumps(_plain(axes), sort_keys=True)}"]
        lines += [f"  {json.dumps(_mark(one), ensure_ascii=False)}" for one in _plain(marks)]
    return "\n".join(lines) + "\n"


def _axis(axis):
    kept = {name: axis[name] for name in ("type", "range") if name in axis}
    return {"label": axis.get("title", {}).get("text"), **kept}


def _mark(mark):
    """Where it stands, and once what it says there."""
    kept = {name: mark[name] for name in ("name", "x", "y", "yaxis") if mark.get(name)}
    for bar in ("error_x", "error_y"):
        kept |= {f"{bar}_{k}": v for k, v in mark.get(bar, {}).items() if k.startswith("array")}
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
    out = tmp_path / "out"
    html, markdown = ((out / name).read_text("utf-8") for name in ("report.html", "report.md"))
    texts = {"report.txt": re.sub(r"Written [\d: UTC-]+\.", "Written today.", markdown, count=1)}
    for table in sorted((out / "tables").glob("*.csv")):
        texts[f"tables/{table.name}"] = rounded(table.read_text("utf-8"))
    texts["printed.txt"] = printed
    kept("report", {**texts, "figures.txt": drawn(html)})


def _nights():
    """Nights of one configuration, of which the second half are slower."""
    for night in range(12):
        yield make.run_record(
            f"night-{night}",
            step_s=(1.0 if night < 6 else 1.1) * (1 + 0.002 * (night % 3)),
            created=make.NOON + timedelta(days=night),
            settings={"campaign": f"c{night}"},
        )


def test_what_commands_say(kept, mlproject_command):
    repeats = [(batch, n) for batch in (16, 32, 64) for n in (1, 2, 3)]
    slower = {16: 0.9, 32: 1.0, 64: 1.1}
    old = [run(FAST, batch, repeat=n) for batch, n in repeats]
    other = {"settings": {"optimizer": "adamw"}}
    new = [
        run(FAST, batch, repeat=n, name=f"new-{batch}-{n}", slower=slower[batch], **other)
        for batch, n in repeats
    ]
    for folder, records in (("old", old), ("new", new), ("nights", _nights())):
        records_on_disk(Path(folder), *records)
    texts = {}
    asked = ("--arch", "resnet18", "--batch-size", 24, "--batch-size", 48)
    for name, arguments in (
        ("compare", ("records=old", "records=new")),
        ("trend", ("records=nights",)),
        ("predict", ("--records", "old", *asked)),
    ):
        for form, suffix in (("text", "txt"), ("json", "json")):
            code, text, errors = mlproject_command(name, *arguments, "--format", form)
            if form == "json":
                text = f"{json.dumps(json.loads(text), indent=1)}\n"
            texts[f"{name}.{suffix}"] = f"{rounded(text)}{errors}exit code {code}\n"
    kept("commands", texts)
