"""The loop that a PyTorch user would write by hand for one configuration, and nothing else.

A model of torchvision on images with SGD, a causal language model of transformers on tokens with
AdamW (`--arch hf:gpt2`), or two small layers (`--arch small`). With `--track` it logs each step and
system metrics by MLflow's client. Prints JSON: samples/s of the timed iterations, the median step.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

import torch
from torch.nn import functional

Loss = Callable[[], torch.Tensor]


def small(batch_size: int, device: torch.device) -> tuple[torch.nn.Module, Loss]:
    """Return two layers and their loss on a batch of vectors."""
    layers = torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
    model = torch.nn.Sequential(*layers).to(device)
    inputs = torch.randn(batch_size, 256, device=device)
    labels = torch.randint(10, (batch_size,), device=device)
    return model, lambda: functional.cross_entropy(model(inputs), labels)


def images(
    arch: str, batch_size: int, size: int, device: torch.device
) -> tuple[torch.nn.Module, Loss]:
    """Return a model of torchvision and its loss on a batch of images."""
    import torchvision

    model = torchvision.models.get_model(arch).to(device)
    model = model.to(memory_format=torch.channels_last)
    inputs = torch.randn(batch_size, 3, size, size, device=device)
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch_size,), device=device)
    return model, lambda: functional.cross_entropy(model(inputs), labels)


def tokens(
    name: str, batch_size: int, seq_len: int, device: torch.device
) -> tuple[torch.nn.Module, Loss]:
    """Return a causal language model of transformers and its loss on a batch of tokens."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = CONFIG_MAPPING[name](use_cache=False)
    model = AutoModelForCausalLM.from_config(config).to(device).train()
    batch = torch.randint(config.vocab_size, (batch_size, seq_len), device=device)
    return model, lambda: model(input_ids=batch, labels=batch).loss


def trained(given: argparse.Namespace, device: torch.device) -> tuple[Loss, torch.optim.Optimizer]:
    """Return the loss of the model that is asked for, and its optimizer."""
    if given.arch.startswith("hf:"):
        model, loss_of = tokens(given.arch[3:], given.batch_size, given.seq_len, device)
        return loss_of, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    model, loss_of = (
        small(given.batch_size, device)
        if given.arch == "small"
        else images(given.arch, given.batch_size, given.image_size, device)
    )
    moving = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4, "fused": True}
    return loss_of, torch.optim.SGD(model.parameters(), **moving)


def main() -> None:
    """Train `--arch` for `--iters` iterations after `--warmup-iters`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--track", action="store_true")
    parser.add_argument("--warmup-iters", type=int, default=3)
    parser.add_argument("--iters", type=int, default=20)
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    if given.threads:
        torch.set_num_threads(given.threads)
    loss_of, optimizer = trained(given, device)

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=given.bf16):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    run: AbstractContextManager[object] = nullcontext()
    if given.track:
        import mlflow

        run = mlflow.start_run(log_system_metrics=True)
        mlflow.log_params(vars(given))
    ends_s = []
    with run:
        for _ in range(given.warmup_iters):
            step()
        wait()
        begin = time.perf_counter()
        for number in range(given.iters):
            step()
            ends_s.append(time.perf_counter())
            if given.track:
                mlflow.log_metric("elapsed_s", ends_s[-1] - begin, step=number)
        wait()
        seconds = time.perf_counter() - begin
    steps_s = [end - start for start, end in pairwise(ends_s)] or [seconds]
    rate, step_ms = given.iters * given.batch_size / seconds, 1e3 * statistics.median(steps_s)
    print(json.dumps({"samples_per_s": rate, "step_ms": step_ms}), flush=True)


if __name__ == "__main__":
    main()
