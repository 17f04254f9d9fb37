#!/usr/bin/env bash
# package: torch
# version: 2.15.0
# expected: autocast runs matrix products in its lower precision; torch.nn.functional.grouped_mm
#   is the product of a mixture of experts, so it runs there as bmm does
# guess: bfloat16, as every other product
# seen: bmm gives bfloat16 and grouped_mm float32: autocast has no rule for it. The experts of a
#   model, most of its FLOP, stay in single precision while the run is called mixed precision.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.15.0"
cd "$folder"
"$folder/venv/bin/python" - <<'END'
import torch
from torch.nn.functional import grouped_mm

tokens, experts = torch.randn(8, 16), torch.randn(2, 16, 32)
ends = torch.tensor([4, 8], dtype=torch.int32)  # four tokens for each expert
with torch.autocast("cpu", dtype=torch.bfloat16):
    one_by_one = torch.bmm(tokens.view(2, 4, 16), experts).dtype
    grouped = grouped_mm(tokens, experts, offs=ends).dtype
print("bmm", one_by_one, "grouped_mm", grouped)
raise SystemExit((one_by_one, grouped) != (torch.bfloat16, torch.float32))
END
