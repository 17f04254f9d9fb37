#!/usr/bin/env bash
# package: torchvision, torch
# version: 0.29.2, 2.15.0
# expected: a program that builds an eager resnet18 loads PyTorch, torchvision and Pillow
# guess: torch.compile's packages are loaded by the first call of torch.compile
# seen: `import torch` loads none of them. `import torchvision` alone loads about a thousand modules
#   more: torch._dynamo, torch._inductor, torch.distributed.fsdp and sympy, because
#   torchvision.ops.roi_align asks one of them, when it is imported, whether it may compile.
#   It takes about as much processor time as `import torch` itself. timm pays it too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.15.0" "torchvision==0.29.2"
cd "$folder"
"$folder/venv/bin/python" - <<'END'
import sys
from time import process_time

compiler = ("torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "sympy")
began = process_time()
import torch

torch_s, torch_modules = process_time() - began, set(sys.modules)
began = process_time()
import torchvision

more_s, more = process_time() - began, sys.modules.keys() - torch_modules
before = [name for name in compiler if name in torch_modules]
after = [name for name in compiler if name in sys.modules]
print(f"import torch: {torch_s:.2f} s of processor time, of the compiler's {before}")
print(f"then import torchvision: {more_s:.2f} s, {len(more)} modules, of the compiler's {after}")
raise SystemExit(before != [] or after != list(compiler) or len(more) < 500)
END
