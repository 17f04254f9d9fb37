import json
import os
import subprocess
import sys

import pytest

from bench.profilers.ncu import NcuTool, kernel_set

N = 1024
STEP = f"""
import json, sys
import torch
from bench.training.devices import open_device
from bench.profilers.fingerprint import work_set
from bench.profilers.ncu.profiled_range import profiled_range

device = open_device("cuda")
torch.manual_seed(0)
left, right = (torch.randn({N}, {N}, device="cuda") for _ in range(2))

def step():
    torch.softmax(left @ right + 1, dim=1)

step()
if sys.argv[1] == "kineto":
    print(work_set(step, device).model_dump_json())
else:
    with profiled_range(device):
        step()
"""


@pytest.mark.cuda
@pytest.mark.slow
def test_a_product_counted_by_ncu_itself(tmp_path):
    tool = NcuTool()
    if reason := tool.obstacle("cuda"):
        pytest.skip(reason)
    known = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", STEP]
    for attempt in tool.attempts(tmp_path):
        inside = tmp_path / attempt.name
        inside.mkdir()
        with (inside / "console.log").open("wb") as console:
            subprocess.run(
                [*attempt.prefix, *command, "ncu"],
                stdout=console,
                stderr=subprocess.STDOUT,
                env={**known, **attempt.environment},
                check=False,
            )
    counters = tool.read(tmp_path, ())
    product = 2 * N**3
    assert product <= counters.flops <= 1.05 * product
    assert counters.dram_bytes >= 2 * 4 * N**2  # both factors are read once at least
    kineto = subprocess.run(
        [*command, "kineto"], capture_output=True, text=True, env=known, check=True
    )
    assert kernel_set(counters).counts == json.loads(kineto.stdout.splitlines()[-1])["counts"]
