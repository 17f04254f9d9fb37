#!/usr/bin/env bash
# package: torch
# version: 2.15.0
# expected: torch.profiler costs the step that it records; the step after it runs as those before it
# guess: what the profiler keeps of a step is obtained within that step
# seen: glibc's heap is set to give nothing back, so a plain step obtains no page. The step after
#   each recorded one obtains thousands again, and so takes up to half as long again on a CPU: what
#   the profiler keeps at its end lies where that step had its tensors. The second one obtains few or none.
#   A schedule that compares a recorded step with the next one has the profiler's cost upside down.
#   Linux with glibc.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.15.0"
cd "$folder"
MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1 "$folder/venv/bin/python" - 2>/dev/null <<'END'
from resource import RUSAGE_SELF, getrusage

import torch
from torch.profiler import ProfilerActivity, profile

torch.set_num_threads(1)
blocks = [
    layer
    for _ in range(12)
    for layer in (torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU())
]
model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), *blocks)
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
images = torch.randn(4, 3, 112, 112)


def pages_of_a_step():
    before = getrusage(RUSAGE_SELF).ru_minflt
    optimizer.zero_grad()
    model(images).square().mean().backward()
    optimizer.step()
    return getrusage(RUSAGE_SELF).ru_minflt - before


for _ in range(8):
    plain = pages_of_a_step()
print("pages of a plain step", plain)
kept, nexts, seconds = [], [], []
for _ in range(6):
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        pages_of_a_step()
    kept.append(recorded)
    nexts.append(pages_of_a_step())
    seconds.append(pages_of_a_step())
print("of the first step after a recorded one", nexts, "of the second", seconds)
many = sum(pages > 500 for pages in nexts)
few = sorted(seconds)[3] < sorted(nexts)[3] / 2
raise SystemExit(not (plain < 100 and many >= 4 and few))
END
