"""`count_step` around real steps: what it counts, in which phase, and what it leaves alone."""

import warnings
from dataclasses import replace
from functools import partial

import pytest
import tiny_models
import torch
from generated_steps import tiny
from torch import distributed, func, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from bench import count_step
from bench.cost.estimate import step_complexity
from bench.errors import UserError

COUNTS = (
    "forward_macs",
    "step_flops",
    "elementwise_flops",
    "eager_bytes",
    "fused_bytes",
    "compulsory_bytes",
    "phases",
)


def _step_of(model, size, batch_size=2, precision="fp32"):
    """A user's own training step of `model`, on images of `size` pixels, and its optimizer."""
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True
    )
    images = torch.randn(batch_size, 3, size, size)
    labels = torch.randint(3, (batch_size,))

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "amp-bf16"):
            logits = model(images)
            loss = functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return logits, loss

    return step


def _is_that_of_complexity(cost, spec):
    complexity = step_complexity(replace(spec, cache_bytes=cost.cache_bytes))
    assert cost.ops == complexity.ops
    for name in COUNTS:
        assert getattr(cost, name) == getattr(complexity, name), name


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, "fp32") for name in ("frozen_stem", "tied", "other_norms", "AttentionByHand")),
        *(("conv_norm_relu_conv", precision) for precision in ("fp32", "amp-bf16")),
    ],
)
def test_a_real_step_counts_as_the_one_that_is_not_run(name, precision):
    step = _step_of(getattr(tiny_models, name)(), size=4, precision=precision)
    step()  # the momentum is there
    with count_step(cache_bytes=1000) as cost:
        kept = step()
    assert len(kept) == 2  # a user holds what it made: that is no weight and no state
    _is_that_of_complexity(cost, tiny(name, precision=precision))
    assert cost.is_complete


