#!/usr/bin/env bash
# package: torch
# version: 2.15.0
# expected: a tensor that has nothing to do with the training, made and dropped once, changes no
#   later step; if it did, a larger tensor would do more than a small one
# guess: steps obtain fewer pages afterwards, by half; a tensor of 256 MB does as much as one of 30 MB
# seen: after one tensor of 30 MB was made and dropped, a step obtains no page where it obtained
#   thousands, and takes a quarter less processor time, for the rest of the process. One of 256 MB
#   changes nothing. glibc takes the size of the largest block that was given back, up to 32 MB, as
#   the size from which blocks are obtained again each time. So two equal loops on a CPU differ by a
#   quarter by what their process did before, such as loading a checkpoint. Linux with glibc.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.15.0"
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'END'
import time
from resource import RUSAGE_SELF, getrusage
from statistics import median

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 100),
)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
images, labels = torch.rand(8, 3, 64, 64), torch.arange(8)


def of_a_step():
    pages, times_s = [], []
    for _ in range(40):
        faults, began_s = getrusage(RUSAGE_SELF).ru_minflt, time.process_time()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        times_s.append(time.process_time() - began_s)
        pages.append(getrusage(RUSAGE_SELF).ru_minflt - faults)
    return median(pages[5:]), median(times_s[5:])


def show(what):
    pages, seconds = of_a_step()
    print(f"{what}: {pages:.0f} pages and {1e3 * seconds:.1f} ms of processor time a step")
    return pages, seconds


first = show("at first")
torch.empty(256 * 2**20, dtype=torch.uint8)
large = show("after a tensor of 256 MB was dropped")
torch.empty(30 * 2**20, dtype=torch.uint8)
small = show("after a tensor of 30 MB was dropped")
same = min(first[0], large[0]) > 1000 and small[0] < 100
raise SystemExit(not (same and small[1] < 0.93 * min(first[1], large[1])))
END
