"""The compulsory traffic against its definition, by hand, and against machines with a cache."""

from bisect import bisect_right
from collections import defaultdict
from itertools import combinations, pairwise

import pytest
from generated_steps import steps, tiny
from hypothesis import assume, given
from hypothesis import strategies as st

from bench.cost import StepSpec, step_complexity
from bench.cost.fake_step import record_step
from bench.cost.passes import Role
from bench.cost.traffic.floor import compulsory_bytes
from bench.cost.traffic.fusion import fused_bytes


def _cached_traffic(passes, lasting, cache_bytes):
    """Traffic of a machine that runs the passes one by one and evicts what it needs last.

    It can keep any part of a value, reads nothing twice within a pass, and never writes what
    no later pass reads: better than any real cache.
    """
    uses = defaultdict(list)
    for at, item in enumerate(passes):
        for access in item.reads:
            uses[access.value].append(at)
    for value in lasting:
        uses[value].append(len(passes))
    kept, dirty, traffic = {}, {}, 0
    for now, item in enumerate(passes):
        for access in item.reads:
            held = kept.get(access.value, 0)
            traffic += max(0, access.size_bytes - held)
            kept[access.value] = max(held, access.size_bytes)
        for access in item.writes:
            kept[access.value] = dirty[access.value] = access.size_bytes
        next_use = {
            value: uses[value][at]
            for value in kept
            if (at := bisect_right(uses[value], now)) < len(uses[value])
        }
        room = cache_bytes
        for value in sorted(next_use, key=next_use.__getitem__):
            kept[value] = min(kept[value], room)
            room -= kept[value]
            written = max(0, dirty.get(value, 0) - kept[value])
            dirty[value] = dirty.get(value, 0) - written
            traffic += written
        kept = {value: kept[value] for value in next_use}
    return traffic


def _best_of_all_cuts(passes, sizes, lasting, cache_bytes):
    """The definition, for passes that are all contractions: every way to cut them, tried."""
    born = {access.value: at for at, item in enumerate(passes) for access in item.writes}
    uses = [{access.value for access in item.reads} for item in passes]
    best = 0
    for cuts in range(len(passes)):
        for inner in combinations(range(1, len(passes)), cuts):
            total = 0
            for start, end in pairwise((0, *inner, len(passes))):
                needed = set().union(*uses[start:end])
                later = set().union(*uses[end:], lasting)
                reads = sum(sizes[v] for v in needed if born.get(v, -1) < start)
                writes = sum(sizes[v] for v in later if start <= born.get(v, -1) < end)
                total += max(0, reads - cache_bytes) + max(0, writes - cache_bytes)
            best = max(best, total)
    return best


@given(steps(roles=(Role.CONTRACTION,)), st.integers(0, 200))
@pytest.mark.slow
def test_floor_is_the_best_of_all_cuts(step, cache_bytes):
    passes, sizes, lasting = step
    assume([item.phase for item in passes].count("optimizer") == 1)  # it is one op in any case
    expected = _best_of_all_cuts(passes, sizes, lasting, cache_bytes)
    assert compulsory_bytes(passes, lasting, cache_bytes) == expected


@given(steps(), st.integers(0, 200))
def test_no_machine_moves_less_than_the_floor(step, cache_bytes):
    passes, _, lasting = step
    floor = compulsory_bytes(passes, lasting, cache_bytes)
    assert floor <= _cached_traffic(passes, lasting, cache_bytes)


@given(steps(), st.integers(0, 200))
def test_floor_fused_and_eager_are_in_order(step, cache_bytes):
    passes, sizes, lasting = step
    eager = sum(access.size_bytes for item in passes for access in (*item.reads, *item.writes))
    floor = compulsory_bytes(passes, lasting, cache_bytes)
    shares = fused_bytes(passes, sizes, lasting)
    assert min(shares) >= 0
    assert floor <= sum(shares) <= eager
    assert floor <= compulsory_bytes(passes, lasting, cache_bytes // 2)


@pytest.mark.parametrize(
    ("arch", "precision"), [("squeezenet1_1", "amp-bf16"), ("resnet18", "fp32")]
)
@pytest.mark.slow
def test_no_machine_trains_a_model_with_less_than_the_floor(arch, precision):
    step = record_step(StepSpec(arch, batch_size=4, precision=precision))
    floors = []
    for cache_bytes in (0, 2**20, 2**24, 2**27):
        moved = _cached_traffic(step.passes, step.lasting, cache_bytes)
        floors.append(compulsory_bytes(step.passes, step.lasting, cache_bytes))
        assert floors[-1] <= moved
    assert floors == sorted(floors, reverse=True)


def test_floor_without_a_cache_by_hand():
    """conv_relu_conv of test_traffic, in elements: six ops, each reads and writes what it must.

    The gradient of the second convolution's output is computed from 8 logits: it is 8 wide.
    """
    x, hidden, logits, first, second = 96, 256, 8, 24, 32
    expected = (x + first + hidden) + (hidden + second + logits)
    expected += (logits + second + hidden) + (logits + hidden + second) + (hidden + x + first)
    expected += 5 * (first + second)
    complexity = step_complexity(tiny("conv_relu_conv"), cache_bytes=0)
    assert complexity.compulsory_bytes == 4 * expected


@pytest.mark.slow
def test_what_fits_in_the_cache_moves_nothing():
    complexity = step_complexity(StepSpec("squeezenet1_1", batch_size=1, precision="fp32"))
    assert complexity.compulsory_bytes == 0


@pytest.mark.slow
def test_weights_that_do_not_fit_move_at_any_batch_size():
    """Parameter, gradient and momentum in, parameter and momentum out, less the cache each way."""
    complexity = step_complexity(
        StepSpec("vgg16", batch_size=1, precision="fp32"), cache_bytes=2**20
    )
    assert complexity.compulsory_bytes >= 20 * complexity.parameters - 2 * 2**20


def test_the_products_of_an_attention_may_become_one_kernel():
    complexity = step_complexity(tiny("AttentionByHand", image_size=16), cache_bytes=0)
    scores_bytes = 4 * 2 * 256 * 256
    assert complexity.compulsory_bytes < 0.1 * scores_bytes
    assert complexity.fused_bytes > 4 * scores_bytes
