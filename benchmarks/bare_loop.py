"""The loop that a PyTorch user would write by hand for one configuration, and nothing else.

Prints JSON: images/s of the timed iterations, and the clock reading at the first iteration.
"""

import argparse
import json
import time

import torch
import torchvision
from torch.nn import functional


def main() -> None:
    """Train `--arch` for `--iters` iterations after `--warmup-iters`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--warmup-iters", type=int, default=3)
    parser.add_argument("--iters", type=int, default=20)
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    model = torchvision.models.get_model(given.arch).to(device)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True
    )
    images = torch.randn(given.batch_size, 3, 224, 224, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(1000, (given.batch_size,), device=device)

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=given.bf16):
            loss = functional.cross_entropy(model(images), labels)
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
    print(json.dumps({"images_per_s": rate, "first_iteration_clock_s": first_s}))


if __name__ == "__main__":
    main()