@pytest.mark.slow
def test_a_first_step_that_makes_its_momentum_writes_it():
    model = nn.Linear(8, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with count_step() as cost:
        model(torch.zeros(2, 8)).sum().backward()
        optimizer.step()
    # One kernel reads gradient and weight, and writes momentum and weight.
    assert cost.phases["optimizer"].fused_bytes == 4 * 32 * 4


def test_what_an_optimizer_frees_again_is_not_written():
    model = nn.Linear(8, 4, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(2):
        model(torch.zeros(2, 8)).sum().backward()
        with count_step() as cost:
            optimizer.step()
    # Weight, gradient and two moments read; weight and moments written; and the count of steps.
    assert cost.fused_bytes == 4 * 32 * 7 + 4 * 2


def _layers():
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


def _phases_of_ops(cost):
    phases = {}
    for item in cost.ops:
        phases.setdefault(item.op, set()).add(item.phase)
    return phases


def test_phases_are_found_without_being_declared():
    model = _layers()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with count_step() as cost:
        model(torch.zeros(3, 8)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    phases = _phases_of_ops(cost)
    assert phases["addmm"] == {"forward"}
    assert phases["ones_like"] == phases["gelu_backward"] == {"backward"}
    assert phases["_foreach_norm"] == phases["_foreach_addcdiv_"] == {"optimizer"}
    forward, backward, _ = cost.phases.values()
    macs = 3 * (8 * 16 + 16 * 4)
    assert (forward.flops, cost.forward_macs) == (2 * macs, macs)
    assert backward.flops == 2 * (2 * macs - 3 * 8 * 16)  # no gradient of the input
    assert sum(phase.eager_bytes for phase in cost.phases.values()) == cost.eager_bytes


def test_the_closure_of_an_optimizer_is_forward_and_backward():
    model = _layers()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def closure():
        loss = model(torch.zeros(3, 8)).sum()
        loss.backward()
        return loss

    with count_step() as cost:
        optimizer.step(closure)
    phases = _phases_of_ops(cost)
    assert phases["addmm"] == {"forward"}
    assert phases["gelu_backward"] == {"backward"}
    assert "optimizer" in phases["cat"]


def _reversed(model):
    """A layer of one's own that computes `model` again in its backward pass."""

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, inputs, *weights):
            ctx.save_for_backward(inputs)
            return model(inputs)

        @staticmethod
        def backward(ctx, gradient):
            inputs = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                result = model(inputs)
            return torch.autograd.grad(result, (inputs, *model.parameters()), gradient)

    return lambda inputs: Again.apply(inputs, *model.parameters())


@pytest.mark.parametrize(
    ("again", "keep"),
    [(again, keep) for again in ("reentrant", "not reentrant", "own") for keep in (False, True)],
)
def test_what_the_backward_pass_computes_again_is_counted_by_itself(again, keep):
    model, inputs = _layers(), torch.zeros(3, 8, requires_grad=True)
    run = partial(checkpoint, model, use_reentrant=again == "reentrant")
    if again == "own":
        run = _reversed(model)
    costs = []
    for each in (model, run):
        model.zero_grad()
        with count_step() as cost:
            each(inputs).sum().backward(retain_graph=keep)
        costs.append(cost)
    plain, cost = costs
    assert cost.forward_macs == plain.forward_macs
    assert cost.step_flops == plain.step_flops
    assert plain.recomputed_flops == 0
    # Checkpoints that are not reentrant stop at the last tensor that they need.
    last = 0 if again == "not reentrant" else 16 * 4
    assert cost.recomputed_flops == 2 * 3 * (8 * 16 + last)


@pytest.mark.parametrize("again", [False, True], ids=["plain", "checkpoint"])
def test_gradients_of_gradients_are_work_of_the_step(again):
    model, inputs = _layers(), torch.randn(3, 8, requires_grad=True)
    run = partial(checkpoint, model, use_reentrant=False) if again else model
    with count_step() as cost:
        result = run(inputs).sum()
        (gradient,) = torch.autograd.grad(result, inputs, create_graph=True)
        gradient.pow(2).sum().backward()
    first, last = 3 * 8 * 16, 3 * 16 * 4
    # Forward; gradient of the inputs; then those of every factor that is learned, or the inputs'.
    assert cost.step_flops == 2 * ((1 + 1 + 4) * first + (1 + 1 + 1) * last)
    assert (cost.recomputed_flops > 0) is again


def _functional(model, inputs):
    weights = {name: each.detach() for name, each in model.named_parameters()}
    func.grad(lambda each: func.functional_call(model, each, (inputs,)).sum())(weights)


def _per_sample(model, inputs):
    weights = {name: each.detach() for name, each in model.named_parameters()}
    one = func.grad(lambda each, row: func.functional_call(model, each, (row,)).sum())
    func.vmap(one, in_dims=(None, 0))(weights, inputs)


def _with_a_graph(model, inputs):
    model(inputs).sum().backward(create_graph=True, retain_graph=False)


@pytest.mark.parametrize("gradients", [_functional, _per_sample, _with_a_graph])
def test_gradients_without_a_checkpoint_compute_nothing_again(gradients):
    with count_step() as cost:
        gradients(_layers(), torch.randn(3, 8))
    first, last = 3 * 8 * 16, 3 * 16 * 4
    # Of the first layer's inputs there is no gradient.
    assert (cost.step_flops, cost.recomputed_flops) == (2 * (2 * first + 3 * last), 0)


def test_a_frozen_part_of_a_checkpoint_is_computed_again_with_it():
    model, frozen = _layers(), nn.Linear(8, 4, bias=False)

    def differs(inputs):
        with torch.no_grad():
            target = frozen(inputs)
        return (model(inputs) - target).tanh()

    with count_step() as cost:
        checkpoint(differs, torch.randn(3, 8), use_reentrant=False).sum().backward()
    assert cost.recomputed_flops == 2 * 3 * (8 * 4 + 8 * 16 + 16 * 4)


_IN_INFERENCE = {
    "einsum": lambda rows: torch.einsum("nc,dc->nd", rows, rows),
    "linear": nn.Linear(4, 5),
    "convolution": lambda rows: nn.Conv1d(4, 2, 3)(rows.t()),
    "attention": lambda rows: functional.scaled_dot_product_attention(*3 * [rows[None]]),
    "lstm": lambda rows: nn.LSTM(4, 5)(rows),
    "bilinear": lambda rows: functional.interpolate(rows[None, None], (9, 9), mode="bilinear"),
    "dropout": functional.dropout,
}


@pytest.mark.parametrize("computes", _IN_INFERENCE.values(), ids=_IN_INFERENCE)
def test_inference_mode_hides_no_work(computes):
    """Its tensors leave ops whole that are made of others, outside of it too."""
    rows = torch.randn(6, 4)
    with torch.no_grad(), count_step() as plain:
        computes(rows)
    with torch.inference_mode(), count_step() as cost:
        computes(rows)
    assert cost.is_complete
    for name in ("step_flops", "elementwise_flops", "eager_bytes", "ops"):
        assert getattr(cost, name) == getattr(plain, name), name


def test_products_that_amp_leaves_in_fp32_are_known():
    rows, first, head = torch.randn(6, 4), nn.Linear(4, 8), nn.Linear(8, 2)
    with count_step() as cost:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = first(rows)
            with torch.autocast("cpu", enabled=False):
                result = head(hidden.float())
        result.sum().backward()
    # Of the head forward and two gradients.
    assert cost.fp32_flops == 2 * 3 * 6 * 8 * 2
    assert cost.step_flops == cost.fp32_flops + 2 * 2 * 6 * 4 * 8


def test_tensors_of_an_evaluation_are_multiplied_outside_of_it():
    with torch.inference_mode():
        rows, layer = torch.randn(6, 4), nn.Linear(4, 5)
    with count_step() as cost:
        layer(rows)
    assert (cost.step_flops, cost.is_complete) == (2 * 6 * 4 * 5, True)


def test_a_causal_mask_is_counted_whole_and_what_it_hides_by_itself():
    query, key, value = (torch.randn(2, 3, 8, 4, requires_grad=True) for _ in range(3))

    def cost_of(backend, **options):
        with sdpa_kernel(backend), count_step() as cost:
            functional.scaled_dot_product_attention(query, key, value, **options).sum().backward()
        return cost

    fused = cost_of(SDPBackend.FLASH_ATTENTION, is_causal=True)
    assert fused.step_flops == cost_of(SDPBackend.FLASH_ATTENTION).step_flops
    assert cost_of(SDPBackend.FLASH_ATTENTION).causal_skipped_flops == 0
    # Of 8 x 8 pairs 36 are seen.
    assert fused.causal_skipped_flops * 64 == fused.step_flops * (64 - 36)
    assert cost_of(SDPBackend.MATH, is_causal=True).causal_skipped_flops == 0


@pytest.mark.parametrize("compiled", [False, True])
def test_control_flow_and_attention_in_python_leave_the_step_running(compiled):
    rows = torch.randn(1, 1, 8, 16)
    attend = torch.compile(flex_attention, backend="eager") if compiled else flex_attention
    expected = functional.scaled_dot_product_attention(rows, rows, rows)
    with warnings.catch_warnings(), count_step() as cost:
        warnings.simplefilter("ignore")
        result = attend(rows, rows, rows)
        torch.cond(torch.tensor(True), torch.sin, torch.cos, (rows,))
    assert torch.allclose(result, expected, atol=1e-6)
    assert cost.uncounted.keys() == {"flex_attention", "cond"}


def test_an_op_without_a_formula_is_named_and_the_step_goes_on():
    weight, inputs = torch.ones(4, 4, requires_grad=True), torch.zeros(2, 4)

    def transformed():
        return torch.fft.fft(inputs @ weight).abs()

    expected = transformed()

    def counted():
        with count_step() as cost:
            result = transformed()
            result.sum().backward()
        return result, cost

    with pytest.warns(UserWarning, match="lower bound, without those of .*fft"):
        result, cost = counted()
    assert torch.equal(result, expected)
    assert not cost.is_complete
    assert any("fft" in op for op in cost.uncounted)
    assert "there is no formula" in str(cost)
    assert cost.eager_bytes > 0


def test_the_step_computes_what_it_would_without_being_counted():
    results = []
    for counted in (False, True):
        torch.manual_seed(1)
        model = tiny_models.conv_norm_relu_conv()
        step = _step_of(model, size=4)
        for _ in range(3):
            if counted:
                with count_step():
                    step()
            else:
                step()
        results.append(model.state_dict())
    plain, counted = results
    assert all(torch.equal(plain[name], counted[name]) for name in plain)


def test_no_memory_is_held_and_storages_at_the_address_of_another_are_their_own():
    """Memory that is freed is given out again: 50 tensors, each read by the op after it."""
    with count_step() as cost:
        tensor = torch.ones(1000)
        storage = StorageWeakRef(tensor.untyped_storage())
        tensor = tensor + 1
        assert storage.expired()
        del tensor
        for _ in range(50):
            torch.zeros(100).add_(1).mul(3)
    assert cost.eager_bytes == 4000 + 8000 + 50 * (400 + 800 + 800)
    assert cost.fused_bytes == 0  # nothing of it is needed by anything
    [_, _, zeros, added, scaled] = cost.ops
    assert (zeros.calls, added.calls, scaled.calls) == (50, 50, 50)


def test_what_processes_send_each_other_is_not_counted_and_other_libraries_ops_are_named():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    with count_step() as cost:
        distributed.all_reduce(torch.ones(4))
        with pytest.raises(UserError, match="after the with block"):
            _ = cost.step_flops
    distributed.destroy_process_group()
    assert cost.is_complete
    assert (cost.step_flops, cost.phases["forward"].flops) == (0, 0)
    with torch.library._scoped_library("count_step_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        with warnings.catch_warnings(), count_step() as cost:
            warnings.simplefilter("ignore")
            torch.ops.count_step_test.twice(torch.zeros(5))
    assert [*cost.uncounted] == ["count_step_test.twice"]


def test_copies_into_what_processes_send_are_bytes_without_flop():
    import torch.distributed.fsdp  # registers them

    parts, whole = [torch.empty(2, 3), torch.empty(2, 5)], torch.ones(2, 8)
    with count_step() as cost:
        torch.ops.fsdp.split_with_sizes_copy(whole, [3, 5], 1, out=parts)
        torch.ops.fsdp.chunk_cat([torch.ones(4)], 0, 2, out=torch.empty(2, 2))
    assert (cost.uncounted, cost.step_flops, cost.elementwise_flops) == ({}, 0, 0)
    assert cost.eager_bytes >= 2 * 4 * (2 * 8)
    assert torch.equal(torch.cat(parts, 1), whole)


def test_a_subclass_of_tensor_and_a_block_within_another_count_for_each():
    from torch.testing._internal.two_tensor import TwoTensor

    both = TwoTensor(torch.ones(4, 4), torch.ones(4, 4))
    with count_step() as outer:
        torch.mm(both, both)
        with count_step() as inner:
            torch.mm(both, both)
    assert outer.forward_macs == 2 * inner.forward_macs == 4 * 4**3


@pytest.mark.slow
def test_a_compiled_model_is_counted_op_by_op():
    model = _layers()
    compiled = torch.compile(model, backend="eager")
    inputs = torch.zeros(3, 8)
    compiled(inputs).sum().backward()
    with count_step() as cost:
        compiled(inputs).sum().backward()
    with count_step() as plain:
        model(inputs).sum().backward()
    assert cost.step_flops == plain.step_flops > 0
