#!/usr/bin/env bash
# package: torch
# version: 2.15.0
# expected: autocast around a whole training loop does what it does around each forward pass, and
#   casts a little more
# guess: the loss falls as well, perhaps more slowly, as gradients are cast too
# seen: the loss never changes. A weight is cast once per autocast block and the copy is kept until
#   the outermost block ends, so every step computes with the first weights, while the optimizer
#   moves the real ones. Nothing warns. Such a loop is also faster than an honest one, as it casts
#   no weight again.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.15.0"
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'END'
from contextlib import nullcontext

import torch


def losses(around_loop, around_forward):
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    given, wanted, seen = torch.randn(256, 64), torch.randn(256, 1), []
    with around_loop():
        for _ in range(40):
            optimizer.zero_grad()
            with around_forward():
                loss = (model(given) - wanted).square().mean()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
    return seen


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


each = losses(nullcontext, autocast)
whole = losses(autocast, nullcontext)
print(f"around each forward pass: first loss {each[0]:.4f}, last {each[-1]:.4f}")
print(f"around the whole loop:    first loss {whole[0]:.4f}, last {whole[-1]:.4f}")
raise SystemExit(not (each[-1] < 0.9 * each[0] and len(set(whole)) == 1))
END
