"""What `mlproject doctor --measure` looks at in a process of its own.

`python -m bench.worker.contact_programs losses cuda` prints what `losses("cuda")` returns, as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import types
from pathlib import Path

import torch

from bench.config import RunConfig
from bench.records.journal import JournalWriter
from bench.training.precision import AmpFp16
from bench.training.step import TrainingStep, make_optimizer
from bench.training.workloads import find_workload
from bench.worker.step_setup import StepSetup


def losses(device: str) -> list[list[float]]:
    """Return six losses of amp-fp16 whose first step overflows: optimizer fused, then plain."""
    return [_losses(device, fused=fused) for fused in (True, False)]


def _losses(device: str, *, fused: bool) -> list[float]:
    torch.manual_seed(0)
    labels = torch.randint(1000, (32,), device=device)
    if device == "cuda":
        import torchvision

        model = torchvision.models.resnet50(num_classes=1000)
        batches = [torch.randn(32, 3, 224, 224, device=device)] * 6
    else:
        model, images = torch.nn.Linear(4, 1000), torch.ones(32, 4)
        batches = [images * 3e4] + [images] * 5
    optimizer = make_optimizer(model.to(device), "sgd", fused=fused)
    step = TrainingStep(find_workload("resnet50"), model, optimizer, AmpFp16(device))
    data = iter(batches)
    return [float(step(lambda: (next(data), labels))) for _ in batches]


def product_rates() -> list[float]:
    """Return FLOP/s of one product in bf16 on CUDA, second by second."""
    size, rates = 8192, []
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    torch.mm(a, b, out=c)
    torch.cuda.synchronize()
    for _ in range(6):
        products, begin_s = 0, time.perf_counter()
        while time.perf_counter() - begin_s < 1:
            for _ in range(20):
                torch.mm(a, b, out=c)
            torch.cuda.synchronize()
            products += 20
        rates.append(products * 2 * size**3 / (time.perf_counter() - begin_s))
    return rates


def product_error(backend: str) -> float:
    """Return the relative error of a product beside a model whose file has turned TF32 on."""

    def model() -> torch.nn.Module:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))

    own = types.ModuleType("own_switches")
    own.__dict__["model"] = model
    sys.modules["own_switches"] = own
    settings = {"backend": backend, "precision": "fp32", "batch_size": 2, "image_size": 32}
    config = RunConfig(arch="own_switches:model", **settings)
    with tempfile.TemporaryDirectory() as folder:
        journal = JournalWriter(Path(folder) / "journal.jsonl")
        with StepSetup(config, journal).opened() as ready:
            ready.step()
            a = torch.randn(512, 512, device=ready.device.torch_device)
            exact = a.double() @ a.double()
            return float((a @ a - exact).norm() / exact.norm())


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
