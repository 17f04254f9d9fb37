"""What counts as moved: in-place ops, views, empty tensors, parts of storages; and small FLOP."""

import pytest
import torch
from generated_steps import traced
from torch.nn import functional

from bench.cost.step_tracer import Values
from bench.cost.traffic import Role, eager_bytes

FEW, MANY, TABLE = torch.zeros(8).long(), torch.zeros(2, 100).long(), torch.zeros(64, 4)


def _passes(function, *tensors):
    return traced(lambda: function(*tensors))[1].passes


def _bytes(item):
    return [access.size_bytes for access in item.reads], [a.size_bytes for a in item.writes]


@pytest.mark.parametrize(
    ("function", "tensor", "reads", "writes"),
    [
        (lambda t: t.fill_(3), torch.zeros(5), [], [20]),
        (lambda t: t.copy_(torch.ones(5).double()), torch.zeros(5), [40], [20]),
        (lambda t: torch.empty_like(t) * 2, torch.zeros(5), [], [20]),
        # An expanded tensor is read once, the part of another as far as it goes.
        (lambda t: t.expand(100, 5) + 1, torch.zeros(5), [20], [2000]),
        (lambda t: t[:5].expand(100, 5) + 1, torch.zeros(400), [20], [2000]),
        # 8 rows of 64; then more indices than rows, which may all be another.
        (lambda t: functional.embedding(FEW, t), TABLE, [8 * 4 * 4, 8 * 8], [8 * 4 * 4]),
        (lambda t: t.index_select(0, FEW), TABLE, [8 * 4 * 4, 8 * 8], [8 * 4 * 4]),
        (lambda t: t.gather(1, FEW[:, None]), TABLE, [8 * 4, 8 * 8], [8 * 4]),
        (lambda t: functional.embedding(MANY, t), TABLE, [64 * 4 * 4, 200 * 8], [200 * 4 * 4]),
        (lambda t: t.expand(5, 64, 4)[FEW.clamp(0, 0)], TABLE, [64 * 16, 64], [8 * 64 * 4 * 4]),
    ],
)
def test_what_an_op_reads_and_writes(function, tensor, reads, writes):
    assert _bytes(_passes(function, tensor)[-1]) == (reads, writes)


def test_an_op_in_place_reads_and_writes_and_makes_a_new_value():
    first, second = _passes(lambda t: t.relu_().add_(1), torch.zeros(5))
    assert (first.op, second.op) == ("relu_", "add_")
    assert _bytes(first) == _bytes(second) == ([20], [20])
    assert second.reads[0].value == first.writes[0].value != first.reads[0].value


def test_both_operands_of_the_same_storage_are_read_once_in_eager_bytes():
    tensor = torch.zeros(6)
    _, tracer = traced(lambda: (tensor * tensor, tensor[:4] * tensor[2:]))
    sizes = tracer.sizes_bytes
    assert [eager_bytes(item, sizes) for item in tracer.passes] == [24 + 24, 24 + 16]


def test_a_part_is_written_by_a_kernel_of_its_own_that_needs_the_rest():
    fill, part = _passes(lambda t: t.fill_(1)[2:4].mul_(3), torch.zeros(10))
    assert _bytes(part) == ([8, 0], [8])
    assert {access.value for access in part.reads} == {fill.writes[0].value}
    assert (fill.role, part.role) == (Role.POINTWISE, Role.OPAQUE)


def test_views_unused_shapes_and_rows_that_are_not_taken_are_not_read():
    def views(tensor):
        tensor.view(6).unsqueeze(0).expand(9, 6).t()
        tensor.t_()
        return tensor.shape, tensor.detach()

    assert _passes(views, torch.zeros(2, 3)) == []
    pooled = functional.avg_pool2d(torch.randn(1, 1, 8, 8, requires_grad=True), 2)
    (item,) = [p for p in _passes(lambda: pooled.sum().backward()) if "pool" in p.op]
    assert _bytes(item) == ([4], [256])  # the sum's gradient, expanded
    item = _passes(lambda: functional.embedding_bag(FEW, TABLE, torch.tensor([0, 5])))[-1]
    assert _bytes(item)[0][:2] == [8 * 4 * 4, 8 * 8]


@pytest.mark.parametrize(
    ("function", "flops", "role"),
    [
        (lambda t: functional.max_pool2d(t, 3, 2), 9 * 9, Role.OPAQUE),
        (lambda t: functional.avg_pool2d(t, 2), 4 * 16, Role.OPAQUE),
        (lambda t: functional.adaptive_avg_pool2d(t, 2), 64, Role.OPAQUE),
        (lambda t: t.add(t), 64, Role.POINTWISE),
        (lambda t: t.add(t, alpha=2), 2 * 64, Role.POINTWISE),
        (lambda t: t.clone(), 0, Role.POINTWISE),
    ],
)
def test_elementwise_flops_of_windows_and_elements(function, flops, role):
    (item,) = _passes(function, torch.zeros(1, 1, 8, 8))
    assert (item.elementwise_flops, item.role) == (flops, role)


def test_the_loss_over_a_vocabulary_takes_one_number_of_each_row():
    logits, labels = torch.zeros(6, 1000, requires_grad=True), torch.zeros(6).long()
    _, tracer = traced(
        lambda: functional.cross_entropy(logits, labels), lambda loss: loss.backward()
    )
    by_op = {item.op: item for item in tracer.passes}
    assert _bytes(by_op["nll_loss_forward"]) == ([6 * 4, 6 * 8], [4, 4])
    reads, writes = _bytes(by_op["nll_loss_backward"])
    assert (sum(reads), writes) == (4 + 6 * 8 + 4, [6 * 1000 * 4])
    flops = {"nll_loss_forward": 6, "nll_loss_backward": 0, "_log_softmax": 5 * 6000}
    assert {name: by_op[name].elementwise_flops for name in flops} == flops


def test_an_embeddings_gradient_adds_rows_into_a_whole_table():
    table = torch.zeros(64, 4, requires_grad=True)
    _, tracer = traced(
        lambda: functional.embedding(FEW, table), lambda rows: rows.backward(torch.ones(8, 4))
    )
    (item,) = (item for item in tracer.passes if item.op == "embedding_dense_backward")
    assert _bytes(item) == ([8 * 4 * 4, 8 * 8], [64 * 4 * 4])
    assert (item.macs, item.elementwise_flops, item.role) == (0, 8 * 4, Role.REDUCTION)


def test_the_peak_is_of_what_storages_hold_at_once():
    """40 and 20 bytes, views of either; then 80 in place of the 40."""
    values = Values()
    first, second = torch.zeros(10), torch.zeros(5)
    for tensor in (first, second, first[2:], second.view(5, 1)):
        values.key(tensor)
    assert values.peak_bytes == 60
    del first, tensor
    third = torch.zeros(20)
    values.key(third)
    assert values.peak_bytes == 100
