#!/usr/bin/env bash
# package: torch
# version: 2.15.0
# expected: torch.backends.cudnn.flags(deterministic=True) makes cuDNN deterministic within the
#   block and leaves the other switches as the program has set them
# guess: it sets only what it is given
# seen: it sets every switch that it is not given to a default of its own: cuDNN is off, its
#   benchmark is off, and TF32, which the program had turned off, is on again. A run that asks for
#   determinism alone is another run in arithmetic and in kernels. No GPU is needed to see it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.15.0"
cd "$folder"
"$folder/venv/bin/python" - <<'END'
from torch.backends import cudnn


def switches():
    names = ("enabled", "benchmark", "deterministic", "allow_tf32")
    return {name: getattr(cudnn, name) for name in names}


cudnn.benchmark, cudnn.allow_tf32 = True, False
before = switches()
with cudnn.flags(deterministic=True):
    within = switches()
print("before", before)
print("within", within)
expected = {"enabled": False, "benchmark": False, "deterministic": True, "allow_tf32": True}
raise SystemExit(within != expected or switches() != before)
END
