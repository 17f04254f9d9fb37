"""The kernel that reads a GPU's caches, without a GPU: interpreted, and compiled to PTX."""

import json
import re

import pytest
from worker_processes import output_of

pytest.importorskip("triton", reason="Triton comes with torch on Linux")

INTERPRETED = """
import torch
from bench.roofs.cache_roofs import GPU_BLOCK as BLOCK
from bench.roofs.gpu_reader import read

programs, rounds = 3, 5
values = torch.arange(programs * 2 * BLOCK, dtype=torch.float32) % 97
sums = torch.empty(programs * BLOCK)
read[programs,](values, sums, 2 * BLOCK, 2 * BLOCK, 0, rounds, block=BLOCK, past_l1=False)
blocks = values.view(programs, 2, BLOCK)
assert torch.equal(sums.view(programs, BLOCK), 3 * blocks[:, 0] + 2 * blocks[:, 1])

values = torch.arange(4 * BLOCK, dtype=torch.float32) % 97
read[programs,](values, sums, 4 * BLOCK, 0, BLOCK, rounds, block=BLOCK, past_l1=True)
blocks = values.view(4, BLOCK)
for program in range(programs):
    expected = sum(blocks[(program + number) % 4] for number in range(rounds))
    assert torch.equal(sums.view(programs, BLOCK)[program], expected)
print("right")
"""
COMPILED = """
import itertools, json, os
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from bench.roofs import gpu_reader
from bench.roofs.cache_roofs import GPU_BLOCK

numbers = ("elements", "region_stride", "start_stride", "rounds")
found = []
for capability, past_l1 in itertools.product(json.loads(os.environ["CAPABILITIES"]), (False, True)):
    source = ASTSource(
        fn=gpu_reader.read,
        signature={"data": "*fp32", "sums": "*fp32", **dict.fromkeys(numbers, "i32"),
                   "block": "constexpr", "past_l1": "constexpr"},
        constexprs={"block": GPU_BLOCK, "past_l1": past_l1},
        attrs={(place,): [["tt.divisibility", 16]] for place in range(6)},
    )
    compiled = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 8}
    )
    found.append((past_l1, compiled.asm["ptx"]))
print(json.dumps(found))
"""


@pytest.mark.slow
def test_each_program_sums_exactly_the_blocks_that_it_is_counted_to_read():
    assert output_of(INTERPRETED, TRITON_INTERPRET="1") == "right\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "capabilities", ["[90]", pytest.param("[75, 120]", marks=pytest.mark.long)]
)
def test_the_loop_loads_16_bytes_at_a_time_from_the_level_that_is_meant(tmp_path, capabilities):
    settings = {"CAPABILITIES": capabilities, "TRITON_CACHE_DIR": str(tmp_path)}
    for past_l1, ptx in json.loads(output_of(COMPILED, **settings)):
        load = "ld.global.cg.v4.b32" if past_l1 else "ld.global.v4.b32"
        labels = {name[1]: name.start() for name in re.finditer(r"^(\$L\w+):", ptx, re.MULTILINE)}
        jumps = [(to[1], to.start()) for to in re.finditer(r"\bbra\S*\s+(\$L\w+);", ptx)]
        (loop,) = [ptx[labels[name] : end] for name, end in jumps if labels[name] < end]
        assert re.findall(r"ld\.global[\w.]*", loop) == [load, load]
        stored = ["st.global.v4.b32"] * 2
        assert re.findall(r"[ls][td]\.global[\w.]*", ptx) == [load, load, *stored]
