#!/usr/bin/env bash
# package: lightning-fabric, torchtitan
# version: 2.6.6, 0.3.0 (torch 2.15.0)
# expected: the peak that a framework divides by for MFU is that of the GPU whose name torch gives,
#   dense, on tensor cores; or it says that it does not know the GPU
# guess: both have one peak within 5 % for each NVIDIA GPU that both name; None for the others
# seen: so it is of an A100 and an H100 SXM alone. torchtitan divides by an A100's 312 TFLOP/s for
#   every name that it does not know, with one line in the log. Its row for the L40S is never met: it
#   looks for "l40s" in small letters. Lightning takes an L40S for an L4 (a third of its 362) and an
#   H100 NVL for two of them. Of RTX cards and the A40 it has the rates without tensor cores: a
#   quarter of an A6000's 154.8, half of a 4090's 165.2. So one bf16 step on an L40S has an MFU of 0.40
#   by one and of 1.03 by the other.
#                                      Lightning  torchtitan, TFLOP/s in bf16
#     NVIDIA A100-SXM4-80GB                  312         312
#     NVIDIA H100 80GB HBM3                989.4         989
#     NVIDIA H100 NVL                     1978.8         835
#     NVIDIA H200                           None         989
#     NVIDIA L4                              121         312
#     NVIDIA L40S                            121         312
#     NVIDIA A40                            37.4         312
#     NVIDIA RTX A6000                      38.7      154.85
#     NVIDIA GeForce RTX 4090               82.6         312
#     NVIDIA GB10                           None         312
# The name of the GPU is given in place of one. On a machine with an H100 torchtitan asks lspci.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install --quiet --disable-pip-version-check)
"${pip[@]}" torch==2.15.0 lightning-fabric==2.6.6
"${pip[@]}" --no-deps torchtitan==0.3.0
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'END'
import sys
from unittest import mock

import torch
from lightning_fabric.utilities.throughput import get_available_flops
from torchtitan.tools.utils import get_peak_flops

SEEN = {
    "NVIDIA A100-SXM4-80GB": (312, 312),
    "NVIDIA H100 80GB HBM3": (989.4, 989),
    "NVIDIA H100 NVL": (1978.8, 835),
    "NVIDIA H200": (None, 989),
    "NVIDIA L4": (121, 312),
    "NVIDIA L40S": (121, 312),
    "NVIDIA A40": (37.4, 312),
    "NVIDIA RTX A6000": (38.7, 154.85),
    "NVIDIA GeForce RTX 4090": (82.6, 312),
    "NVIDIA GB10": (None, 312),
}


def tflops(peak):
    return None if peak is None else round(peak / 1e12, 2)


changed = False
for name, seen in SEEN.items():
    with mock.patch("torch.cuda.get_device_name", return_value=name):
        by_lightning = tflops(get_available_flops(torch.device("cuda"), torch.bfloat16))
    peaks = by_lightning, tflops(get_peak_flops(name))
    print(f"{name:30} {peaks[0]!s:>10} {peaks[1]!s:>10}")
    changed = changed or peaks != seen
sys.exit("the peaks changed" if changed else 0)
END
