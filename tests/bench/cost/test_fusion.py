"""The kernels of the fused traffic could run."""

from collections import defaultdict
from graphlib import TopologicalSorter

import pytest
from generated_steps import steps
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cost import StepSpec
from bench.cost.fake_step import record_step
from bench.cost.passes import Role
from bench.cost.traffic.fusion import schedule


def _check(passes):
    placed = schedule(passes)
    assert [item for item, _ in placed] == list(passes)
    makers = {access.value: (item, kernel) for item, kernel in placed for access in item.writes}
    needs, big_ops, phases = defaultdict(set), defaultdict(int), {}
    for item, kernel in placed:
        big_ops[kernel] += item.role in (Role.CONTRACTION, Role.OPAQUE)
        assert phases.setdefault(kernel, item.phase) == item.phase
        for access in item.reads:
            maker, maker_kernel = makers.get(access.value, (None, None))
            if maker is None:
                continue
            if maker_kernel is kernel:
                assert maker.role is not Role.REDUCTION  # its result comes after its kernel
            else:
                needs[kernel].add(maker_kernel)
    assert max(big_ops.values()) <= 1
    TopologicalSorter(needs).prepare()  # raises where kernels wait for each other


@given(st.one_of(steps(longest=12), steps(longest=12, phases=("forward",))))
@settings(max_examples=300)
@pytest.mark.slow
def test_kernels_of_random_steps_could_run(step):
    _check(step[0])


@pytest.mark.parametrize("arch", ["resnet18", pytest.param("swin_t", marks=pytest.mark.long)])
@pytest.mark.slow
def test_kernels_of_a_model_could_run(arch):
    step = record_step(StepSpec(arch, batch_size=2, precision="amp", fused_optimizer=False))
    _check(step.passes)
