#!/usr/bin/env bash
# package: torch, torchvision
# version: 2.15.0, 0.29.2
# expected: a program that trains eagerly never loads what only torch.compile needs
# guess: torch.compile's packages are loaded by the first call of torch.compile
# seen: `import torch` loads none of them. The first optimizer that is made, a plain SGD, loads
#   torch._dynamo, torch._inductor, torch.distributed.fsdp and sympy: 908 modules, in 0.6 to 1.0
#   times the processor time of `import torch` itself. A program without an optimizer pays as much
#   for `import torchvision`, whose roi_align asks one of them when it is imported.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.15.0" "torchvision==0.29.2"
cd "$folder"
cat > seen.py <<'END'
import sys
from time import process_time

COMPILER = ("torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "sympy")
began = process_time()
import torch

torch_s, before = process_time() - began, set(sys.modules)
linear = torch.nn.Linear(2, 2)
began = process_time()
if sys.argv[1] == "optimizer":
    torch.optim.SGD(linear.parameters(), 0.1)
else:
    import torchvision
more_s, more = process_time() - began, sys.modules.keys() - before
loaded = [name for name in COMPILER if name in more]
print(f"import torch: {torch_s:.2f} s of processor time; {sys.argv[1]}: {more_s:.2f} s, "
      f"{len(more)} modules, with {loaded}")
raise SystemExit(loaded != list(COMPILER) or len(more) < 500)
END
"$folder/venv/bin/python" seen.py optimizer
"$folder/venv/bin/python" seen.py torchvision
