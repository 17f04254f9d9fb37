"""The kernel that reads a GPU's caches, without a GPU: interpreted, and compiled to PTX."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton comes with torch on Linux")

PROJECT = Path(__file__).resolve().parents[3]

INTERPRETED = """
import torch
from bench.roofs.gpu_reader import BLOCK, read

programs, rounds = 3, 5
values = torch.arange(programs * 2 * BLOCK, dtype=torch.float32) % 97
sums = torch.empty(programs * BLOCK)
read(values, sums, programs=programs, elements=2 * BLOCK, own_regions=True, rounds=rounds)
blocks = values.view(programs, 2, BLOCK)
assert torch.equal(sums.view(programs, BLOCK), 3 * blocks[:, 0] + 2 * blocks[:, 1])

values = torch.arange(4 * BLOCK, dtype=torch.float32) % 97
read(values, sums, programs=programs, elements=4 * BLOCK, own_regions=False, rounds=rounds)
blocks = values.view(4, BLOCK)
for program in range(programs):
    expected = sum(blocks[(program + number) % 4] for number in range(rounds))
    assert torch.equal(sums.view(programs, BLOCK)[program], expected)
print("right")
"""
COMPILED = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from bench.roofs import gpu_reader

numbers = ("elements", "apart", "ahead", "rounds")
past_l1 = sys.argv[2] == "past"
source = ASTSource(
    fn=gpu_reader._read,
    signature={"data": "*fp32", "sums": "*fp32", **dict.fromkeys(numbers, "i32"),
               "block": "constexpr", "past_l1": "constexpr"},
    constexprs={"block": gpu_reader.BLOCK, "past_l1": past_l1},
    attrs={(place,): [["tt.divisibility", 16]] for place in range(6)},
)
target = GPUTarget("cuda", int(sys.argv[1]), 32)
print(triton.compile(source, target=target, options={"num_warps": 8}).asm["ptx"])
"""


def output_of(program, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(PROJECT), **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_program_sums_exactly_the_blocks_that_it_is_counted_to_read():
    assert output_of(INTERPRETED, TRITON_INTERPRET="1") == "right\n"


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["75", "90", "120"])
@pytest.mark.parametrize(
    ("way", "load"), [("own", "ld.global.v4.b32"), ("past", "ld.global.cg.v4.b32")]
)
def test_the_loop_loads_16_bytes_at_a_time_from_the_level_that_is_meant(
    tmp_path, capability, way, load
):
    ptx = output_of(COMPILED, capability, way, TRITON_CACHE_DIR=str(tmp_path))
    labels = {found[1]: found.start() for found in re.finditer(r"^(\$L\w+):", ptx, re.MULTILINE)}
    jumps = [(found[1], found.start()) for found in re.finditer(r"\bbra\S*\s+(\$L\w+);", ptx)]
    (loop,) = [ptx[labels[name] : end] for name, end in jumps if labels[name] < end]
    assert re.findall(r"ld\.global[\w.]*", loop) == [load, load]
    assert re.findall(r"[ls][td]\.global[\w.]*", ptx) == [load, load] + ["st.global.v4.b32"] * 2
