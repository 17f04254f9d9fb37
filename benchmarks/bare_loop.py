"""The loop that a PyTorch user would write by hand for one configuration, and nothing else.

A model of torchvision on images with SGD, or a causal language model of transformers on tokens with
AdamW (`--arch hf:gpt2`). Prints JSON: samples/s of the timed iterations, and the clock reading at
the first iteration.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch.nn import functional

Loss = Callable[[], torch.Tensor]


def images(arch: str, batch_size: int, device: torch.device) -> tuple[torch.nn.Module, Loss]:
    """Return a model of torchvision and its loss on a batch of images."""
    import torchvision

    model = torchvision.models.get_model(arch).to(device)
    model = model.to(memory_format=torch.channels_last)
    inputs = torch.randn(batch_size, 3, 224, 224, device=device)
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


def main() -> None:
    """Train `--arch` for `--iters` iterations after `--warmup-iters`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--warmup-iters", type=int, default=3)
    parser.add_argument("--iters", type=int, default=20)
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    package, _, name = given.arch.rpartition(":")
    if package == "hf":
        model, loss_of = tokens(name, given.batch_size, given.seq_len, device)
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            model.parameters(), lr=1e-4, weight_decay=0.01, fused=True
        )
    else:
        model, loss_of = images(name, given.batch_size, device)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True
        )

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=given.bf16):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    first_s = time.perf_counter()
    for _ in range(given.warmup_iters):
        step()
    wait()
    begin = time.perf_counter()
    for _ in range(given.iters):
        step()
    wait()
    seconds = time.perf_counter() - begin
    rate = given.iters * given.batch_size / seconds
    print(json.dumps({"samples_per_s": rate, "first_iteration_clock_s": first_s}))


if __name__ == "__main__":
    main()
